#include "tests/crashlab/block_log.hpp"

#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "lib/base/fd.hpp"

namespace elrun::test {
namespace {

constexpr const char* recorder = "/usr/bin/qemu-storage-daemon";
constexpr std::uint64_t sector = 512;
constexpr std::uint64_t flag_flush = 1, flag_fua = 2, flag_discard = 4;

[[noreturn]] void give_up(const std::string& what) { throw std::runtime_error{what + ": " + std::strerror(errno)}; }

Fd open_or_give_up(const std::string& path, int flags) {
  Fd fd{::open(path.c_str(), flags | O_CLOEXEC, 0600)};
  if (!fd) give_up("open " + path);
  return fd;
}

void make_file(const std::string& path, std::uint64_t bytes) {
  const Fd fd = open_or_give_up(path, O_RDWR | O_CREAT | O_TRUNC);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) give_up("size of " + path);
}

void read_fully(int fd, std::uint64_t offset, void* out, std::uint64_t bytes) {
  for (auto* at = static_cast<char*>(out); bytes > 0;) {
    const ssize_t got = ::pread(fd, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) give_up("read the log");
    at += got, offset += static_cast<std::uint64_t>(got), bytes -= static_cast<std::uint64_t>(got);
  }
}

void write_fully(int fd, std::uint64_t offset, const char* data, std::uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t put = ::pwrite(fd, data, bytes, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) give_up("write an image");
    data += put, offset += static_cast<std::uint64_t>(put), bytes -= static_cast<std::uint64_t>(put);
  }
}

/// Without its holes.
void copy_sparse(const std::string& from, const std::string& to) {
  const Fd in = open_or_give_up(from, O_RDONLY), out = open_or_give_up(to, O_RDWR | O_CREAT | O_TRUNC);
  struct stat info {};
  if (::fstat(in.get(), &info) != 0 || ::ftruncate(out.get(), info.st_size) != 0) give_up("copy " + from);
  std::vector<char> buffer(1 << 20);
  for (off_t at = ::lseek(in.get(), 0, SEEK_DATA); at >= 0; at = ::lseek(in.get(), at, SEEK_DATA)) {
    const off_t end = ::lseek(in.get(), at, SEEK_HOLE);
    for (; at < end;) {
      const auto count = static_cast<std::uint64_t>(std::min<off_t>(end - at, static_cast<off_t>(buffer.size())));
      read_fully(in.get(), static_cast<std::uint64_t>(at), buffer.data(), count);
      write_fully(out.get(), static_cast<std::uint64_t>(at), buffer.data(), count);
      at += static_cast<off_t>(count);
    }
  }
}

/// Gone when it is unmounted.
Fd loop_device(const std::string& image, std::string& name) {
  const Fd control = open_or_give_up("/dev/loop-control", O_RDWR), file = open_or_give_up(image, O_RDWR);
  for (int tries = 0; tries < 64; ++tries) {  // another process may take the same number
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) give_up("a free loop device");
    name = "/dev/loop" + std::to_string(number);
    struct stat info {};
    if (::stat(name.c_str(), &info) != 0) (void)::mknod(name.c_str(), S_IFBLK | 0600, makedev(7, static_cast<unsigned>(number)));
    Fd device{::open(name.c_str(), O_RDWR | O_CLOEXEC)};
    loop_config config{};
    config.fd = static_cast<__u32>(file.get());
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    if (device && ::ioctl(device.get(), LOOP_CONFIGURE, &config) == 0) return device;
    if (device && errno != EBUSY) break;
  }
  give_up("a loop device for " + image);
}

bool can_be_mounted(const std::string& type) {
  std::string all;
  const Fd fd = open_or_give_up("/proc/filesystems", O_RDONLY);
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(fd.get(), buffer, sizeof buffer)) > 0;) all.append(buffer, static_cast<std::size_t>(got));
  return all.find("\t" + type + "\n") != std::string::npos;
}

void run_command(const std::string& command) {
  if (std::system((command + " >/dev/null 2>&1").c_str()) != 0) throw std::runtime_error{"failed: " + command};  // NOLINT
}

}  // namespace

std::string own_mounts() {
  if (::geteuid() != 0) return "it needs root";
  if (::access(recorder, X_OK) != 0) return std::string{recorder} + " is not there (Debian: qemu-system-common)";
  for (const char* device : {"/dev/loop-control", "/dev/fuse"})
    if (::access(device, R_OK | W_OK) != 0) return std::string{device} + " is not there";
  static const std::string refused = [] {
    if (::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0) return std::string{};
    return std::string{"no mount namespace of its own: "} + std::strerror(errno);
  }();
  return refused;
}

std::vector<FileSystem> file_systems() {
  const std::vector<FileSystem> known{
      {"ext4", "/sbin/mkfs.ext4 -q -F -b 4096", "commit=1", 24u << 20},
      {"xfs", "/sbin/mkfs.xfs -q -f", "nouuid", 300u << 20},
      {"btrfs", "/sbin/mkfs.btrfs -q -f", "commit=1", 128u << 20},
  };
  std::vector<FileSystem> all;
  for (const FileSystem& one : known)
    if (::access(one.make.substr(0, one.make.find(' ')).c_str(), X_OK) == 0 && can_be_mounted(one.type)) all.push_back(one);
  return all;
}

