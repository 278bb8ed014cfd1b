#include "checkpoint/commit/store_change.hpp"

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

constexpr int tries_max = 8;  // each is lost to another change of this job that came in between

}  // namespace

Result<void> change_key(Store& store, std::string_view key, const std::function<std::optional<ByteVector>(ByteSpan held)>& next,
                        Deadline deadline) {
  for (int tries = 0; tries < tries_max; ++tries) {
    ELRUN_TRY_ASSIGN(const std::uint64_t count, store.num_keys(key, deadline));
    Store::Value held;
    if (count > 0) {
      ELRUN_TRY_ASSIGN(held, store.get(key, deadline));
    }
    const auto wanted = next(held);
    if (!wanted) return {};
    ELRUN_TRY_ASSIGN(const Store::Value now, store.compare_set(key, held, *wanted, deadline));
    if (now == *wanted) return {};
  }
  return Failure{Code::exhausted, Remedy::retry, fmt::format("{} changed {} times in the job's store", key, tries_max)};
}

}  // namespace elrun::inline v0
