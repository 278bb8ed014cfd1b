// The thread and the job's thread share nothing but a Making, whose arrays lie in host_memory(), which outlives all jobs. So the job's thread can leave it to itself when it does not need the
// arrays any more.
#include "lib/job/recover/loss_reserve.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint32_t steps_before = 3;
constexpr std::size_t touched_at_once = 16 << 20;  // meanwhile no other thread of the process maps memory; some milliseconds
constexpr auto smaller_world_lasts_after = std::chrono::minutes{1};

/// What is much larger than needed is given back: it is from a much smaller world.
bool fits(const Arena<float>& arena, std::uint64_t count) { return arena.capacity() >= count && arena.capacity() / 2 <= count; }

/// `most` of the smallest that fit. The others go to `unneeded`.
void keep_smallest(std::vector<Arena<float>>& arenas, std::uint64_t count, std::size_t most, std::vector<Arena<float>>& unneeded) {
  std::ranges::sort(arenas, {}, &Arena<float>::capacity);
  std::vector<Arena<float>> kept;
  for (Arena<float>& arena : arenas) (kept.size() < most && fits(arena, count) ? kept : unneeded).push_back(std::move(arena));
  arenas = std::move(kept);
}

std::uint64_t bytes_of(const std::vector<Arena<float>>& arenas) {
  std::uint64_t bytes = 0;
  for (const Arena<float>& arena : arenas) bytes += arena.capacity() * sizeof(float);
  return bytes;
}

void move_all(std::vector<Arena<float>>& from, std::vector<Arena<float>>& to) {
  std::ranges::move(from, std::back_inserter(to));
  from.clear();
}

}  // namespace

/// The thread's, until that is joined.
struct LossReserve::Making {
  struct Array {
    std::vector<Arena<float>>* to;
    std::uint64_t count;
    bool shared;
  };
  std::vector<Array> arrays;
  std::vector<Arena<float>> unneeded;
  std::function<std::optional<SharedBuffer>(std::uint64_t bytes)> make_shared;
  std::vector<Arena<float>> whole, received, moments;  // what has been made
  Touch touch;
  std::atomic<bool> done{false}, stopped{false}, given_up{false};

  void run() {
    unneeded.clear();  // here, for it takes as long as some steps
    try {
      for (const Array& array : arrays) {
        if (given_up) return;
        if (!array.shared || !make_shared) make_private(array);
        else if (stopped) continue;
        else if (auto shared = make_shared(array.count * sizeof(float)))
          array.to->emplace_back(array.count, std::move(shared), host_memory());
      }
    } catch (const std::bad_alloc&) {  // the loss makes what it needs
    }
    done = true;
  }
  void make_private(const Array& array) {
    const Arena<float>& made = array.to->emplace_back(Arena<float>::untouched(array.count));
    constexpr std::size_t page = 4096;  // arenas are of whole ones
    const std::size_t bytes = (made.bytes() + page - 1) / page * page;
    for (std::size_t at = 0; at < bytes && !stopped && !given_up; at += touched_at_once)
      touch({reinterpret_cast<std::byte*>(made.data()) + at, std::min(touched_at_once, bytes - at)});
  }
};

void LossReserve::begin_world(ModelState& state, std::uint32_t world) {
  const bool grew = world > made_for_;
  if (grew && making_ != nullptr && !making_->done) give_up();
  stop_making();
  await();
  if (const auto made = std::exchange(making_, nullptr)) {
    move_all(made->whole, gradients.whole);
    move_all(made->received, gradients.received);
    move_all(made->moments, state.reserved_moments());
  }
  if (grew) gradients.received.clear(), state.reserved_moments().clear();
  looked_ = false, steps_ = 0, begun_.reset(), outcome_.reset();
}

void LossReserve::stop_making() {
  if (making_ != nullptr) making_->stopped = true;
}

void LossReserve::continue_from(LossReserve& before) {
  gradients = std::exchange(before.gradients, {});
  made_for_ = before.made_for_;
}

bool LossReserve::is_due(std::uint32_t world, Instant now) {
  if (looked_ || ++steps_ < steps_before) return false;
  if (!begun_) begun_ = now;
  if (world < made_for_ && now - *begun_ < smaller_world_lasts_after) return false;
  looked_ = true, made_for_ = world;
  return true;
}

LossReserve::Prepared LossReserve::prepare(const LossNeeds& needs, ModelState& state, InUse in_use, std::uint64_t left) {
  auto making = std::make_shared<Making>();
  std::vector<Arena<float>>& moments = state.reserved_moments();
  const std::uint64_t gradient = state.layout().gradients;
  const std::size_t buffers = needs.whole_gradients - std::min(needs.whole_gradients, in_use.buffers),
                    rooms = needs.received > in_use.room ? 1 : 0, kinds = needs.moments > 0 ? state.moments() : 0;
  keep_smallest(gradients.whole, gradient, buffers, making->unneeded);
  keep_smallest(gradients.received, needs.received, rooms, making->unneeded);
  keep_smallest(moments, needs.moments, kinds, making->unneeded);
  making->arrays.insert(making->arrays.end(), buffers - gradients.whole.size(), {&making->whole, gradient, true});
  making->arrays.insert(making->arrays.end(), rooms - gradients.received.size(), {&making->received, needs.received, false});
  making->arrays.insert(making->arrays.end(), kinds - moments.size(), {&making->moments, needs.moments, false});
  std::uint64_t more = 0;
  for (const Making::Array& array : making->arrays) more += array.count * sizeof(float);
  Prepared out{.bytes = more + bytes_of(gradients.whole) + bytes_of(gradients.received) + bytes_of(moments), .refused = 0};
  const bool keeps = out.bytes >= bytes_min_ && more <= left;
  if (!keeps) {
    out = {.bytes = 0, .refused = out.bytes >= bytes_min_ ? out.bytes : 0};
    for (std::vector<Arena<float>>* const arenas : {&gradients.whole, &gradients.received, &moments}) move_all(*arenas, making->unneeded);
    making->arrays.clear();
  }
  gradients.keeps = keeps;
  state.reserve_moments(keeps);
  outcome_.reset();
  if (keeps && out.bytes > 0) outcome_ = {.bytes = out.bytes - more, .missing = more};
  if (!making->arrays.empty() || bytes_of(making->unneeded) >= bytes_min_) begin_to_make(std::move(making));
  return out;
}

std::optional<LossReserve::Outcome> LossReserve::take_outcome() {
  if (!outcome_ || (making_ != nullptr && !making_->done)) return std::nullopt;
  Outcome out = *std::exchange(outcome_, std::nullopt);
  const std::uint64_t made = making_ == nullptr ? 0 : bytes_of(making_->whole) + bytes_of(making_->received) + bytes_of(making_->moments);
  out.bytes += made, out.missing -= made;
  return out;
}

void LossReserve::begin_to_make(std::shared_ptr<Making> making) {
  making->make_shared = shared_buffers_.maker();
  making->touch = touch_;
  try {
    owner_ = ::getpid();
    thread_ = quiet_thread([making] { making->run(); });
    making_ = std::move(making);
  } catch (const std::system_error&) {  // no thread: the loss makes what it needs
  }
}

void LossReserve::give_up() {
  if (making_ == nullptr) return;
  making_->given_up = true;
  if (thread_.joinable() && ::getpid() == owner_) thread_.detach();
  join_or_leak(thread_, owner_);
  making_.reset();
}

void LossReserve::await() { join_or_leak(thread_, owner_); }

}  // namespace elrun::inline v0
