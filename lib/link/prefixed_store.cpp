#include <utility>

#include <elrun/store.hpp>

namespace elrun::inline v0 {
namespace {

class PrefixedStore final : public Store {
 public:
  PrefixedStore(Store& store, std::string prefix) : store_{store}, prefix_{std::move(prefix)} {}
  Result<void> set(std::string_view key, std::span<const std::byte> value, Deadline deadline) override {
    return store_.set(within(key), value, deadline);
  }
  Result<Value> get(std::string_view key, Deadline deadline) override { return store_.get(within(key), deadline); }
  Result<std::int64_t> add(std::string_view key, std::int64_t amount, Deadline deadline) override {
    return store_.add(within(key), amount, deadline);
  }
  Result<Value> compare_set(std::string_view key, std::span<const std::byte> expected, std::span<const std::byte> desired,
                            Deadline deadline) override {
    return store_.compare_set(within(key), expected, desired, deadline);
  }
  Result<void> wait(std::span<const std::string> keys, Deadline deadline) override {
    std::vector<std::string> all;
    all.reserve(keys.size());
    for (const std::string& key : keys) all.push_back(within(key));
    return store_.wait(all, deadline);
  }
  Result<bool> remove(std::string_view key, Deadline deadline) override { return store_.remove(within(key), deadline); }
  Result<std::optional<Value>> watch(std::string_view key, std::optional<std::span<const std::byte>> known, Deadline deadline) override {
    return store_.watch(within(key), known, deadline);
  }
  Result<std::uint64_t> num_keys(std::string_view prefix, Deadline deadline) override { return store_.num_keys(within(prefix), deadline); }
  Result<void> barrier(std::string_view name, WorldSize count, Deadline deadline) override {
    return store_.barrier(within(name), count, deadline);
  }
  Result<std::vector<Value>> all_gather(std::string_view name, Rank rank, WorldSize count, std::span<const std::byte> value,
                                        Deadline deadline) override {
    return store_.all_gather(within(name), rank, count, value, deadline);
  }

 private:
  [[nodiscard]] std::string within(std::string_view key) const { return prefix_ + std::string{key}; }
  Store& store_;
  const std::string prefix_;
};

}  // namespace

std::unique_ptr<Store> prefixed(Store& store, std::string prefix) { return std::make_unique<PrefixedStore>(store, std::move(prefix)); }

}  // namespace elrun::inline v0
