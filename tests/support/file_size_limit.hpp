#pragma once
/// \file This process may make no larger files for a while. One that grows beyond the limit ends the process by SIGXFSZ.

#include <sys/resource.h>

#include <elrun/units.hpp>

namespace elrun::test {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(Bytes most) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit lower{.rlim_cur = most.value(), .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace elrun::test
