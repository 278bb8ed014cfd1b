/// \file What every tier promises, shown of each; and the commit machine over each of them.

#include <cerrno>
#include <functional>
#include <memory>

#include <fmt/format.h>

#include "checkpoint/commit/commit_machine.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "lib/base/crc32c.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/object_tier.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::commit;
using namespace elrun::test;

namespace {

/// A place that keeps checkpoints, and two processes that use it.
struct Place {
  virtual ~Place() = default;
  virtual Tier& mine() = 0;
  virtual Tier& other() = 0;
  virtual void wait(Duration) {}
  virtual void trouble(Rng&) = 0;  ///< From here on, until `heal`.
  virtual void heal() = 0;
};

struct FilesPlace final : Place {
  Tier& mine() override { return a; }
  Tier& other() override { return b; }
  void trouble(Rng& rng) override {
    files.broken = [this, &rng](const Path&) { return in_trouble && rng.chance(0.03) ? EIO : 0; };
    in_trouble = true;
  }
  void heal() override { in_trouble = false; }
  bool in_trouble = false;
  FaultyFiles files{};
  FilesTier a{files, "/root", "a"}, b{files, "/root", "b"};
};

struct ObjectPlace final : Place {
  ObjectPlace() { bucket.stale_for = 10s; }
  Tier& mine() override { return a; }
  Tier& other() override { return b; }
  void wait(Duration time) override { bucket.clock.advance(time); }
  void trouble(Rng& rng) override { bucket.rng = Rng{rng.next()}, bucket.lost = 0.3, bucket.busy = 0.2; }
  void heal() override { bucket.lost = bucket.busy = 0; }
  Bucket bucket{};
  ObjectTier a{bucket, 1}, b{bucket, 2};
};

void in_each(const std::function<void(Place&)>& rule) {
  SECTION("files") {
    FilesPlace place;
    rule(place);
  }
  SECTION("an object store") {
    ObjectPlace place;
    rule(place);
  }
}

std::string text_of(Tier& tier, const std::string& name) {
  const auto bytes = tier.get_all(name, 1_MiB);
  return bytes.ok() ? std::string{as_text(*bytes)} : to_string(bytes.failure().code);
}

/// The actions of a save of `world` ranks, on a tier alone.
struct TierSave {
  Tier& tier;
  Place& place;
  std::uint32_t world;

  static std::string directory(const CheckpointId& id) { return "ckpt/" + to_string(id); }
  static std::string part(const CheckpointId& id, std::uint32_t rank) { return fmt::format("{}/r{}", directory(id), rank); }

