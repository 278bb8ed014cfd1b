#pragma once
/// \file Shell: a directory tree as a tier.

#include <string>

#include "checkpoint/tiers/tier.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// `files` outlives it. `unique` tells this process's preparations apart from those of others.
class FilesTier final : public Tier {
 public:
  FilesTier(Files& files, Path root, std::string unique) : files_{files}, root_{std::move(root)}, unique_{std::move(unique)} {}

  Result<void> put(const std::string& name, ByteSpan bytes) override;
  Result<void> publish(const std::string& name, ByteSpan bytes) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Result<ByteVector> get(const std::string& name, std::uint64_t offset, std::uint64_t length) override;
  Result<std::uint64_t> size(const std::string& name) override;
  Result<void> remove(const std::string& name) override;
  [[nodiscard]] Duration stale_for() const override { return Duration{0}; }

 private:
  Files& files_;
  Path root_;
  std::string unique_;
};

}  // namespace elrun::inline v0
