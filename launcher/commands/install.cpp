// Each of the two names is made under another one first and then renamed, so that a container that starts meanwhile finds
// the old file or the new one, never a part.
#include "launcher/commands/install.hpp"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "launcher/output/print_out.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr const char* own_program = "/proc/self/exe";
constexpr const char* launcher_name = "elrun";

// Removes what was begun and not finished.
struct Unfinished {
  Path path;
  bool is_finished = false;
  ~Unfinished() {
    if (!is_finished) (void)::unlink(path.c_str());
  }
};

// Removes a folder once it is empty.
struct OwnFolder {
  Path path;
  ~OwnFolder() { (void)::rmdir(path.c_str()); }
};

Result<void> copy_itself(const Path& to) {
  const Fd own{::open(own_program, O_RDONLY | O_CLOEXEC)};
  struct stat info {};
  if (!own || ::fstat(own.get(), &info) != 0) return from_errno(errno, fmt::format("read {}", own_program));
  std::string name = (to.parent_path() / ".elrun-XXXXXX").native();
  Fd copy{::mkostemp(name.data(), O_CLOEXEC)};
  if (!copy) return from_errno(errno, fmt::format("make a file in {}", to.parent_path().native()));
  Unfinished part{name};
  for (off_t done = 0; done < info.st_size;) {
    const ssize_t count = ::sendfile(copy.get(), own.get(), &done, static_cast<std::size_t>(info.st_size - done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return from_errno(count == 0 ? EIO : errno, fmt::format("write {}", name));
  }
  if (::fchmod(copy.get(), 0755) != 0 || ::fsync(copy.get()) != 0) return from_errno(errno, fmt::format("write {}", name));
  copy = Fd{};  // a program that is open for writing cannot be executed
  if (::rename(name.c_str(), to.c_str()) != 0) return from_errno(errno, fmt::format("make {}", to.native()));
  part.is_finished = true;
  return {};
}

Result<void> link_torchrun(const Path& directory) {
  const Path to = directory / "torchrun";
  std::string folder = (directory / ".torchrun-XXXXXX").native();  // several pods may install here at a time
  if (::mkdtemp(folder.data()) == nullptr) return from_errno(errno, fmt::format("make a directory in {}", directory.native()));
  const OwnFolder own{folder};
  Unfinished part{Path{folder} / "torchrun"};
  if (::symlink(launcher_name, part.path.c_str()) != 0) return from_errno(errno, fmt::format("make a link in {}", directory.native()));
  if (::rename(part.path.c_str(), to.c_str()) != 0) return from_errno(errno, fmt::format("make {}", to.native()));
  part.is_finished = true;
  return {};
}

Result<void> refuse_foreign_torchrun(const Path& directory) {
  std::error_code error;
  const Path torchrun = directory / "torchrun";
  if (!std::filesystem::exists(std::filesystem::symlink_status(torchrun, error))) return {};
  if (std::filesystem::read_symlink(torchrun, error) == Path{launcher_name}) return {};
  return Failure{Code::already_exists, Remedy::fix_config,
                 fmt::format("{} is there and is not elrun's; --force replaces it", torchrun.native())};
}

Result<void> install(const InstallOptions& options) {
  const Path directory{options.directory};
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return from_errno(error.value(), fmt::format("make {}", directory.native()));
  if (!options.replaces_foreign) ELRUN_TRY(refuse_foreign_torchrun(directory));
  ELRUN_TRY(copy_itself(directory / launcher_name));
  return link_torchrun(directory);
}

// The loader that a program with shared libraries is started by is mapped beside it.
bool needs_libraries() { return ::getauxval(AT_BASE) != 0; }

}  // namespace

int run_install(const InstallOptions& options) {
  if (const auto installed = install(options); !installed.ok()) {
    fmt::print(stderr, "elrun: install: {}\n", message(installed.failure()));
    return exit_code::contradiction;
  }
  print_out(fmt::format("{0}/elrun and {0}/torchrun are there\n", options.directory));
  struct statvfs where {};
  if (::statvfs(options.directory.c_str(), &where) == 0 && (where.f_flag & ST_NOEXEC) != 0)
    fmt::print(stderr, "elrun: install: warning: {} is mounted noexec, so nothing can be started from it here\n", options.directory);
  if (needs_libraries())
    fmt::print(
        stderr,
        "elrun: install: warning: this elrun needs shared libraries (gRPC among them), which the image that gets it must have as well; "
        "install elrun_static, which needs none: elrun_static install {}\n",
        options.directory);
  return 0;
}

}  // namespace elrun::inline v0::launcher
