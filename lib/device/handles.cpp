#include "lib/device/handles.hpp"

#include "lib/base/assert.hpp"
#include "lib/device/current_device.hpp"
#include "lib/device/runtime.hpp"

namespace elrun::inline v0 {

CurrentDevice::CurrentDevice(Device device) {
  if (device.kind == DeviceKind::host) return;
  const int now = runtime::current_device();
  if (now == device.index) return;
  runtime::set_current_device(device.index);
  before_ = now;
}
CurrentDevice::~CurrentDevice() {
  if (before_ >= 0) runtime::set_current_device_or_ignore(before_);
}

void keep_current(Device device) {
  if (device.kind != DeviceKind::host && runtime::current_device() != device.index) runtime::set_current_device(device.index);
}

OwnedStream::OwnedStream(Device device) {
  if (device.kind == DeviceKind::host) return;
  const CurrentDevice current{device};
  stream_ = {device, runtime::make_stream()};
}
OwnedStream::~OwnedStream() {
  if (stream_.handle() != nullptr) runtime::destroy_stream(stream_.handle());
}

OwnedEvent::OwnedEvent(Device device) {
  if (device.kind == DeviceKind::host) return;
  const CurrentDevice current{device};
  event_ = {device, runtime::make_event()};
}
OwnedEvent::~OwnedEvent() {
  if (event_.handle() != nullptr) runtime::destroy_event(event_.handle());
}
void OwnedEvent::record(Stream stream) {
  ELRUN_ASSERT(event_.device() == stream.device());
  if (event_.handle() == nullptr) return;
  const CurrentDevice current{stream.device()};
  runtime::record(event_.handle(), stream);
}

void wait_in(Stream stream, Event event) {
  if (event.device().kind == DeviceKind::host) return;
  const CurrentDevice current{stream.device()};
  runtime::wait(stream, event);
}

DeviceBuffer::DeviceBuffer(Device device, std::size_t bytes) : device_{device}, bytes_{bytes} {
  ELRUN_ASSERT(device.kind == DeviceKind::cuda);
  if (bytes == 0) return;
  const CurrentDevice current{device};
  data_ = static_cast<std::byte*>(runtime::allocate(bytes));
}
DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) runtime::free(data_);
}

PinnedBuffer::PinnedBuffer(Device device, std::size_t bytes) : device_{device}, bytes_{bytes} {
  ELRUN_ASSERT(device.kind == DeviceKind::cuda);
  if (bytes == 0) return;
  const CurrentDevice current{device};
  data_ = static_cast<std::byte*>(runtime::allocate_pinned(bytes));
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) runtime::free_pinned(data_);
}

}  // namespace elrun::inline v0