  CommitAnswer perform(const CommitAction& action) {
    const CheckpointId& id = action.ticket.id;
    if (std::holds_alternative<LookAtFences>(action.what)) {
      place.wait(tier.stale_for());  // it rests on what is absent
      const auto names = tier.list("gens");
      if (!names.ok()) return names.failure();
      FencesSeen seen;
      for (const std::string& name : *names)
        if (const auto number = parse_fence_number(name)) seen.numbers.push_back(*number);
      return seen;
    }
    if (std::holds_alternative<AskSpace>(action.what)) return SpaceLeft{1_GiB};
    if (std::holds_alternative<ReadRun>(action.what)) return RunKnown{"0123"};
    if (std::holds_alternative<ListAttempts>(action.what)) {
      const auto names = tier.list("ckpt");
      if (!names.ok()) return names.failure();
      AttemptsFound found;
      for (const std::string& name : *names)
        if (const auto taken = parse_checkpoint_id(name)) found.taken.push_back(*taken);
      return found;
    }
    if (const auto* write = std::get_if<WriteManifest>(&action.what)) return manifest(id, *write);
    if (const auto* publish = std::get_if<PublishCommit>(&action.what))
      return as_answer(tier.publish(directory(id) + "/COMMIT", as_bytes(fmt::to_string(publish->manifest.crc))));
    if (std::holds_alternative<Acknowledge>(action.what))
      return as_answer(tier.publish("gens/" + acknowledgement_name(id), as_bytes("yes")));
    if (std::holds_alternative<Abandon>(action.what)) {
      const auto names = tier.list(directory(id));
      for (const std::string& name : names.ok() ? *names : std::vector<std::string>{}) (void)tier.remove(directory(id) + "/" + name);
    }
    return Done{};
  }
  static CommitAnswer as_answer(const Result<void>& result) { return result.ok() ? CommitAnswer{Done{}} : CommitAnswer{result.failure()}; }
  CommitAnswer manifest(const CheckpointId& id, const WriteManifest& what) {
    std::string text;
    for (const PartVote& vote : what.votes) {
      const auto bytes = tier.get(part(id, vote.rank), 0, vote.part_bytes);
      if (!bytes.ok()) return bytes.failure();
      if (crc32c(*bytes) != vote.part_crc) return Failure{Code::corrupt, Remedy::fix_config, "not what was voted for"};
      text += fmt::format("{} {}\n", vote.rank, vote.part_crc);
    }
    if (auto put = tier.put(directory(id) + "/MANIFEST", as_bytes(text)); !put.ok()) return std::move(put).failure();
    return ManifestWritten{.bytes = text.size(), .crc = crc32c(as_bytes(text)), .sha256 = "", .files = world, .total_bytes = 0};
  }
  PartVote write(const CheckpointId& id, std::uint32_t rank) {
    const std::string text = fmt::format("state of rank {} for {}", rank, to_string(id));
    PartVote vote{.id = id, .rank = rank, .part_bytes = text.size(), .part_crc = crc32c(as_bytes(text)), .refusal = {}};
    if (auto put = tier.put(part(id, rank), as_bytes(text)); !put.ok()) vote.refusal = std::move(put).failure();
    return vote;
  }
  /// `before`: what happens before an action.
  CommitMachine run(
      FenceNumber fence, const std::function<void(const CommitAction&)>& before = [](const CommitAction&) {}) {
    CommitMachine save = CommitMachine::begin({.fence = fence, .world = world, .root = "a tier"}, {.step = 10, .needs = {}});
    auto next = save.start({});
    while (!save.is_over()) {
      if (next) {
        before(*next);
        next = save.on(Answered{next->number, std::holds_alternative<AskOwner>(next->what) ? CommitAnswer{Done{}} : perform(*next)}, {});
        continue;
      }
      for (std::uint32_t rank = 0; rank < world && !next; ++rank) {
        const CheckpointId id = save.ticket().id;
        next = save.on(VoteArrived{{id, rank}, write(id, rank)}, {});
      }
    }
    return save;
  }
};

/// COMMIT vouches for a manifest that is there, and that for parts that are.
void check_whole(Tier& tier, const CheckpointId& id, std::uint32_t world) {
  const std::string directory = TierSave::directory(id);
  const auto manifest = tier.get_all(directory + "/MANIFEST", 1_MiB);
  REQUIRE(manifest.ok());
  CHECK(text_of(tier, directory + "/COMMIT") == fmt::to_string(crc32c(*manifest)));
  for (std::uint32_t rank = 0; rank < world; ++rank)
    CHECK(text_of(tier, TierSave::part(id, rank)) == fmt::format("state of rank {} for {}", rank, to_string(id)));
}

}  // namespace

TEST_CASE("a tier gives back any range of what was put, and no byte beyond it", "[checkpoint]") {
  in_each([](Place& place) {
    REQUIRE(said(place.mine().put("ckpt/a/part", as_bytes("0123456789"))) == "");
    Tier& reader = place.other();
    CHECK(reader.size("ckpt/a/part").value() == 10);
    CHECK(as_text(reader.get("ckpt/a/part", 3, 4).value()) == "3456");
    CHECK(reader.get("ckpt/a/part", 10, 0).value().empty());
    for (const auto& [offset, length] :
         {std::pair<std::uint64_t, std::uint64_t>{7, 4}, {11, 0}, {1, ~std::uint64_t{0}}, {~std::uint64_t{0}, 2}})
      CHECK(reader.get("ckpt/a/part", offset, length).failure().code == Code::corrupt);
    CHECK(reader.get("ckpt/a/none", 0, 1).failure().code == Code::not_found);
    CHECK(reader.size("none/at/all").failure().code == Code::not_found);
    CHECK(reader.get_all("ckpt/a/part", 9_B).failure().code == Code::corrupt);
  });
}

TEST_CASE("a name is published once: the same bytes again succeed, other bytes fail, and nothing is overwritten", "[checkpoint]") {
  in_each([](Place& place) {
    CHECK(said(place.mine().publish("gens/g00000001.claim", as_bytes("mine"))) == "");
    CHECK(place.other().publish("gens/g00000001.claim", as_bytes("theirs")).failure().code == Code::already_exists);
    CHECK(said(place.other().publish("gens/g00000001.claim", as_bytes("mine"))) == "");
    CHECK(text_of(place.other(), "gens/g00000001.claim") == "mine");
    CHECK(place.other().put("gens/g00000001.claim", as_bytes("theirs")).failure().code == Code::already_exists);
  });
}

TEST_CASE("a list has what this process wrote at once, and what others wrote and removed after stale_for", "[checkpoint]") {
  in_each([](Place& place) {
    CHECK(place.mine().list("ckpt").value().empty());
    for (const char* name : {"ckpt/b/one", "ckpt/a/two", "ckpt/a/one", "gens/x"}) REQUIRE(place.mine().publish(name, as_bytes("x")).ok());
    CHECK(place.mine().list("ckpt").value() == std::vector<std::string>{"a", "b"});
    CHECK(place.mine().list("ckpt/a").value() == std::vector<std::string>{"one", "two"});
    place.wait(place.other().stale_for());
    CHECK(place.other().list("ckpt").value() == std::vector<std::string>{"a", "b"});
    CHECK(place.other().list("ck").value().empty());  // a directory, and no prefix of a name
    for (const char* name : {"ckpt/a/one", "ckpt/a/two", "ckpt/a/two", "ckpt/never/was"}) CHECK(said(place.mine().remove(name)) == "");
    CHECK(place.mine().list("ckpt").value() == std::vector<std::string>{"b"});
    place.wait(place.other().stale_for());
    CHECK(place.other().list("ckpt").value() == std::vector<std::string>{"b"});
    CHECK(place.mine().get("ckpt/a/one", 0, 1).failure().code == Code::not_found);
  });
}

