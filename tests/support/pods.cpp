#include "tests/support/pods.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "lib/base/fd.hpp"

namespace fs = std::filesystem;

namespace elrun::test {
namespace {

// Namespaces are named PREFIX-PROCESS-POD. The fabric's own, with the bridge and the name server, has an empty POD; the
// interfaces are inside, so that their names need not be unique, and end with it.
const std::string prefix = "elrun-test-";
const std::string network = "10.213.7.";
const std::string name_server_address = network + "1";
constexpr Wait command_limit{20000};

std::string name_of(const std::string& pod) { return prefix + std::to_string(::getpid()) + "-" + pod; }

// Tools of the administrator are not in every user's PATH.
Job::Setting tool(std::vector<std::string> words) {
  return {.arguments = std::move(words),
          .environment = {{"PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"}},
          .program = "/usr/bin/env"};
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in{text};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// A program behind the words that bring it to where it runs.
Job::Setting inside(const std::vector<std::vector<std::string>>& before, Job::Setting setting) {
  std::vector<std::string> words;
  for (const auto& some : before) words.insert(words.end(), some.begin(), some.end());
  words.push_back(program_path(setting.program));
  words.insert(words.end(), setting.arguments.begin(), setting.arguments.end());
  Job::Setting whole = tool(std::move(words));
  whole.environment.insert(setting.environment.begin(), setting.environment.end());
  return whole;
}

// Runs one command line without quotes; its output.
std::string command(const std::string& text) {
  Job job{tool(words_of(text))};
  if (const int code = job.wait(command_limit); code != 0)
    throw std::runtime_error{"`" + text + "` ended with " + std::to_string(code) + ": " + job.output()};
  return job.output();
}

fs::path place_of(const std::string& name_space) { return "/run/netns/" + name_space; }

// What the process is called; nothing when it is gone or only waits for its parent to look (a zombie).
std::optional<std::string> living_name(pid_t pid) {
  std::ifstream status{"/proc/" + std::to_string(pid) + "/stat"};  // "pid (name) state ..."
  std::string line;
  std::getline(status, line);
  const auto open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= line.size() || line[close + 2] == 'Z') return {};
  return line.substr(open + 1, close - open - 1);
}

// The processes whose network it is.
std::vector<pid_t> processes_in(const std::string& name_space, const std::string& name) {
  struct stat space {};
  std::vector<pid_t> found;
  if (::stat(place_of(name_space).c_str(), &space) != 0) return found;
  for (const auto& entry : fs::directory_iterator{"/proc"}) {
    const std::string number = entry.path().filename();
    struct stat own {};
    if (number.find_first_not_of("0123456789") != std::string::npos || ::stat((entry.path() / "ns/net").c_str(), &own) != 0 ||
        own.st_ino != space.st_ino || own.st_dev != space.st_dev)
      continue;
    const pid_t pid = std::stoi(number);
    if (const auto living = living_name(pid); living && (name.empty() || *living == name)) found.push_back(pid);
  }
  return found;
}

// As often as it takes: a process may start another while it is looked for.
void end_processes(const std::string& name_space) {
  const auto until = std::chrono::steady_clock::now() + command_limit;
  for (auto all = processes_in(name_space, ""); !all.empty(); all = processes_in(name_space, "")) {
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error{name_space + ": its processes cannot be killed"};
    std::vector<Watch> watches;
    for (const pid_t pid : all) watches.emplace_back(pid);
    for (const pid_t pid : all) ::kill(pid, SIGKILL);
    for (const Watch& watch : watches) (void)watch.ended(Wait{5000});
  }
}

// The namespaces that this process made, by inode.
std::map<ino_t, std::string>& namespaces_made() {
  static std::map<ino_t, std::string> made;
  return made;
}

void make_namespace(const std::string& name_space) {
  command("ip netns add " + name_space);
  struct stat space {};
  if (::stat(place_of(name_space).c_str(), &space) == 0) namespaces_made()[space.st_ino] = name_space;
}

void take_away(const std::string& name_space) {
  ControlGroup::thaw(name_space);  // a frozen process does not die
  end_processes(name_space);
  ControlGroup::take_away(name_space);
  std::error_code ignored;
  fs::remove_all("/etc/netns/" + name_space, ignored);
  fs::remove("/etc/netns", ignored);  // when it is empty
  if (fs::exists(place_of(name_space))) command("ip netns del " + name_space);
}

// What processes left behind that live no more. One test at a time: of two that begin together, one would find what the other one has just taken away.
void sweep() {
  const Fd only_one{::open("/run", O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (only_one) ::flock(only_one.get(), LOCK_EX);
  std::error_code none;
  for (const auto& entry : fs::directory_iterator{"/run/netns", none}) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix)) continue;
    pid_t owner = 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), owner);
    if (owner > 0 && (owner == ::getpid() || !living_name(owner))) take_away(name);
  }
}

