#include "lib/base/files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <mutex>
#include <system_error>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/mounts.hpp"

namespace elrun::inline v0 {

/// What a person hears once.
class PosixFiles::Notes {
 public:
  explicit Notes(Told told) : told_{std::move(told)} {}
  void no_direct_writes(const Path& path, int error) {
    std::call_once(once_, [&] {
      if (told_)
        told_(fmt::format(
            "the file system of {} takes no writes past the page cache (O_DIRECT: {}): they go through it, which takes more of the processor's time",
            path.parent_path().string(), std::generic_category().message(error)));
    });
  }

 private:
  const Told told_;
  std::once_flag once_;
};

namespace {

/// Another descriptor of the same file, for what goes past the page cache; none: it is not possible.
Fd open_direct(const Fd& file, const Path& path, int flags) {
  Fd fd{::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  struct stat mine {
  }, other{};
  if (!fd) return fd;
  if (::fstat(file.get(), &mine) != 0 || ::fstat(fd.get(), &other) != 0 || mine.st_dev != other.st_dev || mine.st_ino != other.st_ino) {
    errno = ESTALE;  // its name is another file's by now
    return {};
  }
  return fd;
}

/// Large writes from memory that is aligned go past the page cache: without its copy, in half of the processor's time, and a checkpoint pushes nothing out of it
/// that training reads. Whatever does not work so is written as everything else. The two never write to the same page.
class PosixWritable final : public WritableFile {
 public:
  PosixWritable(Fd fd, Path path, std::shared_ptr<PosixFiles::Notes> notes)
      : fd_{std::move(fd)}, path_{std::move(path)}, notes_{std::move(notes)} {}

  Result<void> write_at(std::uint64_t offset, ByteSpan data) override {
    ELRUN_TRY_ASSIGN(const std::size_t direct, write_directly(offset, data));
    data = data.subspan(direct);
    offset += direct;
    while (!data.empty()) {
      const ssize_t wrote = ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return from_errno(errno, "write " + path_.string());
      if (wrote == 0) return nothing_written();
      data = data.subspan(static_cast<std::size_t>(wrote));
      offset += static_cast<std::uint64_t>(wrote);
    }
    return {};
  }

  [[nodiscard]] bool likes_aligned() const override { return takes_direct_; }

  Result<void> reserve(Bytes size) override {
    // fallocate(2) itself: glibc's posix_fallocate emulates by writing where the file system cannot.
    if (size.value() == 0 || ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(size.value())) == 0) return {};
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR) return {};
    return from_errno(errno, fmt::format("reserve {} bytes for {}", size.value(), path_.string()));
  }

  Result<void> sync() override {
    if (::fsync(fd_.get()) == 0) return {};
    return from_errno(errno, "sync " + path_.string());
  }

  Result<void> close() override {
    direct_ = Fd{};
    if (::close(fd_.give_up()) == 0) return {};
    return from_errno(errno, "close " + path_.string());
  }

 private:
  /// No local file system does that. One in user space may, and it would be asked again for ever.
  [[nodiscard]] Failure nothing_written() const {
    return {Code::io, Remedy::retry, fmt::format("write {}: the file system has written nothing, and given no reason", path_.string())};
  }
  /// How many bytes of `data` it has written.
  Result<std::size_t> write_directly(std::uint64_t offset, ByteSpan data) {
    const std::size_t bytes = data.size() / direct_alignment * direct_alignment;
    if (bytes < direct_bytes_min || offset % direct_alignment != 0 ||
        reinterpret_cast<std::uintptr_t>(data.data()) % direct_alignment != 0 || !takes_direct_)
      return std::size_t{0};
    std::call_once(opened_, [this] {
      direct_ = open_direct(fd_, path_, O_WRONLY);
      if (!direct_) give_up_direct(errno);
    });
    std::size_t done = 0;
    while (takes_direct_ && done < bytes) {
      const ssize_t wrote = ::pwrite(direct_.get(), data.data() + done, bytes - done, static_cast<off_t>(offset + done));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0 && !is_about_direct(errno)) return from_errno(errno, "write " + path_.string());
      if (wrote == 0) return nothing_written();
      if (wrote < 0) give_up_direct(errno);
      else done += static_cast<std::size_t>(wrote);
      if (done % direct_alignment != 0) break;
    }
    return done;
  }
  /// What the other way may still write: of the storage's failures it is none.
  static bool is_about_direct(int error) { return error == EINVAL || error == EOPNOTSUPP || error == EFAULT || error == ENOMEM; }
  void give_up_direct(int error);

