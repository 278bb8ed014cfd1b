#pragma once
/// \file An object store in memory with S3's semantics, and a client of it: PUT with If-None-Match, DELETE with If-Match, replies that are lost, requests that come in when nobody
/// waits for them any more, 503, lists that are stale.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <elrun/philox.hpp>

#include "checkpoint/tiers/tier.hpp"
#include "lib/base/clock.hpp"
#include "tests/support/faults.hpp"
#include "tests/support/manual_clock.hpp"

namespace elrun::test {

/// The server, and the way to it. Each client has a number. A fault without a number of its own, such as a reply that is lost four times, counts as fired, too.
class Bucket : public Faults {
 public:
  explicit Bucket(ManualClock& clock, std::string at = "s3://bucket") : clock_{clock}, where_{std::move(at)} {}

  double lost = 0, late = 0, busy = 0;  ///< Chances of a reply that is lost, of a request that is, too, and comes in later, and of a 503.
  Duration late_by{};                   ///< At most.
  Duration stale_for{};                 ///< How long a list may lack what others have written, and have what others have removed.
  Rng rng{1};

  /// What is there; for planting damage.
  [[nodiscard]] std::vector<std::string> all_names() const;
  [[nodiscard]] const ByteVector& content(const std::string& name) const { return objects_.at(name).bytes; }
  void overwrite(const std::string& name, ByteVector content) { objects_.at(name).bytes = std::move(content); }
  /// Also what is still on its way to that name: nothing brings it back.
  void lose(const std::string& name);
  /// All requests that are on their way come in.
  void settle();

 private:
  friend class ObjectTier;
  friend class ObjectReadable;
  friend class ObjectWritable;
  struct Object {
    ByteVector bytes;
    int writer = 0;
    Instant since{};
    std::uint64_t version = 0;
  };
  struct Removed {
    int remover = 0;
    Instant since{};
  };
  struct UnderWay {
    std::string name;
    Instant comes{};
    std::function<void()> request;
  };

  /// A request that only reads, with its retries: `look` may capture what the caller has.
  Result<void> ask(const char* verb, const std::string& name, const std::function<Result<void>()>& look);
  /// One that changes something, and may come in when its caller is gone: it captures values.
  Result<void> change(const char* verb, const std::string& name, const std::function<Result<void>()>& request);
  Result<void> answered(const char* verb, const std::string& name, const std::function<Result<void>()>& request, bool is_change);
  void let_in();

  // What the server does.
  Result<void> put_if_none(const std::string& name, const ByteVector& bytes, int client);
  void put_over(const std::string& name, const ByteVector& bytes, int client);
  void remove(const std::string& name, int client);

  ManualClock& clock_;
  std::string where_;
  std::map<std::string, Object> objects_;
  std::map<std::string, Removed> removed_;
  std::vector<UnderWay> under_way_;
  std::uint64_t versions_ = 0;
};

class ObjectTier final : public Tier {
 public:
  /// `waits`: as a tier has to where lists are stale. One that does not is wrong, for tests of the tests.
  ObjectTier(Bucket& bucket, int client, bool waits = true) : bucket_{bucket}, client_{client}, waits_{waits} {}

  Result<std::unique_ptr<ReadableFile>> open(const std::string& name) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Result<Bytes> space_left() override;
  [[nodiscard]] std::string where(std::string_view name) const override {
    return name.empty() ? bucket_.where_ : name_in(bucket_.where_, name);
  }

  Result<void> make_directories(const std::string& directory) override;
  Result<void> make_directory(const std::string& directory) override;
  Result<void> publish(const std::string& name, ByteSpan bytes) override;
  /// Conditional as well: an unconditional PUT could come in a second time, long after.
  Result<void> put(const std::string& name, ByteSpan bytes) override { return publish(name, bytes); }
  Result<std::unique_ptr<WritableFile>> create(const std::string& name) override;

  Result<void> remove(const std::string& name) override;
  Result<void> remove_all(const std::string& directory) override;
  Result<void> set_aside(const std::string& name, const std::string& other) override;

 private:
  Bucket& bucket_;
  int client_;
  bool waits_;
  std::uint64_t made_ = 0;  // directories
};

}  // namespace elrun::test
