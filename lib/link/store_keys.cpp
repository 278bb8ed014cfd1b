#include "lib/link/store_keys.hpp"

namespace elrun::inline v0 {

std::size_t StoreKeys::count(std::string_view prefix) const {
  std::size_t number = 0;
  for (auto at = keys_.lower_bound(prefix); at != keys_.end() && at->first.starts_with(prefix); ++at) ++number;
  return number;
}

std::size_t StoreKeys::missing(const StoreRequest& request, std::size_t from) const {
  while (from < request.keys.size() && contains(request.keys[from])) ++from;
  return from;
}

void StoreKeys::put(const std::string& key, ByteVector value) {
  const auto [entry, fresh] = keys_.try_emplace(key);
  bytes_ += fresh ? key.size() + store_key_overhead : 0;
  bytes_ += value.size();
  bytes_ -= entry->second.size();
  entry->second = std::move(value);
}

void StoreKeys::erase(Keys::iterator entry) {
  bytes_ -= entry->first.size() + entry->second.size() + store_key_overhead;
  keys_.erase(entry);
}

void StoreKeys::drop_generation() {
  for (auto entry = keys_.begin(); entry != keys_.end();) {
    const auto here = entry++;
    if (!here->first.starts_with(store_job_prefix) && !ELRUN_PLANTED(torchrun_d3_stale_keys)) erase(here);
  }
}

}  // namespace elrun::inline v0
