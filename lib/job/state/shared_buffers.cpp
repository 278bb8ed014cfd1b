#include "lib/job/state/shared_buffers.hpp"

#include <sys/mman.h>

#include <utility>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

/// Where the system refuses it (it never has), the rule for a child is as for weights: it must not write there.
void hide_from_children(const SharedBuffer& made) { (void)::madvise(made.bytes().data(), made.bytes().size(), MADV_DONTFORK); }

}  // namespace

std::optional<SharedBuffer> SharedBuffers::make(std::uint64_t bytes, InChildren in_children) {
  if (!make_ || bytes == 0 || !on_host()) return std::nullopt;
  auto made = make_(Bytes{bytes});
  if (!made.ok()) {
    tell_once(made.failure());
    return std::nullopt;
  }
  if (in_children == InChildren::absent) hide_from_children(*made);
  return std::move(made).value();
}

std::function<std::optional<SharedBuffer>(std::uint64_t bytes)> SharedBuffers::maker() const {
  if (!make_ || !on_host()) return {};
  return [make = make_](std::uint64_t bytes) -> std::optional<SharedBuffer> {
    auto made = make(Bytes{bytes});
    if (!made.ok()) return std::nullopt;
    hide_from_children(*made);
    return std::move(made).value();
  };
}

void SharedBuffers::show(JobWorld& world, const std::optional<SharedBuffer>& memory) {
  if (!memory) return;
  if (const auto shown = world.share(*memory); !shown.ok() && !world.over()) tell_once(shown.failure());
}

void SharedBuffers::tell_once(const Failure& why) {
  if (std::exchange(told_, true)) return;
  log_.warning(fmt::format(
      "other workers of this host cannot read this one's memory where it lies, so what it sends is copied once more: {}", why.what));
}

}  // namespace elrun::inline v0