MountedImage::MountedImage(const std::string& image, std::string at, const std::string& type, const std::string& options)
    : at_{std::move(at)} {
  std::filesystem::create_directories(at_);
  std::string name;
  const Fd device = loop_device(image, name);
  if (::mount(name.c_str(), at_.c_str(), type.c_str(), 0, options.c_str()) != 0) give_up("mount " + image);
}

MountedImage::~MountedImage() {
  if (::umount(at_.c_str()) != 0) (void)::umount2(at_.c_str(), MNT_DETACH);
}

BlockRecorder::BlockRecorder(std::string directory, const FileSystem& what) : directory_{std::move(directory)} {
  std::filesystem::create_directories(directory_);
  const std::string data = directory_ + "/data.img", log = directory_ + "/log.img";
  make_file(data, what.bytes);
  run_command(what.make + " " + data);
  copy_sparse(data, directory_ + "/running.img");
  make_file(log, std::uint64_t{1} << 30);  // sparse
  make_file(exported(), 0);
  struct stat before {};
  if (::stat(exported().c_str(), &before) != 0) give_up("stat " + exported());
  daemon_ = std::make_unique<Job>(Job::Setting{
      // it ends with this test, also where that is killed: it holds the mounts and the loop device
      .arguments = {"--pdeathsig", "KILL", recorder, "--blockdev", "driver=file,filename=" + data + ",node-name=fd", "--blockdev",
                    "driver=raw,file=fd,node-name=rd", "--blockdev", "driver=file,filename=" + log + ",node-name=fl", "--blockdev",
                    "driver=raw,file=fl,node-name=rl", "--blockdev",
                    "driver=blklogwrites,file=rd,log=rl,node-name=lw,log-sector-size=512,log-super-update-interval=1", "--export",
                    "type=fuse,id=e0,node-name=lw,mountpoint=" + exported() + ",writable=on"},
      .environment = {},
      .program = "/usr/bin/setpriv"});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  for (struct stat now = before; now.st_dev == before.st_dev; (void)::stat(exported().c_str(), &now)) {
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error{"the recorder offers nothing: " + daemon_->output()};
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
}

BlockRecorder::~BlockRecorder() {
  if (daemon_) daemon_->signal(SIGKILL);
  (void)::umount2(exported().c_str(), MNT_DETACH);
}

std::uint64_t BlockRecorder::entries() const {
  const Fd log = open_or_give_up(directory_ + "/log.img", O_RDONLY);
  std::uint64_t head[3] = {};
  read_fully(log.get(), 0, head, sizeof head);
  return head[2];
}

void BlockRecorder::finish() {
  daemon_->signal(SIGTERM);
  if (daemon_->wait(Wait{30000}) != 0) throw std::runtime_error{"the recorder ended badly: " + daemon_->output()};
  daemon_.reset();
  read_log();
}

void BlockRecorder::read_log() {
  const Fd file = open_or_give_up(directory_ + "/log.img", O_RDONLY);
  const std::uint64_t count = entries();
  for (std::uint64_t i = 0, at = sector; i < count; ++i) {
    std::uint64_t head[4] = {};  // sector, sectors, flags, length
    read_fully(file.get(), at, head, sizeof head);
    at += sector;
    const Entry entry{head[0], head[1] * sector, head[2], at};
    if ((entry.flags & flag_discard) == 0) at += entry.bytes;
    log_.push_back(entry);
  }
}

void BlockRecorder::apply(const Entry& entry, int image) const {
  std::vector<char> data(entry.bytes);  // a discard: zeros
  if ((entry.flags & flag_discard) == 0 && entry.bytes > 0) {
    const Fd log = open_or_give_up(directory_ + "/log.img", O_RDONLY);
    read_fully(log.get(), entry.data, data.data(), data.size());
  }
  write_fully(image, entry.sector * sector, data.data(), data.size());
}

void BlockRecorder::make_state(std::uint64_t count, Rng* lossy, const std::string& image) {
  count = std::min<std::uint64_t>(count, log_.size());
  // Up to the last flush all is there, whatever the disk loses.
  std::uint64_t flushed = count;
  while (flushed > 0 && (log_[flushed - 1].flags & flag_flush) == 0) --flushed;
  const std::string running = directory_ + "/running.img";
  if (flushed < at_) throw std::runtime_error{"states are made in the order of their counts"};
  {
    const Fd fd = open_or_give_up(running, O_RDWR);
    for (; at_ < flushed; ++at_) apply(log_[at_], fd.get());
  }
  copy_sparse(running, image);
  const Fd fd = open_or_give_up(image, O_RDWR);
  for (std::uint64_t i = flushed; i < count; ++i)
    if ((log_[i].flags & flag_fua) != 0 || lossy == nullptr || lossy->chance(0.5)) apply(log_[i], fd.get());
}

}  // namespace elrun::test
