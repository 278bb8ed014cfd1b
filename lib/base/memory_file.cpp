#include "lib/base/memory_file.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr unsigned noexec_seal = 0x0008;  // MFD_NOEXEC_SEAL, which older headers lack

}  // namespace

Result<Fd> memory_file(const char* name, Bytes size) {
  if (rlimit limit{}; ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size.value() > limit.rlim_cur)
    return from_errno(EFBIG,
                      fmt::format("make a memory file of {} bytes where the limit of file sizes is {} (raise it: ulimit -f unlimited)",
                                  size.value(), limit.rlim_cur));
  // A hardened system (vm.memfd_noexec=2) refuses one that could be executed. Before Linux 6.3 the flag is not known.
  Fd file{::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | noexec_seal)};
  if (!file && errno == EINVAL) file = Fd{::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!file) return from_errno(errno, "make a memory file");
  return file;
}

}  // namespace elrun::inline v0
