// Preloaded into a program, it makes the n-th operation below a directory fail, once or from then on, or stops the process before it. It sees what a program asks the
// C library for, so it tests what stands between `Files` and the system as well, and programs as they are.
//
//   ELRUN_FAIL_BELOW=/root  ELRUN_FAIL="N ERRNO once|always"   N = 0: none fails; ERRNO = -1: it never returns, as on a network mount without its server;
//                                                          ERRNO = -2: the process stops itself (SIGSTOP), and does it when somebody sends SIGCONT;
//                                                          ERRNO = 0: of writes alone, and they write nothing, as a file system in user space may
//   ELRUN_FAIL_UNTIL=/file  once this file exists nothing fails any more, and what hung goes on
//   ELRUN_FAIL_COUNT=/file  the number of operations, as text, when the process ends
//   ELRUN_FAIL_PIPES=N      the first N calls of pipe2 find no descriptor left (EMFILE); of this process alone
//   ELRUN_FAIL_TRACE=/file  each operation, before it is done, as a line "N CALL PATH"; PATH is that of a socket, too
//
// ENOSPC counts and meets only what takes space. Words to and from a socket below the directory are operations as well.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define ELRUN_INTERPOSED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int descriptors_max = 1024;
constexpr int hangs = -1, stops = -2;  // in place of an errno
constexpr std::size_t name_max = 512;  // of what the trace tells of a path

struct Plan {
  char below[4096] = {};
  std::size_t length = 0;
  long at = 0;
  int error = 0;
  bool always = false;
};

const Plan& plan() {
  static const Plan read = [] {
    Plan p;
    const char *below = std::getenv("ELRUN_FAIL_BELOW"), *what = std::getenv("ELRUN_FAIL");
    if (below == nullptr || what == nullptr || std::strlen(below) >= sizeof p.below) return p;
    std::strcpy(p.below, below);
    p.length = std::strlen(below);
    char how[16] = {};
    if (std::sscanf(what, "%ld %d %15s", &p.at, &p.error, how) != 3) std::abort();
    p.always = std::strcmp(how, "always") == 0;
    return p;
  }();
  return read;
}

std::atomic<bool> is_below[descriptors_max];
char names[descriptors_max][name_max];  // of these; empty where there is no trace
std::atomic<long> operations{0};

bool concerns(const char* path) {
  const Plan& p = plan();
  return p.length > 0 && path != nullptr && std::strncmp(path, p.below, p.length) == 0 && (path[p.length] == '/' || path[p.length] == 0);
}
bool concerns(int fd) { return fd >= 0 && fd < descriptors_max && is_below[fd]; }

/// The descriptor is of `path` now.
void opened_as(int fd, const char* path) {
  if (fd < 0 || fd >= descriptors_max) return;
  (void)std::snprintf(names[fd], name_max, "%s", path);
  is_below[fd] = true;
}

