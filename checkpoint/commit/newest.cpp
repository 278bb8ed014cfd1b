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

Result<std::string> newest_told(Store& store, Deadline deadline) {
  ELRUN_TRY_ASSIGN(const std::uint64_t keys, store.num_keys(newest_checkpoint_key, deadline));
  if (keys == 0) return std::string{};
  ELRUN_TRY_ASSIGN(const Store::Value value, store.get(newest_checkpoint_key, deadline));
  return std::string{as_text(value)};
}

}  // namespace elrun::inline v0
