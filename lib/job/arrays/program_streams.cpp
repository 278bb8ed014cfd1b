#include "lib/job/arrays/program_streams.hpp"

#include <cstring>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"
#include "lib/device/current_device.hpp"
#include "lib/device/default_stream.hpp"
#include "lib/device/runtime.hpp"

namespace elrun::inline v0 {
namespace {

std::string name_of(Stream stream) {
  const Device of = stream.device();
  if (of.kind == DeviceKind::host) return "the host's program order";
  const char* const unmade = default_stream(stream);
  return fmt::format("{} of cuda:{}", unmade == nullptr ? "a stream" : unmade, of.index);
}

}  // namespace

Stream ProgramStreams::checked(Stream wanted) const {
  if (wanted.device().kind == DeviceKind::host) return jobs_;
  if (wanted.device() == jobs_.device() && default_stream(wanted) == nullptr) return wanted;
  throw Error{invalid(fmt::format(
      "the job works in {}, and the program names {}: use job.stream(), or a stream that it has made on job.device() (cudaStreamCreateWithFlags)",
      name_of(jobs_), name_of(wanted)))};
}

void ProgramStreams::order(Stream before, Stream after) {
  if (before.handle() == after.handle()) return;
  event_.record(before);
  wait_in(after, event_.view());
}

DeviceLosses::DeviceLosses(Device device, std::size_t count, const Clock& clock)
    : memory_{device, clock}, words_{memory_.take(count * sizeof(float))} {
  ELRUN_ASSERT(words_.size() == count * sizeof(float));
}

void DeviceLosses::fetch(std::size_t place, DeviceScalar loss, ProgramStreams& streams) {
  const CurrentDevice current{streams.jobs().device()};
  runtime::copy_async(std::as_bytes(std::span{loss.pointer, 1}), words_.subspan(place * sizeof(float), sizeof(float)), loss.stream);
  streams.end(loss.stream);
  memory_.record(streams.jobs());
}

float DeviceLosses::at(std::size_t place) const {
  float out;
  std::memcpy(&out, words_.data() + place * sizeof(float), sizeof out);
  return out;
}

}  // namespace elrun::inline v0
