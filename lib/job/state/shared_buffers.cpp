#include "lib/job/state/shared_buffers.hpp"

#include <utility>

#include <fmt/format.h>

namespace elrun::inline v0 {

std::optional<SharedBuffer> SharedBuffers::make(std::uint64_t bytes) {
  if (!make_ || bytes == 0 || !on_host()) return std::nullopt;
  auto made = make_(Bytes{bytes});
  if (made.ok()) return std::move(made).value();
  tell_once(made.failure());
  return std::nullopt;
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