void add_entries(const fs::path& folder, const std::string& begin, std::vector<std::string>& to) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator{folder, none})
    if (entry.path().filename().string().starts_with(begin)) to.push_back(entry.path());
}

}  // namespace

std::vector<std::string> left_behind() {
  std::vector<std::string> left;
  const std::string begin = name_of("");
  std::set<ino_t> of_others;  // the kernel uses the number of a namespace again when that one is gone
  std::error_code none;
  for (const auto& entry : fs::directory_iterator{"/run/netns", none}) {
    struct stat space {};
    if (!entry.path().filename().string().starts_with(begin) && ::stat(entry.path().c_str(), &space) == 0) of_others.insert(space.st_ino);
  }
  for (const char* folder : {"/run/netns", "/etc/netns"}) add_entries(folder, begin, left);
  for (const std::string& group : ControlGroup::names(begin)) left.push_back("control group " + group);
  for (const auto& entry : fs::directory_iterator{"/proc"}) {
    const std::string number = entry.path().filename();
    struct stat own {};
    if (number.find_first_not_of("0123456789") != std::string::npos || ::stat((entry.path() / "ns/net").c_str(), &own) != 0) continue;
    const auto made = namespaces_made().find(own.st_ino);
    if (of_others.contains(own.st_ino)) continue;
    if (const auto name = living_name(std::stoi(number)); name && made != namespaces_made().end())
      left.push_back("process " + number + " (" + *name + ") of " + made->second);
  }
  return left;
}

// --- Fabric ---

std::unique_ptr<Fabric> Fabric::create() {
  try {
    if (::geteuid() != 0) throw std::runtime_error{"network namespaces need root"};
    return std::unique_ptr<Fabric>{new Fabric};
  } catch (const std::exception& why) {
    std::printf("SKIPPED: no pods on this machine: %s\n", why.what());
    return nullptr;
  }
}

Fabric::Fabric() {
  sweep();
  try {
    const std::string space = name_space(), in_it = "ip -n " + space;
    make_namespace(space);
    command(in_it + " link set lo up");
    // With an address of its own: else it has its first cable's, and changes it when that one is cut.
    command(in_it + " link add bridge address 02:00:00:00:00:01 type bridge");
    command(in_it + " addr add " + name_server_address + "/24 dev bridge");
    command(in_it + " link set bridge up");
    command("ip netns exec " + space + " unshare --uts --ipc --pid --fork --kill-child=KILL --mount-proc hostname probe");
    std::ofstream{directory_.path() + "/names"};
    start_name_server();
  } catch (...) {
    take_away(name_space());
    throw;
  }
}

Fabric::~Fabric() { take_away(name_space()); }

std::string Fabric::name_space() const { return name_of(""); }

std::unique_ptr<Job> Fabric::run(Job::Setting setting) const {
  return std::make_unique<Job>(inside({words_of("ip netns exec " + name_space())}, std::move(setting)));
}

void Fabric::start_name_server() {
  const std::string server =
      "ip netns exec " + name_space() +
      " dnsmasq --no-daemon --conf-file=/dev/null --user=root --no-resolv --no-hosts --local=/#/ --no-negcache --cname=alias.job,coordinator.job --addn-hosts=" +
      directory_.path() + "/names --bind-interfaces --listen-address=" + name_server_address;
  name_server_ = std::make_unique<Job>(tool(words_of(server)));
  if (!name_server_->line("read " + directory_.path() + "/names", command_limit))
    throw std::runtime_error{"the name server (dnsmasq) does not start: " + name_server_->output()};
}

void Fabric::publish(const std::string& name, const std::vector<std::string>& addresses) {
  const std::string file = directory_.path() + "/names", whole = " " + name + "." + domain();
  std::string kept;
  std::ifstream in{file};
  for (std::string line; std::getline(in, line);)
    if (!line.ends_with(whole)) kept += line + "\n";
  for (const std::string& address : addresses) kept += address + whole + "\n";
  std::ofstream{file, std::ios::trunc} << kept;
  for (const pid_t pid : processes_in(name_space(), "dnsmasq")) ::kill(pid, SIGHUP);
  if (!name_server_->line("read " + file, command_limit)) throw std::runtime_error{"the name server does not read its names again"};
}

// --- Pod ---

