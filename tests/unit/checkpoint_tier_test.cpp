/// \file What every tier promises, shown of each; and the whole life of a job's checkpoints over each of them.

#include <cerrno>
#include <functional>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "checkpoint/storage/storage.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/support/object_tier.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

/// A place that keeps checkpoints, and processes that use it.
struct Place {
  virtual ~Place() = default;
  /// Of process `number`.
  virtual Tier& tier(int number) = 0;
  virtual Faults& faults() = 0;
  virtual void trouble(Rng&) = 0;  ///< From here on, until `heal`.
  virtual void heal() = 0;
  virtual void flip(const std::string& name) = 0;  ///< A bit of it.
  virtual void lose(const std::string& name) = 0;
};

struct FilesPlace final : Place {
  Tier& tier(int number) override {
    return *tiers.try_emplace(number, std::make_unique<FilesTier>(files, "/root", fmt::to_string(number))).first->second;
  }
  Faults& faults() override { return files; }
  void trouble(Rng& rng) override {
    files.broken = [&rng](const Path&) { return rng.chance(0.01) ? EIO : 0; };
  }
  void heal() override { files.broken = {}; }
  void flip(const std::string& name) override {
    ByteVector content = files.content("/root/" + name);
    content[content.size() / 2] ^= std::byte{1};
    files.overwrite("/root/" + name, std::move(content));
  }
  void lose(const std::string& name) override { REQUIRE(files.remove_file("/root/" + name).ok()); }
  FaultyFiles files{};
  std::map<int, std::unique_ptr<FilesTier>> tiers{};
};