  Fd fd_;
  Path path_;
  std::shared_ptr<PosixFiles::Notes> notes_;
  std::once_flag opened_;
  Fd direct_;  // none: not tried, or not possible
  std::atomic<bool> takes_direct_{true};
};

void PosixWritable::give_up_direct(int error) {
  if (takes_direct_.exchange(false) && (error == EINVAL || error == EOPNOTSUPP)) notes_->no_direct_writes(path_, error);
}

/// Large reads into memory that is aligned go past the page cache, unless the bytes are there already: a copy and half of the processor's time
/// less. Whatever does not work so is read as everything else.
class PosixReadable final : public ReadableFile {
 public:
  PosixReadable(Fd fd, Path path) : fd_{std::move(fd)}, path_{std::move(path)} {}

  Result<std::uint64_t> size() override {
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) return from_errno(errno, "stat " + path_.string());
    return static_cast<std::uint64_t>(info.st_size);
  }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) override {
    const std::size_t direct = read_directly(offset, out);
    out = out.subspan(direct);
    offset += direct;
    while (!out.empty()) {
      const ssize_t got = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return from_errno(errno, "read " + path_.string());
      if (got == 0)
        return Failure{Code::corrupt, Remedy::fix_config,
                       fmt::format("{} ends at byte {}; {} more are missing", path_.string(), offset, out.size())};
      out = out.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return {};
  }

 private:
  static constexpr std::size_t alignment = 4096, direct_bytes_min = 64 << 10;

  /// How many bytes of `out` it has read.
  std::size_t read_directly(std::uint64_t offset, std::span<std::byte> out) {
    const std::size_t bytes = out.size() / alignment * alignment;
    if (bytes < direct_bytes_min || offset % alignment != 0 || reinterpret_cast<std::uintptr_t>(out.data()) % alignment != 0) return 0;
    std::call_once(opened_, [this] {
      direct_ = open_direct(fd_, path_, O_RDONLY);
      if (direct_) (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM);  // is_cached() must not make the kernel read ahead
    });
    if (!direct_ || is_cached(offset, out)) return 0;
    const ssize_t got = ::pread(direct_.get(), out.data(), bytes, static_cast<off_t>(offset));
    return got < 0 ? 0 : static_cast<std::size_t>(got);
  }

  /// A page of it stands for all.
  [[nodiscard]] bool is_cached(std::uint64_t offset, std::span<std::byte> out) const {
    const iovec page{out.data(), alignment};
    return ::preadv2(fd_.get(), &page, 1, static_cast<off_t>(offset), RWF_NOWAIT) == static_cast<ssize_t>(alignment);
  }

  Fd fd_;
  Path path_;
  std::once_flag opened_;
  Fd direct_;  // none: not tried, or not possible
};

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "something else";
}

/// What takes the place of a file is damage to whoever needs that file, as wrong bytes in it are.
Failure no_file(const Path& path, const char* what) {
  return {Code::corrupt, Remedy::fix_config, fmt::format("{} is {}, and should be a file", path.string(), what)};
}

Result<void> done(int rc, const char* verb, const Path& path) {
  if (rc == 0) return {};
  return from_errno(errno, fmt::format("{} {}", verb, path.string()));
}

}  // namespace

Result<void> Files::write_durably(const Path& path, ByteSpan data) {
  ELRUN_TRY_ASSIGN(auto file, create(path));
  ELRUN_TRY(file->write_at(0, data));
  ELRUN_TRY(file->sync());
  return file->close();
}

Result<ByteVector> Files::read_all(const Path& path, Bytes max) {
  ELRUN_TRY_ASSIGN(auto file, open(path));
  ELRUN_TRY_ASSIGN(const std::uint64_t size, file->size());
  if (size > max.value())
    return Failure{Code::corrupt, Remedy::fix_config,
                   fmt::format("{} has {} bytes, more than the {} that such a file can have", path.string(), size, max.value())};
  ByteVector data(size);
  ELRUN_TRY(file->read_at(0, data));
  return data;
}

