#include "kernels/cuda/errors.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

struct Row {
  int error;
  Code code;
  Remedy remedy;
  bool loses_device;
  const char* advice;
};

constexpr const char* lost = "this process has lost the device, and another process may use it";
constexpr const char* no_code =
    "this libelrun has no code for the device: build it with CMAKE_CUDA_ARCHITECTURES naming the device's compute capability";

constexpr const char* mps_is_away =
    "its MPS server did not answer: nvidia-cuda-mps-control has to run, with this process's user and CUDA_MPS_PIPE_DIRECTORY; after a failure it takes a moment";

constexpr int out_of_memory = 2;
constexpr const char* no_pinned_memory =
    "the host has no more page-locked memory: look at the machine's free memory and at the container's memory limit; less is needed by a job that exchanges less at a time (more workers, "
    "leaves in bf16)";

/// By number. What is not here is a bug in elrun or in the program.
constexpr Row rows[] = {
    {2, Code::exhausted, Remedy::exit_process, false,
     "its memory is used up: a higher stage of ZeRO, more workers or a smaller micro-batch take less; nvidia-smi shows other processes there"},
    {3, Code::io, Remedy::exit_process, false,
     "CUDA cannot start in this process; a process made by fork cannot use it after its parent did"},
    {4, Code::internal, Remedy::exit_process, false, "this process is ending"},
    {34, Code::invalid_argument, Remedy::fix_config, false,
     "the libcuda.so.1 that was found is the toolkit's stub for linking: take its folder out of LD_LIBRARY_PATH"},
    {35, Code::mismatch, Remedy::fix_config, false, nullptr},
    {36, Code::mismatch, Remedy::fix_config, false, "the driver is too old for this call: install a newer one"},
    {46, Code::refused, Remedy::exit_process, false,
     "another process uses it, and its compute mode lets only one in (nvidia-smi -q -d COMPUTE shows the mode); or it needs a reset (`dmesg` has lines with Xid)"},
    {53, Code::internal, Remedy::exit_process, true, lost},
    {98, Code::mismatch, Remedy::fix_config, false, no_code},
    {100, Code::not_found, Remedy::fix_config, false,
     "the driver shows no device: look at CUDA_VISIBLE_DEVICES, and whether the container was given any"},
    {101, Code::invalid_argument, Remedy::fix_config, false,
     "there is no such device among the visible ones: look at CUDA_VISIBLE_DEVICES"},
    {200, Code::mismatch, Remedy::fix_config, false, no_code},
    {209, Code::mismatch, Remedy::fix_config, false, no_code},
    {214, Code::io, Remedy::exit_process, true, "the device's memory has an error that it cannot mend: this process has lost the device"},
    {218, Code::mismatch, Remedy::fix_config, false, no_code},
    {220, Code::io, Remedy::exit_process, true, "the link between devices has failed: this process has lost the device"},
    {221, Code::mismatch, Remedy::fix_config, false, no_code},
    {222, Code::mismatch, Remedy::fix_config, false, no_code},
    {223, Code::mismatch, Remedy::fix_config, false, no_code},
    {226, Code::io, Remedy::exit_process, true, lost},
    {304, Code::not_permitted, Remedy::fix_config, false,
     "the system refused the driver something: look whether this user may open /dev/nvidia*"},
    {700, Code::internal, Remedy::exit_process, true, lost},
    {702, Code::internal, Remedy::exit_process, true, lost},
    {709, Code::internal, Remedy::exit_process, true, lost},
    {710, Code::internal, Remedy::exit_process, true, lost},
    {714, Code::io, Remedy::exit_process, true, lost},
    {715, Code::internal, Remedy::exit_process, true, lost},
    {716, Code::internal, Remedy::exit_process, true, lost},
    {717, Code::internal, Remedy::exit_process, true, lost},
    {718, Code::internal, Remedy::exit_process, true, lost},
    {719, Code::internal, Remedy::exit_process, true, lost},
    {721, Code::internal, Remedy::exit_process, true, lost},
    {800, Code::not_permitted, Remedy::fix_config, false, "the system does not permit it"},
    {802, Code::refused, Remedy::fix_config, false,
     "the machine is not ready for CUDA: where devices are linked by NVSwitch, nvidia-fabricmanager has to run"},
    {803, Code::mismatch, Remedy::fix_config, false,
     "the driver's module in the kernel and its libcuda.so.1 are of different versions: start the machine or the container again"},
    {804, Code::mismatch, Remedy::fix_config, false,
     "the driver is too old, and this device cannot use the compatibility package (cuda-compat): install a newer driver"},
    {805, Code::io, Remedy::exit_process, false, mps_is_away},
    {806, Code::io, Remedy::exit_process, false, mps_is_away},
    {807, Code::io, Remedy::exit_process, false, mps_is_away},
    {808, Code::exhausted, Remedy::fix_config, false,
     "the device's MPS server has as many clients as it takes: fewer workers on this device, or another one with ELRUN_DEVICE"},
    {809, Code::exhausted, Remedy::fix_config, false,
     "the device has as many connections to its MPS server as it takes: CUDA_DEVICE_MAX_CONNECTIONS gives each process fewer"},
    {810, Code::io, Remedy::exit_process, true,
     "its MPS server has ended this process's use of it, as it does with all clients when one has failed: this process has lost the device"},
    {999, Code::io, Remedy::exit_process, true, lost},
};
static_assert(std::ranges::is_sorted(rows, {}, &Row::error));

const Row* row_of(int error) {
  const auto at = std::ranges::lower_bound(rows, error, {}, &Row::error);
  return at != std::end(rows) && at->error == error ? at : nullptr;
}

/// The runtime says the same of a driver that is too old and of one that is not there.
std::string insufficient_driver(const CudaFailure& failed) {
  const std::string needs = failed.needed_version > 0 ? fmt::format("CUDA {}", cuda_version(failed.needed_version)) : "a newer one";
  if (failed.driver_version == 0)
    return "there is no NVIDIA driver here: libcuda.so.1 was not found; install the driver, or give the container the host's";
  if (failed.driver_version > 0)
    return fmt::format("the NVIDIA driver is for CUDA {} at most, and this program needs {}: install a newer driver",
                       cuda_version(failed.driver_version), needs);
  return fmt::format("the NVIDIA driver is too old or not there, and this program needs {}", needs);
}

}  // namespace

std::string cuda_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

bool loses_device(int error) {
  const Row* const row = row_of(error);
  return row != nullptr && row->loses_device;
}

Failure failure_of(const CudaFailure& failed) {
  const Row* const row = row_of(failed.error);
  std::string what = fmt::format("{} gave {} ({})", failed.call, failed.name, failed.text);
  if (failed.device >= 0) what += fmt::format(" on device {}", failed.device);
  if (!failed.place.empty()) what += " at " + failed.place;
  if (row == nullptr) return {.code = Code::internal, .remedy = Remedy::exit_process, .what = std::move(what)};
  if (failed.error == out_of_memory && failed.call.starts_with("cudaHostAlloc")) what += fmt::format(": {}", no_pinned_memory);
  else what += ": " + (row->advice != nullptr ? std::string{row->advice} : insufficient_driver(failed));
  return {.code = row->code, .remedy = row->remedy, .what = std::move(what)};
}

}  // namespace elrun::inline v0
