#include "checkpoint/commit/newest.hpp"

#include "checkpoint/commit/store_change.hpp"
#include "checkpoint/format/records.hpp"
#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

Result<void> tell_newest(Store& store, const std::string& acknowledgement, Deadline deadline) {
  const auto next = [&](ByteSpan held) -> std::optional<ByteVector> {
    if (was_acknowledged_before(acknowledgement, as_text(held))) return {};
    const auto bytes = as_bytes(acknowledgement);
    return ByteVector{bytes.begin(), bytes.end()};
  };
  return change_key(store, newest_checkpoint_key, next, deadline);
}

}  // namespace elrun::inline v0