Result<void> Files::make_directories(const Path& path) {
  if (path.empty() || path == path.root_path()) return {};
  auto made = make_directory(path);
  if (!made.ok() && made.failure().code == Code::not_found) {
    ELRUN_TRY(make_directories(path.parent_path()));
    made = make_directory(path);
  }
  const bool was_there = !made.ok() && made.failure().code == Code::already_exists;
  if (!made.ok() && !was_there) return made;
  auto synced = sync_directory(path.has_parent_path() ? path.parent_path() : Path{"."});
  // Whoever made it may have died before the sync. Where this user may not do it, others look after their directory.
  if (was_there && !synced.ok() && synced.failure().code != Code::io && synced.failure().code != Code::unreachable) return {};
  return synced;
}

PosixFiles::PosixFiles(Told told) : notes_{std::make_shared<Notes>(std::move(told))} {}

Result<std::unique_ptr<WritableFile>> PosixFiles::create(const Path& path) {
  Fd fd{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
  if (!fd) return from_errno(errno, "create " + path.string());
  return std::unique_ptr<WritableFile>{std::make_unique<PosixWritable>(std::move(fd), path, notes_)};
}

Result<std::unique_ptr<ReadableFile>> PosixFiles::open(const Path& path) {
  // O_NONBLOCK: a FIFO without a writer would hold the call for ever. It changes nothing for a regular file, but for one that is leased
  // (an NFS server's own client has it): that one is waited for.
  Fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (!fd && errno == EWOULDBLOCK) fd = Fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)};
  if (!fd && errno == ENXIO) return no_file(path, "a socket, or a device without a driver");
  if (!fd && errno == ELOOP) return no_file(path, "a symbolic link that leads to itself");
  if (!fd) return from_errno(errno, "open " + path.string());
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return from_errno(errno, "stat " + path.string());
  if (!S_ISREG(info.st_mode)) return no_file(path, kind_of(info.st_mode));
  return std::unique_ptr<ReadableFile>{std::make_unique<PosixReadable>(std::move(fd), path)};
}

Result<void> PosixFiles::link(const Path& from, const Path& to) { return done(::link(from.c_str(), to.c_str()), "link", to); }
Result<void> PosixFiles::rename(const Path& from, const Path& to) { return done(::rename(from.c_str(), to.c_str()), "rename to", to); }
Result<void> PosixFiles::remove_file(const Path& path) { return done(::unlink(path.c_str()), "remove", path); }
Result<void> PosixFiles::make_directory(const Path& path) { return done(::mkdir(path.c_str(), 0777), "make directory", path); }
Result<void> PosixFiles::remove_directory(const Path& path) { return done(::rmdir(path.c_str()), "remove directory", path); }

Result<std::vector<std::string>> PosixFiles::list(const Path& path) {
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return from_errno(errno, "list " + path.string());
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(directory);
  if (error != 0) return from_errno(error, "list " + path.string());
  std::sort(names.begin(), names.end());
  return names;
}

Result<void> PosixFiles::sync_directory(const Path& path) {
  const Fd fd{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!fd) return from_errno(errno, "open directory " + path.string());
  if (::fsync(fd.get()) == 0 || errno == EINVAL) return {};  // EINVAL: some network file systems sync names at once
  return from_errno(errno, "sync directory " + path.string());
}

Result<Bytes> PosixFiles::space_left(const Path& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) return from_errno(errno, "ask for the space left at " + path.string());
  return Bytes{std::uint64_t{info.f_bavail} * info.f_frsize};
}

std::string PosixFiles::missing_mount(const Path& path) {
  const auto text = [](const char* file) {
    std::ifstream in{file, std::ios::binary};  // one below /proc has no size before it is read
    std::string all(1 << 20, '\0');
    in.read(all.data(), static_cast<std::streamsize>(all.size()));
    all.resize(static_cast<std::size_t>(in.gcount()));
    return all;
  };
  const std::string mounts = text("/proc/self/mounts");
  std::error_code failed;
  const Path real = std::filesystem::weakly_canonical(path, failed);
  if (failed || mounts.empty()) return {};
  return elrun::missing_mount(real, text("/etc/fstab"), mounts);
}

}  // namespace elrun::inline v0