Pod::Pod(Fabric& fabric, std::string name, int host)
    : fabric_{fabric},
      name_{std::move(name)},
      address_{network + std::to_string(host)},
      link_{"pod" + std::to_string(++fabric.links_)},
      group_{name_space()} {
  const std::string space = name_space(), in_it = "ip -n " + space;
  make_namespace(space);
  const fs::path files = "/etc/netns/" + space;  // what `ip netns exec` lays over /etc
  fs::create_directories(files);
  const std::string search = Fabric::domain();
  std::ofstream{files / "resolv.conf"} << "nameserver " << name_server_address << "\nsearch " << search << " svc." << search
                                       << "\noptions ndots:5 timeout:1 attempts:2\n";
  std::ofstream{files / "hosts"} << "127.0.0.1 localhost\n" << address_ << " " << name_ << "." << search << " " << name_ << "\n";
  if (fs::exists("/etc/nsswitch.conf")) std::ofstream{files / "nsswitch.conf"} << "passwd: files\ngroup: files\nhosts: files dns\n";
  command("ip -n " + fabric_.name_space() + " link add " + link_ + " type veth peer name eth0 netns " + space);
  command("ip -n " + fabric_.name_space() + " link set " + link_ + " master bridge up");
  command(in_it + " link set lo up");
  command(in_it + " addr add " + address_ + "/24 dev eth0");
  command(in_it + " link set eth0 up");
}

Pod::~Pod() {
  // The cable first: a namespace whose processes are dying goes later than its name, and takes the cable along.
  command("ip -n " + fabric_.name_space() + " link del " + link_);
  take_away(name_space());
}

std::string Pod::name_space() const { return name_of(link_); }

Job& Pod::run(Job::Setting setting) {
  // The control groups first: `ip netns exec` brings a /sys of its own.
  const std::vector<std::string> outer{
      "sh", "-c",
      group_.enter() + "exec ip netns exec " + name_space() + " unshare --uts --ipc --pid --fork --kill-child=KILL --mount-proc \"$@\"",
      "pod"};
  const std::vector<std::string> inner{"sh", "-c", "hostname \"$0\"\n" + group_.show() + "exec \"$@\"", name_};
  return *(job_ = std::make_unique<Job>(inside({outer, inner}, std::move(setting))));
}

std::vector<pid_t> Pod::processes(const std::string& name) const { return processes_in(name_space(), name); }

bool Pod::runs(const std::string& name, std::size_t count, Wait wait) const {
  const auto until = std::chrono::steady_clock::now() + wait;
  while (processes(name).size() != count) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  }
  return true;
}

std::optional<pid_t> Pod::first_process() const {
  for (const pid_t pid : processes()) {
    std::ifstream status{"/proc/" + std::to_string(pid) + "/status"};  // "NSpid: 4711 1"
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("NSpid:") && line.ends_with("\t1")) return pid;
  }
  return std::nullopt;
}

void Pod::terminate() const {
  if (const auto first = first_process()) ::kill(*first, SIGTERM);
}

void Pod::keep_from_oom_kill(bool keeps) const {
  const auto set = [](pid_t pid, const char* score) { std::ofstream{"/proc/" + std::to_string(pid) + "/oom_score_adj"} << score; };
  if (const auto first = first_process()) set(*first, keeps ? "-1000" : "0");
  if (keeps) return;
  for (const pid_t pid : processes()) set(pid, "0");  // what the first one started meanwhile
}

void Pod::kill() const {
  ControlGroup::thaw(name_space());
  end_processes(name_space());
}

void Pod::cut_cable() const { command("ip -n " + fabric_.name_space() + " link set " + link_ + " down"); }
void Pod::mend_cable() const { command("ip -n " + fabric_.name_space() + " link set " + link_ + " up"); }

// An address of the link layer that nobody has: the packets leave, and no one takes them.
void Pod::lose_packets_to(const Pod& other) const {
  command("ip -n " + name_space() + " neigh replace " + other.address() + " lladdr 02:00:00:00:00:99 nud permanent dev eth0");
}
void Pod::mend() const { command("ip -n " + name_space() + " neigh flush nud permanent dev eth0"); }

void Pod::signal_all(int number) const {
  for (int pass = 0; pass < 2; ++pass)  // one that was started meanwhile
    for (const pid_t pid : processes()) ::kill(pid, number);
}
void Pod::freeze() const {
  if (!group_.freeze()) signal_all(SIGSTOP);
}
void Pod::thaw() const {
  ControlGroup::thaw(name_space());
  signal_all(SIGCONT);
}

std::vector<std::string> Pod::resolve(const std::string& name) const {
  Job job{tool(words_of("ip netns exec " + name_space() + " getent ahostsv4 " + name))};
  std::vector<std::string> addresses;
  if (job.wait(command_limit) != 0) return addresses;
  std::istringstream lines{job.output()};
  for (std::string line; std::getline(lines, line);)
    if (line.find("STREAM") != std::string::npos) addresses.push_back(line.substr(0, line.find(' ')));
  return addresses;
}

}  // namespace elrun::test
