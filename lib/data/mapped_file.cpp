#include "lib/data/mapped_file.hpp"

#include <cerrno>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"

namespace elrun::inline v0 {

Result<MappedFile> MappedFile::open(const std::string& path, const std::string& remedy) {
  const auto failed = [&](const char* what) {
    Failure failure = from_errno(errno, fmt::format("'{}' {}", path, what));
    failure.remedy = Remedy::fix_config;
    failure.what += "; " + remedy;
    return failure;
  };
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // a pipe is refused, not waited for
  if (file.get() < 0) return failed("cannot be opened");
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return failed("cannot be read");
  if (!S_ISREG(status.st_mode)) return invalid(fmt::format("'{}' is not a regular file; {}", path, remedy));
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return MappedFile{ByteSpan{}};
  void* const memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) return failed("cannot be mapped");
  return MappedFile{{static_cast<const std::byte*>(memory), size}};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace elrun::inline v0
