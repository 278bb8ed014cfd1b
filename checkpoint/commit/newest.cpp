#include "checkpoint/commit/newest.hpp"

#include <fmt/format.h>

#include "checkpoint/format/records.hpp"
#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {
namespace {

constexpr int tries_max = 8;  // each is lost to another acknowledgement of this job that came in between

}  // namespace

Result<void> tell_newest(Store& store, const std::string& acknowledgement, Deadline deadline) {
  for (int tries = 0; tries < tries_max; ++tries) {
    ELRUN_TRY_ASSIGN(const std::uint64_t count, store.num_keys(newest_checkpoint_key, deadline));
    Store::Value held;
    if (count > 0) {
      ELRUN_TRY_ASSIGN(held, store.get(newest_checkpoint_key, deadline));
    }
    if (was_acknowledged_before(acknowledgement, as_text(held))) return {};
    ELRUN_TRY_ASSIGN(const Store::Value now, store.compare_set(newest_checkpoint_key, held, as_bytes(acknowledgement), deadline));
    if (as_text(now) == acknowledgement) return {};
  }
  return Failure{Code::exhausted, Remedy::retry, fmt::format("{} changed {} times in the job's store", newest_checkpoint_key, tries_max)};
}

}  // namespace elrun::inline v0
