#pragma once
/// \file What the environment says of the fake devices, read once. README.md lists the variables.

#include <cstddef>
#include <cstdint>
#include <string>

namespace fakegpu {

/// When enqueued work runs.
enum class Progress {
  seeded,  ///< The seed says how much of it runs at each call; a background thread goes on while the host makes no call.
  lazy,    ///< Only while a host thread waits for a stream, an event or a device, or asks whether they are done.
  eager,   ///< A background thread runs it at once.
};

inline constexpr int devices_max = 16;

struct Settings {
  std::uint64_t seed = 1;
  Progress progress = Progress::seeded;
  int devices = 1;                             ///< That the process sees: those of CUDA_VISIBLE_DEVICES, up to the first that is none.
  int physical[devices_max] = {};              ///< Which device of the machine each of them is.
  std::size_t memory = std::size_t{16} << 30;  ///< Of each device, in bytes. Only what is used costs memory of the host.
  int multiprocessors = 132;                   ///< Of each device: with few of them, few blocks are resident, and each has many turns.
  int contexts = devices_max;                  ///< On how many devices the process may make a context. More are reported.
  bool lost_is_quiet = false;                  ///< On a lost device cudaSetDevice and cudaGetDevice succeed.
  bool check = true;                           ///< Whether accesses are compared with each other.
  std::string report_file;                     ///< Reports are appended to it as well; empty for none.
  int report_exit = 86;                        ///< The exit code of a process with reports that nobody took.
  std::string faults;                          ///< What fails: faults.hpp.
};

[[nodiscard]] const Settings& settings();

}  // namespace fakegpu
