#include "lib/comm/shm/buffer_registry.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lib/base/pass_descriptors.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t shared_least = 64 << 10;  // below, a slot is as quick, and nobody has to wait for its readers
constexpr std::size_t shared_max = 1024;        // buffers, in one group

/// What goes with the descriptor of a buffer that is shared.
struct Shown {
  std::uint64_t number = 0, size = 0;
};

}  // namespace

Result<void> OwnBuffers::share(const std::shared_ptr<const void>& owner, const SharedMemory& memory,
                               const std::function<Result<void>(std::span<const std::byte> words, int file)>& show) {
  std::erase_if(buffers_, [](const Buffer& each) { return each.owner.expired(); });
  if (std::ranges::any_of(buffers_, [&](const Buffer& each) { return each.owner.lock() == owner; })) return {};
  if (shown_ == shared_max)
    return Failure{.code = Code::exhausted,
                   .remedy = Remedy::fix_config,
                   .what = fmt::format("{} buffers were shared with this group already, which is the limit", shared_max)};
  ELRUN_TRY_ASSIGN(const Fd file, memory.for_reading());
  const Shown words{.number = ++shown_, .size = memory.size()};
  ELRUN_TRY(show(std::as_bytes(std::span{&words, 1}), file.get()));
  shown_bytes_ = Bytes{shown_bytes_.value() + memory.size()};
  buffers_.push_back({.number = words.number, .begin = memory.data(), .size = memory.size(), .owner = owner});
  return {};
}

std::optional<BufferPlace> OwnBuffers::place_of(std::span<const std::byte> piece) const {
  if (piece.size() < shared_least) return std::nullopt;
  for (const Buffer& each : buffers_) {
    const bool inside = each.begin <= piece.data() && piece.data() + piece.size() <= each.begin + each.size;
    if (inside && !each.owner.expired()) return BufferPlace{each.number, static_cast<std::uint64_t>(piece.data() - each.begin)};
  }
  return std::nullopt;
}

Result<const SharedMemory*> PeerBuffers::find(std::uint64_t number) {
  do {
    const auto known = std::ranges::find(views_, number, &View::number);
    if (known != views_.end()) return &known->memory;
  } while (take());
  if (lost_) return *lost_;
  return Failure{.code = Code::protocol,
                 .remedy = Remedy::abort_group,
                 .what = fmt::format("rank {} posted a chunk of a buffer that it has not shown", whose_.value()),
                 .peer = whose_};
}

void PeerBuffers::take_all() {
  // What is taken while no descriptor is free is lost, so it is left where it waits.
  const auto is_one_free = [&] { return static_cast<bool>(Fd{::fcntl(post_.get(), F_DUPFD_CLOEXEC, 0)}); };
  while (is_one_free() && take()) continue;
}

Bytes PeerBuffers::mapped() const {
  std::uint64_t bytes = 0;
  for (const View& each : views_) bytes += each.memory.size();
  return Bytes{bytes};
}

void PeerBuffers::close() noexcept {
  post_ = Fd{};
  for (const View& each : views_) each.memory.leave_out_of_children();
}

bool PeerBuffers::take() {
  Shown words;
  std::array<Fd, 1> file;
  const auto came = receive_with(post_.get(), std::as_writable_bytes(std::span{&words, 1}), file);
  if (!came.ok() && came.failure().code == Code::exhausted) lost_ = came.failure();
  if (!came.ok() || !file[0] || views_.size() == shared_max) return false;
  // Of a large buffer a rank reads its own part, as a rule, and there is a view of it for each peer: entries of page tables for all of it cost more than copying what is read. And one that
  // is passed over may be gone already.
  auto view = SharedMemory::view(std::move(file[0]), Bytes{words.size}, SharedMemory::Pages::when_read);
  if (view.ok()) {
    views_.push_back({words.number, std::move(*view)});
  } else {
    lost_ = std::move(view).failure();
    lost_->what = fmt::format("a buffer that rank {} shares: {}", whose_.value(), lost_->what);
    lost_->peer = whose_;
  }
  return true;
}

}  // namespace elrun::inline v0
