#include "tests/fakegpu/runtime/streams.hpp"

#include <unistd.h>

#include <algorithm>

#include "tests/fakegpu/runtime/settings.hpp"

namespace fakegpu {
namespace {

/// cudaStreamPerThread: made when a thread first uses it on a device, and kept.
Stream*& of_this_thread(int device) {
  thread_local Stream* streams[devices_max] = {};
  return streams[device];
}

}  // namespace

Event::~Event() {
  if (file >= 0) close(file);
}

std::shared_ptr<Recording> Event::last_recording() const {
  if (shared == nullptr || shared->recorded == 0) return latest;
  if (latest != nullptr && latest->number == shared->recorded) return latest;
  auto of_another = std::make_shared<Recording>();
  of_another->shared = shared;
  of_another->number = shared->recorded;
  return of_another;
}

std::string Stream::name() const {
  const std::string what = legacy ? "the legacy stream" : "stream " + std::to_string(number);
  return what + " (device " + std::to_string(device) + ")";
}

Stream& Streams::add(int device, unsigned flags, int priority, bool legacy) {
  auto stream = std::make_unique<Stream>();
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority;
  stream->legacy = legacy;
  if (!legacy) stream->number = ++numbered_;
  if (former_.empty()) {
    stream->actor = actors_++;
  } else {  // what the former stream did counts as having happened before; what the new one does is told from it by its number
    stream->actor = former_.back().actor;
    stream->clock.set(stream->actor, former_.back().operations);
    former_.pop_back();
  }
  all_.push_back(std::move(stream));
  return *all_.back();
}

Stream& Streams::create(int device, unsigned flags, int priority) {
  ++created_;
  return add(device, flags, priority, false);
}

Stream& Streams::legacy(int device) {
  if (legacy_.empty()) legacy_.resize(devices_max);
  Stream*& stream = legacy_[static_cast<std::size_t>(device)];
  if (stream == nullptr) stream = &add(device, cudaStreamDefault, 0, true);
  return *stream;
}

Stream* Streams::find(cudaStream_t handle, int device) {
  if (handle == nullptr || handle == cudaStreamLegacy) return &legacy(device);
  if (handle == cudaStreamPerThread) {
    Stream*& mine = of_this_thread(device);
    if (mine == nullptr) mine = &add(device, cudaStreamDefault, 0, false);
    mine->of_thread = true;
    return mine;
  }
  const auto* wanted = reinterpret_cast<const Stream*>(handle);
  const auto found = std::ranges::find_if(all_, [&](const auto& s) { return s.get() == wanted && !s->destroyed; });
  return found == all_.end() ? nullptr : found->get();
}

void Streams::destroy(Stream& stream) {
  stream.destroyed = true;
  --created_;
  sweep();
}

void Streams::sweep() {
  std::erase_if(all_, [&](const auto& s) {
    if (!s->destroyed || !s->queue.empty() || s->done != s->pushed) return false;
    former_.push_back({s->actor, s->clock.at(s->actor)});
    return true;
  });
}

void Streams::drop_all_of(int device) {
  for (const auto& stream : all_) {
    if (stream->device != device) continue;
    for (const Operation& operation : stream->queue) {
      if (operation.ticket != nullptr) operation.ticket->over = true;
      if (operation.kind == Operation::Kind::record) operation.recording->done = true;  // another device's stream may wait for it
    }
    stream->done += stream->queue.size();
    stream->queue.clear();
    if (stream->legacy || stream->of_thread || stream->destroyed) continue;
    stream->destroyed = true;
    --created_;
  }
  sweep();
  std::erase_if(events_, [&](const auto& e) { return e.second->device == device; });
}

cudaEvent_t Streams::create_event(int device, unsigned flags) {
  auto event = std::make_unique<Event>();
  event->device = device;
  event->flags = flags;
  if ((flags & cudaEventInterprocess) != 0) event->shared = Ipc::make_event(event->file);
  const auto handle = reinterpret_cast<cudaEvent_t>(event.get());
  events_.emplace(handle, std::move(event));
  return handle;
}

Event* Streams::find_event(cudaEvent_t handle) {
  const auto found = events_.find(handle);
  return found == events_.end() ? nullptr : found->second.get();
}

void Streams::destroy_event(cudaEvent_t handle) { events_.erase(handle); }

}  // namespace fakegpu