/// Whole lines, also of several threads.
void trace(long number, const char* call, const char* path) {
  static const char* const where = std::getenv("ELRUN_FAIL_TRACE");
  if (where == nullptr) return;
  using Open = int(const char*, int, ...);
  static auto* const real_open = reinterpret_cast<Open*>(::dlsym(RTLD_NEXT, "open"));
  static const int file = real_open(where, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  char line[name_max + 64];
  const int length = std::snprintf(line, sizeof line, "%ld %s %s\n", number, call, path);
  [[maybe_unused]] const ssize_t ignored = ::write(file, line, static_cast<std::size_t>(length));
}

bool has_healed() {
  static const char* const until = std::getenv("ELRUN_FAIL_UNTIL");
  return until != nullptr && ::access(until, F_OK) == 0;
}

/// What a write returns that `fails`.
ssize_t failed_write() { return plan().error == 0 ? 0 : -1; }

enum class Kind { takes_space, writes, neither };

/// Whether this operation fails; errno says how.
bool fails(const char* call, const char* path, Kind kind) {
  const Plan& p = plan();
  if (p.error == ENOSPC && kind == Kind::neither) return false;
  if (p.error == 0 && kind != Kind::writes) return false;
  const long now = ++operations;
  trace(now, call, path);
  if (p.at == 0 || now < p.at || (now > p.at && !p.always) || has_healed()) return false;
  if (p.error == stops) return ::raise(SIGSTOP), false;
  if (p.error == hangs) std::fputs("failing_storage: an operation hangs\n", stderr);
  while (p.error == hangs)
    if (::usleep(20'000); has_healed()) return false;
  errno = p.error;
  return true;
}

bool fails(const char* call, int fd, Kind kind) { return fails(call, names[fd], kind); }

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

int opened(const char* name, const char* path, int flags, mode_t mode) {
  const bool is_ours = concerns(path);
  if (is_ours && fails((flags & O_CREAT) != 0 ? "create" : "open", path, (flags & O_CREAT) != 0 ? Kind::takes_space : Kind::neither))
    return -1;
  const int fd = next<int(const char*, int, ...)>(name)(path, flags, mode);
  if (is_ours) opened_as(fd, path);
  else if (fd >= 0 && fd < descriptors_max) is_below[fd] = false;
  return fd;
}

struct Counted {
  ~Counted() {
    const char* where = std::getenv("ELRUN_FAIL_COUNT");
    if (where == nullptr) return;
    if (std::FILE* file = std::fopen(where, "w"); file != nullptr) {
      std::fprintf(file, "%ld\n", operations.load());
      std::fclose(file);
    }
  }
} const counted;

}  // namespace

ELRUN_INTERPOSED int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return opened("open", path, flags, mode);
}
ELRUN_INTERPOSED int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return opened("open64", path, flags, mode);
}
ELRUN_INTERPOSED int pipe2(int* ends, int flags) noexcept {
  static std::atomic<long> left = [] {
    const char* const pipes = std::getenv("ELRUN_FAIL_PIPES");
    return pipes == nullptr ? 0 : std::strtol(pipes, nullptr, 10);
  }();
  if (left-- > 0) return errno = EMFILE, -1;
  return next<int(int*, int)>("pipe2")(ends, flags);
}
ELRUN_INTERPOSED DIR* opendir(const char* path) {
  if (concerns(path) && fails("list", path, Kind::neither)) return nullptr;
  return next<DIR*(const char*)>("opendir")(path);
}
ELRUN_INTERPOSED ssize_t pread(int fd, void* out, size_t count, off_t at) {
  if (concerns(fd) && fails("read", fd, Kind::neither)) return -1;
  return next<ssize_t(int, void*, size_t, off_t)>("pread")(fd, out, count, at);
}
ELRUN_INTERPOSED ssize_t pread64(int fd, void* out, size_t count, off_t at) {
  if (concerns(fd) && fails("read", fd, Kind::neither)) return -1;
  return next<ssize_t(int, void*, size_t, off_t)>("pread64")(fd, out, count, at);
}
ELRUN_INTERPOSED ssize_t pwrite(int fd, const void* data, size_t count, off_t at) {
  if (concerns(fd) && fails("write", fd, Kind::writes)) return failed_write();
  return next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, data, count, at);
}
ELRUN_INTERPOSED ssize_t pwrite64(int fd, const void* data, size_t count, off_t at) {
  if (concerns(fd) && fails("write", fd, Kind::writes)) return failed_write();
  return next<ssize_t(int, const void*, size_t, off_t)>("pwrite64")(fd, data, count, at);
}
ELRUN_INTERPOSED int fallocate(int fd, int mode, off_t at, off_t count) {
  if (concerns(fd) && fails("reserve", fd, Kind::takes_space)) return -1;
  return next<int(int, int, off_t, off_t)>("fallocate")(fd, mode, at, count);
}
ELRUN_INTERPOSED int fallocate64(int fd, int mode, off_t at, off_t count) {
  if (concerns(fd) && fails("reserve", fd, Kind::takes_space)) return -1;
  return next<int(int, int, off_t, off_t)>("fallocate64")(fd, mode, at, count);
}
ELRUN_INTERPOSED int fsync(int fd) {
  if (concerns(fd) && fails("sync", fd, Kind::takes_space)) return -1;
  return next<int(int)>("fsync")(fd);
}
ELRUN_INTERPOSED int close(int fd) {
  const bool bad = concerns(fd) && fails("close", fd, Kind::takes_space);
  const int error = errno;
  if (fd >= 0 && fd < descriptors_max) is_below[fd] = false;
  const int closed = next<int(int)>("close")(fd);
  if (!bad) return closed;
  errno = error;
  return -1;
}
ELRUN_INTERPOSED int link(const char* from, const char* to) noexcept {
  if (concerns(to) && fails("link", to, Kind::takes_space)) return -1;
  return next<int(const char*, const char*)>("link")(from, to);
}
ELRUN_INTERPOSED int rename(const char* from, const char* to) noexcept {
  if (concerns(to) && fails("rename", to, Kind::takes_space)) return -1;
  return next<int(const char*, const char*)>("rename")(from, to);
}
ELRUN_INTERPOSED int unlink(const char* path) noexcept {
  if (concerns(path) && fails("remove", path, Kind::neither)) return -1;
  return next<int(const char*)>("unlink")(path);
}
ELRUN_INTERPOSED int mkdir(const char* path, mode_t mode) noexcept {
  if (concerns(path) && fails("mkdir", path, Kind::takes_space)) return -1;
  return next<int(const char*, mode_t)>("mkdir")(path, mode);
}
ELRUN_INTERPOSED char* mkdtemp(char* name) noexcept {
  if (concerns(name) && fails("mkdtemp", name, Kind::takes_space)) return nullptr;
  return next<char*(char*)>("mkdtemp")(name);
}
ELRUN_INTERPOSED int mkostemp(char* name, int flags) {
  if (concerns(name) && fails("mkostemp", name, Kind::takes_space)) return -1;
  return next<int(char*, int)>("mkostemp")(name, flags);
}
ELRUN_INTERPOSED int rmdir(const char* path) noexcept {
  if (concerns(path) && fails("rmdir", path, Kind::neither)) return -1;
  return next<int(const char*)>("rmdir")(path);
}
ELRUN_INTERPOSED int connect(int fd, const sockaddr* address, socklen_t size) {
  const char* const path =
      address != nullptr && address->sa_family == AF_UNIX ? reinterpret_cast<const sockaddr_un*>(address)->sun_path : nullptr;
  const bool is_ours = size > sizeof(sa_family_t) && concerns(path);
  if (is_ours && fails("connect", path, Kind::neither)) return -1;
  if (is_ours) opened_as(fd, path);
  return next<int(int, const sockaddr*, socklen_t)>("connect")(fd, address, size);
}
ELRUN_INTERPOSED ssize_t send(int fd, const void* data, size_t count, int flags) {
  if (concerns(fd) && fails("send", fd, Kind::neither)) return -1;
  return next<ssize_t(int, const void*, size_t, int)>("send")(fd, data, count, flags);
}
ELRUN_INTERPOSED ssize_t recv(int fd, void* out, size_t count, int flags) {
  if (concerns(fd) && fails("receive", fd, Kind::neither)) return -1;
  return next<ssize_t(int, void*, size_t, int)>("recv")(fd, out, count, flags);
}
