#include "lib/job/state/shared_buffers.hpp"

#include <sys/mman.h>

#include <utility>

#include <fmt/format.h>

namespace elrun::inline v0 {

std::optional<SharedBuffer> SharedBuffers::make(std::uint64_t bytes, InChildren in_children) {
  if (!make_ || bytes == 0 || !on_host()) return std::nullopt;
  auto made = make_(Bytes{bytes});
  if (!made.ok()) {
    tell_once(made.failure());
    return std::nullopt;
  }
  // Where the system refuses it (it never has), the rule for a child is as for weights: it must not write there.
  if (in_children == InChildren::absent) (void)::madvise(made->bytes().data(), made->bytes().size(), MADV_DONTFORK);
  return std::move(made).value();
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