TEST_CASE("what a directory tree has kept as a tier survives a power loss", "[checkpoint]") {
  for_all_seeds(50, [](Rng& rng) {
    FilesPlace place;
    REQUIRE(place.a.put("ckpt/a/part", as_bytes("0123")).ok());
    REQUIRE(place.a.publish("ckpt/a/COMMIT", as_bytes("yes")).ok());
    REQUIRE(place.a.put("ckpt/b/part", as_bytes("0123")).ok());
    REQUIRE(place.a.remove("ckpt/b/part").ok());
    place.files.crash(rng);
    CHECK(text_of(place.b, "ckpt/a/part") == "0123");
    CHECK(text_of(place.b, "ckpt/a/COMMIT") == "yes");
    CHECK(place.b.list("ckpt").value() == std::vector<std::string>{"a"});
  });
}

TEST_CASE("in any trouble: a publish that succeeds is there, one that fails is there or not, and the same once more succeeds",
          "[checkpoint]") {
  in_each([](Place& place) {
    for_all_seeds(200, [&](Rng& rng) {
      const std::string name = fmt::format("gens/{}-{}", rng.next64(), rng.next64());
      place.trouble(rng);
      const bool a = place.mine().publish(name, as_bytes("a")).ok(), b = place.other().publish(name, as_bytes("b")).ok();
      place.heal();
      CHECK_FALSE((a && b));
      const std::string there = text_of(place.mine(), name);
      if (a) CHECK(there == "a");
      if (b) CHECK(there == "b");
      if (there == "not_found") CHECK(said(place.mine().publish(name, as_bytes("a"))) == "");
      else CHECK(said(place.other().publish(name, as_bytes(there))) == "");
    });
  });
}

TEST_CASE("the commit machine saves on every tier, and an overtaken leader commits nothing and leaves nothing", "[checkpoint]") {
  in_each([](Place& place) {
    REQUIRE(place.mine().publish(std::string{"gens/"} + claim_name(1), as_bytes("mine")).ok());
    TierSave mine{place.mine(), place, 3};
    const CommitMachine first = mine.run(1);
    REQUIRE(first.phase() == CommitPhase::committed);
    check_whole(place.other(), first.ticket().id, 3);
    // The same step once more has another name. Before its COMMIT somebody else takes over.
    const CommitMachine second = mine.run(1, [&](const CommitAction& next) {
      if (std::holds_alternative<AskOwner>(next.what)) (void)place.other().publish(std::string{"gens/"} + claim_name(2), as_bytes("other"));
    });
    CHECK(second.phase() == CommitPhase::failed);
    CHECK(second.ticket().id.attempt == 2);
    CHECK(place.mine().list("ckpt").value() == std::vector<std::string>{to_string(first.ticket().id)});
  });
}

TEST_CASE("in any trouble: what the commit machine has committed on a tier is whole, and so is whatever has a COMMIT", "[checkpoint]") {
  in_each([](Place& place) {
    REQUIRE(place.mine().publish(std::string{"gens/"} + claim_name(1), as_bytes("mine")).ok());
    std::set<CheckpointId> committed;
    int failed = 0;
    for_all_seeds(60, [&](Rng& rng) {
      if (committed.size() + static_cast<std::size_t>(failed) >= attempt_max) return;
      place.trouble(rng);
      const CommitMachine save = TierSave{place.mine(), place, 2}.run(1);
      place.heal();
      if (save.phase() == CommitPhase::committed) committed.insert(save.ticket().id);
      else ++failed;
    });
    if (committed.empty()) {  // few seeds, as with a sanitizer: without trouble a save commits, whatever those before it left
      const CommitMachine calm = TierSave{place.mine(), place, 2}.run(1);
      REQUIRE(calm.phase() == CommitPhase::committed);
      committed.insert(calm.ticket().id);
    }
    const auto names = place.mine().list("ckpt").value();
    for (const std::string& name : names)
      if (place.mine().size("ckpt/" + name + "/COMMIT").ok()) check_whole(place.mine(), parse_checkpoint_id(name).value(), 2);
    for (const CheckpointId& id : committed) {
      check_whole(place.mine(), id, 2);
      CHECK(place.mine().size("gens/" + acknowledgement_name(id)).ok());
    }
  });
}