struct ObjectPlace final : Place {
  explicit ObjectPlace(bool waits = true) : tiers_wait{waits} { bucket.stale_for = bucket.late_by = 10s; }
  Tier& tier(int number) override {
    return *tiers.try_emplace(number, std::make_unique<ObjectTier>(bucket, number, tiers_wait)).first->second;
  }
  Faults& faults() override { return bucket; }
  void trouble(Rng& rng) override { bucket.rng = Rng{rng.next()}, bucket.lost = 0.2, bucket.busy = 0.1, bucket.late = 0.1; }
  void heal() override { bucket.lost = bucket.busy = bucket.late = 0; }
  void flip(const std::string& name) override {
    ByteVector content = bucket.content(name);
    content[content.size() / 2] ^= std::byte{1};
    bucket.overwrite(name, std::move(content));
  }
  void lose(const std::string& name) override { bucket.lose(name); }
  bool tiers_wait;
  ManualClock clock{};
  Bucket bucket{clock};
  std::map<int, std::unique_ptr<ObjectTier>> tiers{};
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

Result<std::string> range(Tier& tier, const std::string& name, std::uint64_t offset, std::size_t bytes) {
  ELRUN_TRY_ASSIGN(const auto file, tier.open(name));
  ByteVector out(bytes);
  ELRUN_TRY(file->read_at(offset, out));
  return std::string{as_text(out)};
}

/// With the directories that a rule needs.
Tier& made(Tier& tier) {
  for (const char* directory : {"", "gens", "ckpt", "ckpt/a", "ckpt/b"}) REQUIRE(said(tier.make_directories(directory)) == "");
  return tier;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a tier gives back any range of what was put, and no byte beyond it", "[checkpoint]") {
  in_each([](Place& place) {
    REQUIRE(said(made(place.tier(1)).put("ckpt/a/part", as_bytes("0123456789"))) == "");
    Tier& reader = place.tier(2);
    CHECK(reader.open("ckpt/a/part").value()->size().value() == 10);
    CHECK(range(reader, "ckpt/a/part", 3, 4).value() == "3456");
    CHECK(range(reader, "ckpt/a/part", 10, 0).value().empty());
    CHECK(range(reader, "ckpt/a/part", 7, 4).failure().code == Code::corrupt);
    CHECK(range(reader, "ckpt/a/part", 11, 0).failure().code == Code::corrupt);
    CHECK(range(reader, "ckpt/a/part", ~std::uint64_t{0}, 2).failure().code == Code::corrupt);
    CHECK(range(reader, "ckpt/a/none", 0, 1).failure().code == Code::not_found);
    CHECK(range(reader, "none/at/all", 0, 1).failure().code == Code::not_found);
    CHECK(reader.get_all("ckpt/a/part", 9_B).failure().code == Code::corrupt);
  });
}

TEST_CASE("what is large is written in pieces, in any order, and is there when it is complete", "[checkpoint]") {
  in_each([](Place& place) {
    Tier& mine = made(place.tier(1));
    auto file = mine.create("ckpt/a/shard").value();
    REQUIRE(file->reserve(10_B).ok());
    REQUIRE(said(file->write_at(4, as_bytes("456789"))) == "");
    REQUIRE(said(file->write_at(0, as_bytes("0123"))) == "");
    REQUIRE(said(file->sync()) == "");
    REQUIRE(said(file->close()) == "");
    REQUIRE(said(mine.put("ckpt/a/part", as_bytes("x"))) == "");
    CHECK(text_of(place.tier(2), "ckpt/a/shard") == "0123456789");
    CHECK(place.tier(2).create("ckpt/a/shard").failure().code == Code::already_exists);
    CHECK(said(mine.discard("ckpt/a/shard")) == "");
    CHECK(said(mine.discard("ckpt/a/shard")) == "");
    CHECK(text_of(place.tier(2), "ckpt/a/shard") == "not_found");
  });
}

TEST_CASE("a name is published or a directory made once: the same bytes again succeed, other bytes fail, and nothing is overwritten",
          "[checkpoint]") {
  in_each([](Place& place) {
    CHECK(said(made(place.tier(1)).publish("gens/g00000001.claim", as_bytes("mine"))) == "");
    CHECK(place.tier(2).publish("gens/g00000001.claim", as_bytes("theirs")).failure().code == Code::already_exists);
    CHECK(said(place.tier(2).publish("gens/g00000001.claim", as_bytes("mine"))) == "");
    CHECK(text_of(place.tier(2), "gens/g00000001.claim") == "mine");
    CHECK(place.tier(2).put("gens/g00000001.claim", as_bytes("theirs")).failure().code == Code::already_exists);
    CHECK(said(place.tier(1).make_directory("ckpt/c")) == "");
    CHECK(place.tier(2).make_directory("ckpt/c").failure().code == Code::already_exists);
    CHECK(place.tier(1).make_directory("ckpt/c").failure().code == Code::already_exists);
    CHECK(said(place.tier(2).make_directories("ckpt/a")) == "");
  });
}

TEST_CASE("a list has all that was there when it was asked for, and nothing that was gone by then", "[checkpoint]") {
  in_each([](Place& place) {
    CHECK(place.tier(1).list("ckpt").failure().code == Code::not_found);
    Tier& mine = made(place.tier(1));
    CHECK(mine.list("gens").value().empty());
    for (const char* name : {"ckpt/b/one", "ckpt/a/two", "ckpt/a/one", "gens/x"}) REQUIRE(mine.publish(name, as_bytes("x")).ok());
    for (Tier* tier : {&mine, &place.tier(2)}) {
      CHECK(tier->list("ckpt").value() == Names{"a", "b"});
      CHECK(tier->list("ckpt/a").value() == Names{"one", "two"});
      CHECK(tier->list("").value() == Names{"ckpt", "gens"});
      CHECK(tier->list("ck").failure().code == Code::not_found);  // a directory, and no prefix of a name
    }
    for (const char* name : {"ckpt/a/one", "ckpt/a/two", "ckpt/a/two"}) CHECK(said(mine.remove(name)) == "");
    CHECK(place.tier(2).list("ckpt/a").value().empty());
    CHECK(text_of(mine, "ckpt/a/one") == "not_found");
    for (const char* directory : {"ckpt/a", "ckpt/a", "ckpt/b", "ckpt/never"}) CHECK(said(mine.remove_all(directory)) == "");
    CHECK(place.tier(2).list("ckpt").value().empty());
  });
}

TEST_CASE("what is thrown away is out of the lists, and what has a name that is needed is set aside as it is", "[checkpoint]") {
  in_each([](Place& place) {
    const std::string id = checkpoint_directory({10, 1, 1});
    Tier& mine = made(place.tier(1));
    REQUIRE(mine.make_directory(id).ok());
    REQUIRE(mine.put(id + "/part", as_bytes("x")).ok());
    CHECK(said(mine.throw_away(id)) == "");
    CHECK(said(mine.throw_away(id)) == "");
    CHECK(said(mine.empty_trash()) == "");
    CHECK(place.tier(2).list("ckpt").value() == Names{"a", "b"});
    for (const char* damaged : {"damaged", "damaged again"}) {
      REQUIRE(mine.publish("RUN.json", as_bytes(damaged)).ok());
      CHECK(said(mine.set_aside("RUN.json", "RUN.json.damaged")) == "");
      CHECK(text_of(place.tier(2), "RUN.json") == "not_found");
      CHECK(text_of(place.tier(2), "RUN.json.damaged") == damaged);
    }
    CHECK(mine.set_aside("RUN.json", "RUN.json.damaged").failure().code == Code::not_found);
  });
}

TEST_CASE("what a directory tree has kept as a tier survives a power loss", "[checkpoint]") {
  for_all_seeds(50, [](Rng& rng) {
    FilesPlace place;
    Tier& mine = made(place.tier(1));
    REQUIRE(mine.make_directory("ckpt/c").ok());
    auto shard = mine.create("ckpt/c/shard").value();
    REQUIRE((shard->write_at(0, as_bytes("4567")).ok() && shard->sync().ok() && shard->close().ok()));
    REQUIRE(mine.put("ckpt/c/part", as_bytes("0123")).ok());
    REQUIRE(mine.publish("ckpt/a/COMMIT", as_bytes("yes")).ok());
    REQUIRE(mine.put("ckpt/b/part", as_bytes("0123")).ok());
    REQUIRE(mine.remove("ckpt/b/part").ok());
    place.files.crash(rng);
    CHECK(text_of(place.tier(2), "ckpt/c/shard") == "4567");
    CHECK(text_of(place.tier(2), "ckpt/c/part") == "0123");
    CHECK(text_of(place.tier(2), "ckpt/a/COMMIT") == "yes");
    CHECK(place.tier(2).list("ckpt/b").value().empty());
    CHECK(place.tier(2).list("ckpt").value() == Names{"a", "b", "c"});
  });
}

TEST_CASE("what a publish prepares is in no list, and is gone when it succeeds", "[checkpoint]") {
  FilesPlace place;
  Tier& mine = made(place.tier(1));
  const auto all = [&] { return place.files.list("/root/gens").value(); };
  REQUIRE(mine.publish("gens/one", as_bytes("x")).ok());
  CHECK(all() == Names{"one"});
  place.faults().arm(Faults::Fault{.at = 3});  // the process dies before the link: create, write, sync
  CHECK_THROWS_AS((void)mine.publish("gens/two", as_bytes("x")), Killed);
  place.faults().arm(std::nullopt);
  CHECK(all().size() == 2);
  CHECK(mine.list("gens").value() == Names{"one"});
  CHECK(said(mine.publish("gens/two", as_bytes("y"))) == "");
  CHECK(all() == Names{"one", "two"});
}

TEST_CASE("a name whose removal failed, and succeeds at the second try, does not come back after a power loss", "[checkpoint]") {
  for_all_seeds(20, [](Rng& rng) {
    FilesPlace place;
    Tier& mine = made(place.tier(1));
    REQUIRE(mine.put("gens/acknowledged", as_bytes("yes")).ok());
    place.faults().arm(Faults::Fault{.at = 1, .error = EIO});  // the sync of the directory, after the name is gone
    CHECK(mine.remove("gens/acknowledged").failure().code == Code::io);
    place.faults().arm(std::nullopt);
    CHECK(said(mine.remove("gens/acknowledged")) == "");
    place.files.crash(rng);
    CHECK(text_of(place.tier(2), "gens/acknowledged") == "not_found");
  });
}

TEST_CASE("in any trouble: a publish that succeeds is there, one that fails is there or not, and the same once more succeeds",
          "[checkpoint]") {
  in_each([](Place& place) {
    (void)made(place.tier(1));
    for_all_seeds(200, [&](Rng& rng) {
      const std::string name = fmt::format("gens/{}-{}", rng.next64(), rng.next64());
      place.trouble(rng);
      const bool a = place.tier(1).publish(name, as_bytes("a")).ok(), b = place.tier(2).publish(name, as_bytes("b")).ok();
      place.heal();
      CHECK_FALSE((a && b));
      const std::string there = text_of(place.tier(1), name);
      if (a) CHECK(there == "a");
      if (b) CHECK(there == "b");
      if (there == "not_found") CHECK(said(place.tier(1).publish(name, as_bytes("a"))) == "");
      else CHECK(said(place.tier(2).publish(name, as_bytes(there))) == "");
    });
  });
}

TEST_CASE("on every tier: a job saves, goes on at another world size, keeps two checkpoints, and stops where a newer job has begun",
          "[checkpoint]") {
  in_each([](Place& place) {
    TestJob first{place.tier(1), 2, 1};
    REQUIRE_FALSE(first.start().value().choice);
    for (const std::uint64_t step : {10u, 20u, 30u}) {
      REQUIRE(said(first.save(step)) == "");
      REQUIRE(said(first.ranks[0].retain(2)) == "");
    }
    CHECK(place.tier(1).list("ckpt").value() == Names{to_string(CheckpointId{20, 1, 1}), to_string(CheckpointId{30, 1, 1})});
    TestJob second{place.tier(2), 3, 2};
    const Start start = second.start().value();
    CHECK(start.choice == CheckpointId{30, 1, 1});
    CHECK(said(second.load(start)) == "");
    CHECK(first.save(40).failure().code == Code::refused);
    CHECK(place.tier(1).list("ckpt").value().size() == 2);  // it has left nothing
    REQUIRE(said(second.save(40)) == "");
    REQUIRE(said(second.ranks[0].retain(2)) == "");
    CHECK(place.tier(2).list("ckpt").value() == Names{to_string(CheckpointId{30, 1, 1}), to_string(CheckpointId{40, 2, 1})});
    CHECK(said(TestJob{place.tier(3), 1, 3}.start()) == "");
  });
}

TEST_CASE("on every tier: a damaged checkpoint is passed over and marked, and a lost one stops the start until a person gives it up",
          "[checkpoint]") {
  in_each([](Place& place) {
    TestJob first{place.tier(1), 2, 1};
    REQUIRE(said(first.start()) == "");
    for (const std::uint64_t step : {10u, 20u, 30u}) REQUIRE(said(first.save(step)) == "");
    place.flip(name_in(checkpoint_directory({30, 1, 1}), manifest_file));
    TestJob second{place.tier(2), 1, 2};
    const Start start = second.start().value();
    CHECK(start.choice == CheckpointId{20, 1, 1});
    CHECK(said(second.load(start)) == "");
    CHECK(text_of(place.tier(1), name_in(checkpoint_directory({30, 1, 1}), quarantine_file)) != "not_found");
    REQUIRE(said(second.save(40)) == "");
    place.flip(run_file);
    CHECK(TestJob{place.tier(3), 2, 3}.start()->choice == CheckpointId{40, 2, 1});
    CHECK(text_of(place.tier(1), damaged_run_file) != "not_found");
    place.lose(name_in(checkpoint_directory({40, 2, 1}), commit_file));
    const auto stopped = TestJob{place.tier(4), 2, 4}.start();
    REQUIRE_FALSE(stopped.ok());
    CHECK_THAT(message(stopped.failure()), Contains("--begin_anew 40@2"));
    CHECK(TestJob{place.tier(5), 2, 5}.begin_anew(40)->choice == CheckpointId{20, 1, 1});
  });
}

namespace {

const std::string all_is_well, is_broken = "a promise is broken";

/// A leader is frozen before operation `at` of its save, and a later job goes on and saves meanwhile. What comes of it; nothing: the save was over before.
std::optional<std::string> frozen_at(Place& place, std::uint64_t at) {
  TestJob first{place.tier(1), 2, 1}, later{place.tier(2), 1, 2};
  REQUIRE(said(first.start()) == "");
  REQUIRE(said(first.save(10)) == "");
  std::optional<std::string> came;
  std::optional<CheckpointId> chosen;
  place.faults().arm(std::nullopt);
  place.faults().before = [&](std::uint64_t number) {
    if (number != at || came) return;
    const auto start = later.start();
    came = said(start);
    if (!start.ok()) return;
    chosen = start->choice;
    if (!chosen) came = "the later job begins at step 0";
    else if (const auto loaded = later.load(*start); !loaded.ok()) came = said(loaded);
    else came = said(later.save(chosen->step + 5));
  };
  const bool first_saves = first.save(20).ok();
  place.faults().before = {};
  if (came && first_saves && chosen != CheckpointId{20, 1, 1}) return is_broken;
  return came;
}

std::set<std::string> frozen_anywhere(const std::function<std::unique_ptr<Place>()>& place) {
  std::set<std::string> all;
  std::uint64_t at = 0;
  for (std::optional<std::string> came{""}; came; ++at) {
    const auto here = place();
    came = frozen_at(*here, at);
    if (came) all.insert(*came);
  }
  CHECK(at > 30);
  return all;
}

}  // namespace

TEST_CASE("on every tier: a leader that is frozen at any operation of its save promises nothing that a later job does not have",
          "[checkpoint]") {
  SECTION("files") {
    CHECK(frozen_anywhere([] { return std::make_unique<FilesPlace>(); }) == std::set{all_is_well});
  }
  SECTION("an object store") {
    CHECK(frozen_anywhere([] { return std::make_unique<ObjectPlace>(); }) == std::set{all_is_well});
  }
  SECTION("but on a tier whose lists are stale it does") {
    std::set<std::string> all;
    for_all_seeds(16, [&](Rng& rng) {
      const std::uint64_t seed = rng.next64();
      all.merge(frozen_anywhere([&] {
        auto place = std::make_unique<ObjectPlace>(false);
        place->bucket.rng = Rng{seed};
        return place;
      }));
    });
    CHECK(all.contains(is_broken));
  }
}

TEST_CASE("on every tier, in any trouble: what was acknowledged is gone on from, bit for bit", "[checkpoint]") {
  for (const bool is_files : {true, false}) {
    std::uint64_t acknowledged_all = 0, failed = 0;
    for_all_seeds(60, [&](Rng& rng) {
      const std::unique_ptr<Place> place = is_files ? std::unique_ptr<Place>{new FilesPlace} : std::unique_ptr<Place>{new ObjectPlace};
      std::uint64_t acknowledged = 0, step = 0;
      for (int life = 1; life < 5; ++life) {
        TestJob job{place->tier(life), static_cast<std::uint32_t>(1 + rng.below(3)), static_cast<std::uint64_t>(life)};
        place->trouble(rng);
        for (int tries = 0; tries < 3; ++tries) {
          const auto start = job.start();
          if (!start.ok()) continue;
          if (start->choice && !job.load(*start).ok()) continue;
          REQUIRE((start->choice ? start->choice->step : 0) >= acknowledged);
          for (int saves = 0; saves < 3; ++saves) {
            if (job.save(step += 10).ok()) acknowledged = step, ++acknowledged_all;
            else ++failed;
            (void)job.ranks[0].retain(2);
          }
          break;
        }
        place->heal();
      }
      TestJob last{place->tier(9), 2, 9};
      const auto start = last.start();
      REQUIRE(said(start) == "");
      if (start->choice) REQUIRE(said(last.load(*start)) == "");
      REQUIRE((start->choice ? start->choice->step : 0) >= acknowledged);
      REQUIRE(said(last.save(step += 10)) == "");
      REQUIRE(said(last.ranks[0].retain(2)) == "");
    });
    CHECK(acknowledged_all > 0);
    CHECK(failed > 0);
  }
}
