#pragma once
/// \file An object store in memory with S3's semantics, and a client of it: PUT with If-None-Match, replies that are lost, 503, lists that are stale.

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <elrun/philox.hpp>

#include "checkpoint/tiers/tier.hpp"
#include "lib/base/clock.hpp"

namespace elrun::test {

/// The server. Each client has a number.
struct Bucket {
  struct Object {
    ByteVector bytes;
    int writer = 0;
    Instant since{};
  };
  struct Removed {
    int remover = 0;
    Instant since{};
  };
  std::map<std::string, Object> objects{};
  std::map<std::string, Removed> removed{};
  ManualClock clock{};
  Rng rng{1};
  double lost = 0, busy = 0;  ///< Chances of a reply that is lost, and of a 503.
  Duration stale_for{};
};

class ObjectTier final : public Tier {
 public:
  ObjectTier(Bucket& bucket, int client) : bucket_{bucket}, client_{client} {}

  /// Conditional as well: an unconditional PUT could come in a second time, long after.
  Result<void> put(const std::string& name, ByteSpan bytes) override { return publish(name, bytes); }
  Result<void> publish(const std::string& name, ByteSpan bytes) override {
    return answered([&]() -> Result<void> {
      const auto [at, is_new] =
          bucket_.objects.try_emplace(name, Bucket::Object{{bytes.begin(), bytes.end()}, client_, bucket_.clock.now()});
      // 412: somebody's, or one's own whose reply was lost. Its content tells.
      if (!is_new && !std::equal(bytes.begin(), bytes.end(), at->second.bytes.begin(), at->second.bytes.end()))
        return Failure{Code::already_exists, Remedy::fix_config, name + " is there"};
      return {};
    });
  }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    std::set<std::string> names;
    const std::string prefix = directory + "/";
    const auto add = [&](const std::string& name) {
      if (name.starts_with(prefix)) names.insert(name.substr(prefix.size(), name.find('/', prefix.size()) - prefix.size()));
    };
    ELRUN_TRY(answered([&]() -> Result<void> {
      names.clear();
      const auto is_old = [&](int by, Instant since) { return by == client_ || since + bucket_.stale_for <= bucket_.clock.now(); };
      for (const auto& [name, object] : bucket_.objects)
        if (is_old(object.writer, object.since) || bucket_.rng.chance(0.5)) add(name);
      for (const auto& [name, gone] : bucket_.removed)
        if (!is_old(gone.remover, gone.since) && bucket_.rng.chance(0.5)) add(name);
      return {};
    }));
    return std::vector<std::string>{names.begin(), names.end()};
  }
  Result<ByteVector> get(const std::string& name, std::uint64_t offset, std::uint64_t length) override {
    ByteVector out;
    ELRUN_TRY(answered([&]() -> Result<void> {
      const auto at = bucket_.objects.find(name);
      if (at == bucket_.objects.end()) return Failure{Code::not_found, Remedy::fix_config, name + " is not there"};
      const ByteVector& bytes = at->second.bytes;
      if (offset > bytes.size() || length > bytes.size() - offset)
        return Failure{Code::corrupt, Remedy::fix_config, name + " ends too early"};
      out.assign(bytes.begin() + static_cast<std::ptrdiff_t>(offset), bytes.begin() + static_cast<std::ptrdiff_t>(offset + length));
      return {};
    }));
    return out;
  }
  Result<std::uint64_t> size(const std::string& name) override {
    std::uint64_t bytes = 0;
    ELRUN_TRY(answered([&]() -> Result<void> {
      const auto at = bucket_.objects.find(name);
      if (at == bucket_.objects.end()) return Failure{Code::not_found, Remedy::fix_config, name + " is not there"};
      bytes = at->second.bytes.size();
      return {};
    }));
    return bytes;
  }
  Result<void> remove(const std::string& name) override {
    return answered([&]() -> Result<void> {
      if (bucket_.objects.erase(name) > 0) bucket_.removed[name] = {client_, bucket_.clock.now()};
      return {};
    });
  }
  [[nodiscard]] Duration stale_for() const override { return bucket_.stale_for; }

 private:
  /// A request and its retries. 503: it was not looked at. A lost reply: it was, and nobody knows.
  Result<void> answered(const std::function<Result<void>()>& request) {
    constexpr int tries_max = 4;
    for (int tries = 0; tries < tries_max; ++tries) {
      if (bucket_.rng.chance(bucket_.busy)) continue;
      auto reply = request();
      if (!bucket_.rng.chance(bucket_.lost)) return reply;
    }
    return Failure{Code::unreachable, Remedy::retry, "the object store does not answer"};
  }

  Bucket& bucket_;
  int client_;
};

}  // namespace elrun::test
