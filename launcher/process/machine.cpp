#include "launcher/process/machine.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "launcher/options/devices.hpp"
#include "launcher/report/evidence.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0::launcher {
namespace {

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open{::opendir(folder.c_str()), ::closedir};
  while (const dirent* entry = open ? ::readdir(open.get()) : nullptr)
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  return names;
}

DeviceFiles device_files() {
  DeviceFiles files{.nodes = 0, .driver = static_cast<std::uint32_t>(names_in("/proc/driver/nvidia/gpus").size())};
  for (const std::string& name : names_in("/dev"))
    if (name.size() > 6 && name.starts_with("nvidia") && name.find_first_not_of("0123456789", 6) == std::string::npos) ++files.nodes;
  return files;
}

// The affinity mask of this process. The kernel refuses one that is too short for its own.
Cpus cpus_in_mask() {
  Cpus cpus;
  for (int limit = 1024; limit <= 1 << 20 && cpus.empty(); limit *= 2) {
    const std::size_t bytes = CPU_ALLOC_SIZE(limit);
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set{CPU_ALLOC(limit), [](cpu_set_t* s) { CPU_FREE(s); }};
    if (::sched_getaffinity(0, bytes, set.get()) != 0) continue;
    for (int cpu = 0; cpu < limit; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.insert(static_cast<std::uint32_t>(cpu));
  }
  return cpus;
}

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  if (address->sa_family == AF_INET6) ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  return text;
}

}  // namespace

Machine this_machine(const Variables& environment) {
  return {.gpus = [&environment] { return count_gpus(environment, device_files); },
          .cpus = [] { return count_cpus(static_cast<std::uint32_t>(cpus_in_mask().size()), cpu_quota(read_small_file)); },
          .host_name = host_name,
          .read_file = read_small_file,
          .resolves = [](const std::string& name) { return !addresses_of(name).empty(); }};
}

NumaView this_numa() { return {.read_file = read_small_file, .names_in = names_in, .allowed = cpus_in_mask()}; }

std::optional<std::string> read_small_file(const std::string& path) {
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) return std::nullopt;
  std::string text;
  char part[4096];
  while (text.size() < small_file_max) {
    const ssize_t got = ::read(file.get(), part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    text.append(part, static_cast<std::size_t>(got));
  }
  return text;
}

FoundFile look_up_file(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  if (!S_ISREG(info.st_mode)) return {FileKind::not_executable};
  char head[128] = {};  // a first line that is longer names no interpreter that the kernel would start
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const ssize_t got = file ? ::read(file.get(), head, sizeof head) : 0;
  return {::access(path.c_str(), X_OK) == 0 ? FileKind::executable : FileKind::not_executable,
          std::string(head, static_cast<std::size_t>(std::max<ssize_t>(got, 0)))};
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

std::string boot_id() {
  std::string text = read_small_file("/proc/sys/kernel/random/boot_id").value_or(std::string{});
  std::erase(text, '\n');
  return text;
}

std::string kernel_problem() {
  const Fd self{static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))};
  const int error = errno;
  if (self || (error != ENOSYS && error != EPERM)) return {};  // EPERM: what a sandbox says of a call that it does not know
  utsname kernel{};
  (void)::uname(&kernel);
  return fmt::format(
      "the kernel ({} {}) or a sandbox refuses pidfd_open ({}), without which the end of a worker cannot be seen: elrun needs Linux 5.3",
      kernel.sysname, kernel.release, std::generic_category().message(error));
}

std::string thread_problem() {
  try {
    quiet_thread([] {}).join();
    return {};
  } catch (const std::system_error& error) {
    const int number = error.code().value();
    if (number == EPERM)  // glibc takes ENOSYS for an older kernel and uses clone; any other answer ends the start of the thread
      return "no thread could be started: a sandbox refuses clone3 with EPERM; let its seccomp profile answer ENOSYS, or allow the call";
    const std::string limit = limit_behind(number, CgroupWatch{}.limits());
    return fmt::format("no thread could be started: {}{}{}", error.code().message(), limit.empty() ? "" : "; ", limit);
  }
}

HeldPort HeldPort::any(std::uint16_t but_not) {
  HeldPort port = exactly(0);
  if (port.number_ == but_not && port.is_held()) port = any(but_not);  // that one is still bound here, so the next is another
  return port;
}

HeldPort HeldPort::exactly(std::uint16_t number) {
  HeldPort port;
  port.number_ = number;
  Fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(number);
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  if (!socket || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return port;
  port.number_ = ntohs(address.sin_port);
  port.socket_ = std::move(socket);
  return port;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner{list, ::freeifaddrs};
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next)
    if (i->ifa_addr != nullptr)
      if (std::string text = text_of(i->ifa_addr); !text.empty()) addresses.push_back(std::move(text));
  return addresses;
}

std::vector<std::string> addresses_of(const std::string& host) {
  if (host == "localhost") return {"127.0.0.1"};
  std::vector<std::string> addresses;
  if (const auto found = resolve(host, 0); found.ok())
    for (const SocketAddress& address : *found) addresses.push_back(address.host());
  return addresses;
}

}  // namespace elrun::inline v0::launcher
