#pragma once
/// \file What the environment says of the fake NCCL, read once. README.md lists the variables.

#include <cstdint>
#include <string>

namespace fakenccl {

struct Settings {
  int version;            ///< As ncclGetVersion says it.
  std::string folder;     ///< Where the files are through which processes meet.
  std::uint64_t slot;     ///< Bytes between two ranks at a time. Only what is used costs memory.
  std::uint64_t buffer;   ///< A send of no more than these bytes is over without its receive.
  long abort_ms = 0;      ///< An abort takes this much longer; negative: it never returns.
  std::uint64_t kill_at;  ///< This process kills itself when its n-th operation starts on a device; 0: never.
  std::uint64_t fail_at;  ///< The n-th call of this process gives `failure`; 0: none.
  int failure = 0;        ///< An ncclResult_t.
};

[[nodiscard]] const Settings& settings();

}  // namespace fakenccl
