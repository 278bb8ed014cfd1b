// `elrun ckpt`: what is listed, and what is found damaged, on checkpoints in memory whose every byte is known.

#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "checkpoint/storage/storage.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "checkpoint/tools/verify.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/property.hpp"
#include "tests/support/read_checkpoints.hpp"

namespace elrun::test {
namespace {

using State = ListedCheckpoint::State;

std::vector<std::pair<std::uint64_t, State>> states(FaultyFiles& files) {
  std::vector<std::pair<std::uint64_t, State>> all;
  for (const ListedCheckpoint& l : list_checkpoints(facts_of(files))) all.emplace_back(l.id.step, l.state);
  return all;
}

std::vector<Damage> damage_of(FaultyFiles& files, const CheckpointId& id, std::uint64_t portion_blocks = 256) {
  auto verified = verify_all(files, the_root / "ckpt" / to_string(id), id, {}, {.readers = 1, .portion_blocks = portion_blocks});
  REQUIRE(said(verified) == "");
  REQUIRE_FALSE(verified->cut_off);
  return std::move(verified->damage);
}

}  // namespace

TEST_CASE("a checkpoint is named by its root, its step, its fence, or its directory", "[ckpt]") {
  const CheckpointId id{40, 1, 1};
  CHECK(parse_checkpoint_name("/a/b") == CheckpointName{"/a/b", {}, {}});
  CHECK(parse_checkpoint_name("/a/b:40") == CheckpointName{"/a/b", LossName{40, {}}, {}, "/a/b:40"});
  CHECK(parse_checkpoint_name("/a/b:40@7") == CheckpointName{"/a/b", LossName{40, 7}, {}, "/a/b:40@7"});
  CHECK(parse_checkpoint_name("/a/b/ckpt/" + to_string(id)) == CheckpointName{"/a/b", {}, id});
  CHECK(parse_checkpoint_name("/a/b/ckpt/" + to_string(id) + "//") == CheckpointName{"/a/b", {}, id});
  CHECK(parse_checkpoint_name("ckpt/" + to_string(id)) == CheckpointName{".", {}, id});
  CHECK(parse_checkpoint_name("/ckpt/" + to_string(id)) == CheckpointName{"/", {}, id});
  CHECK(parse_checkpoint_name("host:dir") == CheckpointName{"host:dir", {}, {}});
  CHECK(parse_checkpoint_name("/a", "40@7") == CheckpointName{"/a", LossName{40, 7}, {}});
  CHECK(parse_checkpoint_name("/a", to_string(id)) == CheckpointName{"/a", {}, id});
  CHECK_FALSE(parse_checkpoint_name("/a", "forty"));
}

TEST_CASE("a root whose own name ends like a step is that root", "[ckpt]") {
  FaultyFiles files;
  TestJob job{files, 2, 2, small_model(), 1, "run", "/ckpts/08:22"};
  start_and_save(job, {10});
  CHECK(found(files, "/ckpts/08:22").directory.string().starts_with("/ckpts/08:22/ckpt/"));
  CHECK(found(files, "/ckpts/08:22:10").directory.string().starts_with("/ckpts/08:22/ckpt/"));
  CHECK(settled(files, parse_checkpoint_name("/ckpts/08:23")).step == LossName{23, {}});
}

TEST_CASE("of several attempts at a step the one of the timeline is meant, then the newest that was committed", "[ckpt]") {
  const Found left{{40, 1, 1}, false}, beside{{40, 1, 2}, true}, line{{40, 2, 1}, true}, later{{40, 3, 1}, false};
  const CheckpointName name{"/r", LossName{40, {}}, {}};
  CHECK(std::get<CheckpointId>(choose(name, {left, beside, line, later}, {line})) == line.id);
  CHECK(std::get<CheckpointId>(choose(name, {left, beside, later}, {})) == beside.id);
  CHECK(std::get<CheckpointId>(choose(name, {left, later}, {})) == later.id);
  CHECK(std::get<CheckpointId>(choose({"/r", LossName{40, 1}, {}}, {left, beside, line}, {line})) == beside.id);
  CHECK(std::get<std::string>(choose({"/r", LossName{41, {}}, {}}, {left, line}, {line})).find("it holds 40@1, 40@2") != std::string::npos);
  CHECK(std::get<std::string>(choose(name, {}, {})).find("no checkpoint at all") != std::string::npos);
}

TEST_CASE("each checkpoint of a root is listed with its state, and the choice is the one that a start makes", "[ckpt]") {
  FaultyFiles files;
  TestJob job{files, 3, 1};
  start_and_save(job, {10, 20, 30, 40});
  const CheckpointId at_30{30, 1, 1}, at_40{40, 1, 1};
  CHECK(states(files) == std::vector<std::pair<std::uint64_t, State>>{
                             {40, State::acknowledged}, {30, State::acknowledged}, {20, State::acknowledged}, {10, State::acknowledged}});

  SECTION("whole") {
    const RootFacts facts = facts_of(files);
    CHECK(std::get<Resumption>(facts.start).from == at_40);
    const std::string text = listing_text(facts, job.clock.wall_ns());
    CHECK(text.find("A start would go on from step 40, s000000000040.g00000001.a01: the newest checkpoint") != std::string::npos);
    const Json json = listing_json(facts);
    CHECK(json["checkpoints"][0]["chosen"] == true);
    CHECK(json["checkpoints"][1]["chosen"] == false);
    CHECK(json["checkpoints"][0]["world"] == 3);
  }
  SECTION("without an acknowledgement") {
    REQUIRE(files.remove_file(the_root / "gens" / acknowledgement_name(at_40)).ok());
    CHECK(states(files)[0].second == State::on_timeline);
  }
  SECTION("damaged, and not marked by the tool") {
    flip(files, of(at_40, manifest_file), 100);
    CHECK(states(files)[0].second == State::damaged);
    CHECK(std::get<Resumption>(facts_of(files).start).from == at_30);
    CHECK(std::get<Resumption>(facts_of(files).start).why == "a newer one is passed over");
    const auto names = files.list(the_root / "ckpt" / to_string(at_40));
    CHECK(std::find(names->begin(), names->end(), quarantine_file) == names->end());
  }
  SECTION("quarantined, with its reason") {
    REQUIRE(files.write_durably(of(at_40, quarantine_file), as_bytes("because\nof this\n")).ok());
    const ListedCheckpoint newest = list_checkpoints(facts_of(files))[0];
    CHECK(newest.state == State::quarantined);
    CHECK(listing_text(facts_of(files), 0).find("quarantined: because\n") != std::string::npos);
  }
  SECTION("missing as a whole, or its COMMIT alone") {
    const bool as_whole = GENERATE(false, true);
    if (as_whole) REQUIRE(FilesTier{files, the_root}.remove_all(checkpoint_directory(at_40)).ok());
    else REQUIRE(files.remove_file(of(at_40, commit_file)).ok());
    CHECK(states(files)[0] == std::pair{std::uint64_t{40}, State::missing});
    CHECK(states(files).size() == 4);
    const RootFacts facts = facts_of(files);
    REQUIRE(std::holds_alternative<Failure>(facts.start));
    CHECK(listing_text(facts, 0).find("A start would stop: the checkpoint of step 40 was acknowledged and cannot be found") !=
          std::string::npos);
    SECTION("and given up later") {
      REQUIRE(said(job.begin_anew(LossName{40, 1})) == "");
      CHECK(states(files)[0] == std::pair{std::uint64_t{40}, State::given_up});
      CHECK(std::get<Resumption>(facts_of(files).start).from == at_30);
    }
  }
  SECTION("uncommitted") {
    REQUIRE(said(job.ranks[0].begin_save(50)) == "");
    CHECK(states(files)[0].second == State::uncommitted);
  }
  SECTION("beside the timeline") {
    TestJob later{files, 1, 2};
    REQUIRE(said(later.start()) == "");  // fence 2 inherits 10 to 40
    REQUIRE(files.make_directory(the_root / "ckpt" / "s000000000045.g00000001.a01").ok());
    for (const char* file : {commit_file, manifest_file})
      REQUIRE(files.write_durably(the_root / "ckpt" / "s000000000045.g00000001.a01" / file, files.content(of(at_40, file))).ok());
    CHECK(states(files)[0] == std::pair{std::uint64_t{45}, State::beside});
    CHECK(std::get<Resumption>(facts_of(files).start).from == at_40);
  }
  SECTION("with a RUN.json that is damaged or gone") {
    if (GENERATE(false, true)) flip(files, the_root / run_file, 40);
    else REQUIRE(files.remove_file(the_root / run_file).ok());
    const RootFacts facts = facts_of(files);
    CHECK(std::get<Resumption>(facts.start).from == at_40);
    CHECK(facts.run.has_value());
    CHECK_FALSE(facts.notes.empty());
  }
}

TEST_CASE("beside a job that saves and removes nothing is missing, whenever it does so", "[ckpt]") {
  for (unsigned at = 0;; ++at) {
    FaultyFiles files;
    TestJob job{files, 1, 1};
    start_and_save(job, {10, 20});
    unsigned operations = 0;
    files.before = [&](std::uint64_t) {
      if (operations++ != at) return;
      REQUIRE(said(job.save(30)) == "");
      REQUIRE(said(job.ranks[0].retain(2)) == "");
    };
    const RootFacts facts = facts_of(files);
    files.before = {};
    INFO("saved before operation " << at);
    for (const ListedCheckpoint& l : list_checkpoints(facts)) CHECK(l.state != State::missing);
    if (operations <= at) break;
  }
}

TEST_CASE("reading a root changes nothing in it", "[ckpt]") {
  FaultyFiles files;
  TestJob job{files, 2, 1};
  start_and_save(job, {10, 20});
  flip(files, of({20, 1, 1}, manifest_file), 100);
  flip(files, the_root / run_file, 40);
  std::map<Path, ByteVector> before;
  for (const Path& path : files.all_files()) before[path] = files.content(path);
  (void)facts_of(files);
  (void)damage_of(files, {10, 1, 1});
  const Side a = side(files, "/ckpts:10");
  CHECK(said(compare(files, a, a)) == "");
  std::map<Path, ByteVector> after;
  for (const Path& path : files.all_files()) after[path] = files.content(path);
  CHECK(after == before);
}

TEST_CASE("what is no checkpoint root is refused, with what to name instead", "[ckpt]") {
  FaultyFiles files;
  const ManualClock clock;
  CHECK(read_root(files, clock, "/nowhere").failure().code == Code::not_found);
  REQUIRE(files.make_directory("/empty").ok());
  CHECK(read_root(files, clock, "/empty").failure().what.find("it is empty; name the directory that the job was given") !=
        std::string::npos);
  REQUIRE(files.make_directory("/empty/sub").ok());
  CHECK(read_root(files, clock, "/empty").failure().what.find("it has neither RUN.json") != std::string::npos);
}

TEST_CASE("memory that is refused to a reader ends a verification with what was found before, and not the process", "[ckpt]") {
  FaultyFiles behind;
  TestJob job{behind, 2, 1};
  start_and_save(job, {10});
  const CheckpointId id{10, 1, 1};
  REQUIRE(behind.remove_file(of(id, commit_file)).ok());
  ForwardingFiles files{behind, [&](const char* verb, const Path& path) -> Result<void> {
                          if (std::string_view{verb} == "read" && path.extension() == ".safetensors") throw std::bad_alloc{};
                          return {};
                        }};
  for (const unsigned readers : {1u, 4u}) {
    INFO(readers << " readers");
    const auto verified = verify_all(files, the_root / "ckpt" / to_string(id), id, {}, {.readers = readers});
    REQUIRE(said(verified) == "");
    REQUIRE(verified->damage.size() == 1);
    CHECK(verified->damage[0].file == commit_file);
    REQUIRE(verified->cut_off);
    CHECK(verified->cut_off->code == Code::exhausted);
  }
}

TEST_CASE("every damaged byte of a checkpoint is found, named by file and block, and all at once", "[ckpt]") {
  FaultyFiles files;
  ModelTable model = small_model();
  model.units[0].elements = 700'000, model.units[0].tensors = {};  // several blocks
  TestJob job{files, 2, 1, model};
  start_and_save(job, {10});
  const CheckpointId id{10, 1, 1};
  CHECK(damage_of(files, id).empty());
  FilesTier tier{files, the_root};
  const Manifest manifest = read_manifest(tier, checkpoint_directory(id))->manifest;
  const FileRecord shard = manifest.files[0], other = manifest.files[1];
  REQUIRE(block_count(shard) > 1);
  const auto step = static_cast<unsigned>(stride(1));  // of operations

  SECTION("one byte anywhere") {
    for (const FileRecord& file : {shard, other})
      for (std::uint64_t byte = 0; byte < file.bytes; byte += stride(byte < 64 || byte + 4096 > file.table_offset ? 7 : 65'537)) {
        const Path path = of(id, file.name);
        flip(files, path, byte);
        const std::vector<Damage> damage = damage_of(files, id);
        INFO(file.name << " byte " << byte);
        REQUIRE_FALSE(damage.empty());
        CHECK(damage.back().file == file.name);
        if (byte < file.table_offset) CHECK(damage.back().block == byte / block_bytes);
        flip(files, path, byte);
      }
  }
  SECTION("several blocks of several files") {
    flip(files, of(id, shard.name), block_bytes + 5);
    flip(files, of(id, shard.name), shard.header_bytes + 1);
    flip(files, of(id, other.name), other.table_offset - 1);
    const std::vector<Damage> damage = damage_of(files, id);
    REQUIRE(damage.size() == 3);
    CHECK(damage[0].block == 0);
    CHECK(damage[1].block == 1);
    CHECK(damage[1].what.find("block 1 (bytes 65536 to ") != std::string::npos);
    CHECK(damage[2].file == other.name);
  }
  SECTION("a cut file, a file that is gone, and the rest is read all the same") {
    ByteVector content = files.content(of(id, shard.name));
    content.resize(content.size() / 2);
    files.overwrite(of(id, shard.name), content);
    flip(files, of(id, other.name), other.header_bytes + 9);
    std::vector<Damage> damage = damage_of(files, id);
    REQUIRE(damage.size() == 3);
    CHECK(damage[0].what.find("bytes, the manifest says") != std::string::npos);
    CHECK(damage[2].block == 0);
    REQUIRE(files.remove_file(of(id, shard.name)).ok());
    damage = damage_of(files, id);
    REQUIRE(damage.size() == 2);
    CHECK(damage[0] == Damage{shard.name, {}, "is not there"});
  }
  SECTION("without COMMIT or manifest the shards are checked by what is left") {
    flip(files, of(id, shard.name), block_bytes + 5);
    const bool without_manifest = GENERATE(false, true);
    if (without_manifest) files.overwrite(of(id, manifest_file), bytes_of<char>({'{'}));
    else REQUIRE(files.remove_file(of(id, commit_file)).ok());
    const std::vector<Damage> damage = damage_of(files, id);
    REQUIRE(damage.size() >= 2);
    CHECK(damage[0].file == (without_manifest ? manifest_file : commit_file));
    CHECK(damage.back().block == 1);
  }
  SECTION("what cannot be read") {
    files.broken = [&](const Path& path) { return path == of(id, shard.name) ? EIO : 0; };
    CHECK(damage_of(files, id)[0].file == shard.name);
  }
  SECTION("what cannot be read from some operation on, whichever part of the file its reader has") {
    unsigned operations = 0, fails_from = ~0u;
    files.broken = [&](const Path& path) { return path == of(id, shard.name) && ++operations >= fails_from ? EIO : 0; };
    CHECK(damage_of(files, id, 1).empty());
    const unsigned all = operations;
    REQUIRE(all > block_count(shard) + 4);  // its length, again with its header and table, and each block
    for (fails_from = 1; fails_from <= all; fails_from += step) {
      INFO("fails from operation " << fails_from << " of " << all);
      operations = 0;
      CHECK_FALSE(damage_of(files, id, 1).empty());
    }
  }
  SECTION("what is no damage ends it at once: a storage that hangs or is gone, no descriptors, no rights") {
    const int why = GENERATE(ETIMEDOUT, EMFILE, ENOMEM, EACCES, ENETUNREACH, EHOSTDOWN, ENODEV, ENOTCONN, EREMOTEIO, ESTALE);
    const Path left_of = of(id, GENERATE(as<std::string>{}, "COMMIT", "MANIFEST.json", "shard"));
    const Path hangs = left_of.filename() == "shard" ? of(id, shard.name) : left_of;
    unsigned operations = 0, fails_from = ~0u, behind = 0;
    files.broken = [&](const Path& path) {
      if (path == hangs) ++operations;
      behind += operations >= fails_from ? 1 : 0;
      return operations >= fails_from ? why : 0;
    };
    const auto verified = [&] { return verify_all(files, the_root / "ckpt" / to_string(id), id, {}, {.readers = 1, .portion_blocks = 1}); };
    REQUIRE(said(verified()) == "");
    const unsigned all = operations;
    for (fails_from = 1; fails_from <= all; fails_from += step) {
      INFO("errno " << why << ", from operation " << fails_from << " of " << all << " on " << hangs.string());
      operations = behind = 0;
      const auto ended = verified();
      REQUIRE(said(ended) == "");
      REQUIRE(ended->cut_off);
      CHECK_FALSE(is_damage(ended->cut_off->code));
      CHECK(ended->damage.empty());
      CHECK(behind <= 2);  // a record is read again
    }
  }
  SECTION("what was found before the storage hangs is told, by file, in text and in JSON") {
    flip(files, of(id, shard.name), block_bytes + 5);
    files.broken = [&](const Path& path) { return path == of(id, other.name) ? ETIMEDOUT : 0; };
    unsigned opened = 0;  // each file once for its size, before its blocks are read
    if (GENERATE(false, true)) files.broken = [&](const Path& path) { return path == of(id, other.name) && ++opened > 2 ? ETIMEDOUT : 0; };
    else REQUIRE(files.remove_file(of(id, commit_file)).ok());
    const auto ended = verify_all(files, the_root / "ckpt" / to_string(id), id, {}, {.readers = 1});
    REQUIRE(said(ended) == "");
    REQUIRE(ended->cut_off);
    REQUIRE(ended->damage.size() == 1);
    CHECK(ended->damage[0].file == (opened > 0 ? shard.name : commit_file));
    const VerifiedCheckpoint one{id, *ended, 1s};
    CHECK(verified_text(one).find(": not read to its end, 1 damage found, ") != std::string::npos);
    const Json json = verified_json({{CheckpointId{20, 1, 1}, Verified{}, 1s}, one});
    CHECK(json["whole"] == false);
    CHECK(json["checkpoints"][0]["whole"] == true);
    CHECK(json["checkpoints"][0]["failure"].is_null());
    CHECK(json["checkpoints"][1]["whole"] == false);
    CHECK(json["checkpoints"][1]["damage"].size() == 1);
    CHECK(json["checkpoints"][1]["failure"].get<std::string>().find(other.name) != std::string::npos);
  }
  SECTION("what the job removes meanwhile is no damage, where it was committed when it was looked for") {
    const bool was_committed = GENERATE(false, true);
    const auto ended = [&](unsigned at) {  // the operation before which it goes, out of 0, 1, ...
      FaultyFiles copy;
      TestJob other_job{copy, 2, 1, model};
      start_and_save(other_job, {10});
      unsigned operations = 0;
      copy.before = [&](std::uint64_t) {
        if (operations++ != at) return;
        (void)copy.remove_file(of(id, commit_file));
        (void)copy.rename(the_root / "ckpt" / to_string(id), the_root / "gone");
      };
      const auto verified = verify_all(copy, the_root / "ckpt" / to_string(id), id, {}, {.readers = 1, .was_committed = was_committed});
      if (operations <= at) return std::string{"whole"};
      if (verified.ok()) return std::string{verified->is_whole() ? "whole, and gone" : "damage"};
      return verified.failure().code == Code::not_found ? verified.failure().what : "another failure";
    };
    unsigned at = 0;
    for (std::string how; (how = ended(at)) != "whole"; at += step) {
      INFO("gone before operation " << at);
      if (was_committed) CHECK((how == "whole, and gone" || how == "the job removed " + to_string(id) + " meanwhile"));
      else CHECK(how.find("meanwhile") == std::string::npos);
    }
    CHECK(at > 10);
  }
  SECTION("of very many damages some are listed, and the others are counted") {
    files.broken = [&](const Path& path) { return path.extension() == ".safetensors" && path.filename() != other.name ? EIO : 0; };
    ByteVector content = files.content(of(id, other.name));
    for (std::uint64_t block = 0; block < block_count(other); ++block) content[block * block_bytes] ^= std::byte{1};
    files.overwrite(of(id, other.name), content);
    const auto some = verify_all(files, the_root / "ckpt" / to_string(id), id, {}, {.readers = 1, .damage_max = 3});
    REQUIRE(said(some) == "");
    CHECK(some->damage.size() == 3);
    CHECK(some->unlisted + 3 == block_count(other) + 2);  // one shard, and the header of the other
  }
  SECTION("a part that names a file of somebody else's opens none") {
    const Path part = of(id, "r00000-of-00002.part.json");
    auto record = decode_part(files.content(part), "part");
    REQUIRE(said(record) == "");
    record->file.name = "../../../secret";
    const std::string changed = encode(*record);
    files.overwrite(part, {as_bytes(changed).begin(), as_bytes(changed).end()});
    REQUIRE(files.remove_file(of(id, manifest_file)).ok());
    bool is_opened = false;
    files.broken = [&](const Path& path) { return is_opened |= path.filename() == "secret", 0; };
    CHECK_FALSE(damage_of(files, id).empty());
    CHECK_FALSE(is_opened);
  }
}

TEST_CASE("several readers find the damage that one finds, in the same order", "[ckpt][threads]") {
  FaultyFiles files;
  ModelTable model = small_model();
  model.units[0].elements = 700'000, model.units[0].tensors = {};
  TestJob job{files, 3, 1, model};
  start_and_save(job, {10});
  const CheckpointId id{10, 1, 1};
  FilesTier tier{files, the_root};
  const Manifest manifest = read_manifest(tier, checkpoint_directory(id))->manifest;
  for (const FileRecord& file : manifest.files)
    for (std::uint64_t block = 0; block < block_count(file); block += 2) flip(files, of(id, file.name), block * block_bytes + 5);
  const std::vector<Damage> found = damage_of(files, id);
  REQUIRE(found.size() > 10);
  for (const unsigned readers : {2u, 5u}) {
    const auto verified = verify_all(files, the_root / "ckpt" / to_string(id), id, {}, {.readers = readers, .portion_blocks = 1});
    REQUIRE(said(verified) == "");
    CHECK(verified->damage == found);
  }
}

TEST_CASE("a verification opens each shard once for its length and once for its blocks, and reads no byte twice", "[ckpt]") {
  FaultyFiles behind;
  ModelTable model = small_model();
  model.units[0].elements = 700'000, model.units[0].tensors = {};
  TestJob job{behind, 2, 1, model};
  start_and_save(job, {10});
  const CheckpointId id{10, 1, 1};
  unsigned opened = 0;
  ForwardingFiles files{behind, [&](const char* verb, const Path& path) -> Result<void> {
                          opened += std::string_view{verb} == "open" && path.extension() == ".safetensors" ? 1 : 0;
                          return {};
                        }};
  FilesTier tier{behind, the_root};
  std::uint64_t bytes = 0, blocks = 0, headers = 0;
  const auto saved = read_manifest(tier, checkpoint_directory(id));
  REQUIRE(said(saved) == "");
  for (const FileRecord& file : saved->manifest.files) bytes += file.bytes, blocks += block_count(file), headers += file.header_bytes;
  REQUIRE(blocks > 40);
  const auto verified = [&](std::uint64_t portion_blocks) {
    opened = 0, files.bytes_read = 0;
    const auto all = verify_all(files, the_root / "ckpt" / to_string(id), id, {}, {.readers = 1, .portion_blocks = portion_blocks});
    REQUIRE(said(all) == "");
    CHECK(all->is_whole());
    CHECK(all->bytes == bytes);
    CHECK(opened == 2 * 2);
    return files.bytes_read - bytes;  // records, and headers, which are in their blocks as well
  };
  const std::uint64_t records = verified(blocks);
  CHECK(records > headers);
  CHECK(verified(1) == records);
}

TEST_CASE("the shares of a reading world add up to what its ranks read", "[ckpt]") {
  FaultyFiles files;
  ModelTable model = small_model();
  model.units[0].elements = 900'000, model.units[0].tensors = {};
  TestJob job{files, 3, 1, model};
  start_and_save(job, {10});
  const Manifest manifest = side(files, "/ckpts").manifest;
  std::uint64_t host = 0;
  for (const AuxRecord& aux : manifest.aux) host += aux.bytes;
  for (const std::uint32_t world : {1u, 2u, 5u}) {
    const auto whole = reader_shares(manifest, reading_world(world, "0", 0).value());
    REQUIRE(whole->size() == world);
    for (const ReaderShare& s : *whole) CHECK(s.bytes == state_bytes(model) + host);
    const auto cut = reader_shares(manifest, reading_world(world, "3", 0).value());
    std::uint64_t bytes = 0, read = 0;
    for (const ReaderShare& s : *cut) bytes += s.bytes, read += s.read;
    CHECK(bytes == state_bytes(model) + world * host);
    CHECK(read >= state_bytes(model) + host);
    CHECK(read <= (state_bytes(model) + host) * 102 / 100 + world * 3 * 8192);  // each file is opened by each rank at the most
  }
  const auto in_nodes = reader_shares(manifest, reading_world(4, "hybrid3", 2).value());
  CHECK((*in_nodes)[0].bytes == (*in_nodes)[2].bytes);
  CHECK((*in_nodes)[0].bytes + (*in_nodes)[1].bytes == state_bytes(model) + 2 * host);
  const auto alone = reader_shares(manifest, reading_world(2, "mirrored1", 0).value()),
             thirds = reader_shares(manifest, reading_world(3, "mirrored3", 0).value());
  CHECK((*alone)[1].bytes == state_bytes(model) + host);
  std::uint64_t mirrored = 0;
  for (const ReaderShare& s : *thirds) mirrored += s.bytes;
  CHECK(mirrored == 2 * state_bytes(model) + 3 * host);
  for (const char* wrong : {"4", "", "hybrid1", "mirrored0", "mirrored", "mirrored4", "x", "33"}) CHECK_FALSE(reading_world(2, wrong, 0));
  CHECK_FALSE(reading_world(0, "0", 0));

  SECTION("and `reads` is what a load reads from storage") {
    const auto shares = reader_shares(manifest, reading_world(1, "0", 0).value());
    TestJob later{files, 1, 9, model};
    const auto start = later.start();
    REQUIRE(said(start) == "");
    files.bytes_read = 0;
    const std::uint64_t manifest_bytes = files.content(of({10, 1, 1}, manifest_file)).size();
    REQUIRE(said(later.load(*start)) == "");
    CHECK(files.bytes_read == (*shares)[0].read + manifest_bytes);
  }
}

TEST_CASE("sizes and ages are told in few digits", "[ckpt]") {
  CHECK(size_text(999) == "999 B");
  CHECK(size_text(1000) == "1.0 kB");
  CHECK(size_text(999'960) == "1.0 MB");
  CHECK(size_text(850'000'000'000) == "850.0 GB");
  CHECK(age_text(-1) == "-");
  CHECK(age_text(90'000'000'000) == "90 s");
  CHECK(age_text(7'000'000'000'000) == "116 min");
  CHECK(age_text(200'000'000'000'000) == "2 d");
}

}  // namespace elrun::test
