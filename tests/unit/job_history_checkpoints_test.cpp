// What the record of a job's checkpoints shows: how old the newest one is, and which saves failed.
#include <csignal>

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/unit/job_history_node.hpp"

namespace elrun::test::history {

TEST_CASE("saves that failed, and the age of the newest checkpoint, are shown", "[pages]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  node.on(FromWorker{5, Hello{.rank = 2, .world = 4, .is_job = true}});
  const auto said = [&] { return *status_for_people(status_page(node.snapshot())); };
  CHECK(has(node.metrics_text(), "elrun_saves_failed_total 0\n"));
  CHECK_FALSE(has(node.metrics_text(), "elrun_checkpoint_age_seconds"));  // nobody has said that there are any
  node.on(FromWorker{5, WentOnFrom{generation(1), {"", 0, 0, "there is no checkpoint", {}}}});
  node.pass(5s);
  CHECK(has(node.metrics_text(), "elrun_checkpoint_age_seconds 5\n"));
  CHECK(has(said(), "  checkpoints: 5.0 s since the newest one was saved or loaded (else since the start)\n"));
  const Failure full{Code::no_space, Remedy::fix_config, "write /ck/x: No space left on device"};
  for (const ConnectionId worker : {5u, 6u}) node.on(FromWorker{worker, SaveFailed{generation(1), 40, 1, full}});  // both say the same
  node.on(FromWorker{5, SaveFailed{generation(7), 1, 9, full}});                                                   // of no generation here
  CHECK(has(node.metrics_text(), "elrun_saves_failed_total 1\n"));
  CHECK(has(node.metrics_text(), "elrun_last_save_failure_info{code=\"no_space\"} 1\n"));
  CHECK(has(said(),
            "(else since the start); 1 save failed\n  the newest save failed, of step 40: no_space: write /ck/x: No space left on device"));
  CHECK(nlohmann::json::parse(status_page(node.snapshot()))["checkpoints"]["saves_failed"] == 1);
  SECTION("a checkpoint that is saved ends the failure, not the count") {
    node.pass(5s);
    node.on(FromWorker{5, CheckpointSaved{"s60"}});
    node.pass(1s);
    CHECK(has(node.metrics_text(), "elrun_checkpoint_age_seconds 1\n"));
    CHECK(has(node.metrics_text(), "elrun_saves_failed_total 1\n"));
    CHECK_FALSE(has(node.metrics_text(), "elrun_last_save_failure_info{"));
    CHECK_FALSE(has(said(), "the newest save failed"));
  }
  SECTION("the next generation counts on, and the checkpoint grows older") {
    node.hear(Revoke{generation(1), worker_killed});
    node.end(0, {.signal = SIGTERM}), node.end(1, {.signal = SIGTERM});
    node.begin(2);
    node.on(FromWorker{5, SaveFailed{generation(2), 60, 1, full}});
    node.on(FromWorker{5, SaveFailed{generation(2), 80, 2, full}});
    CHECK(has(node.metrics_text(), "elrun_saves_failed_total 3\n"));
    CHECK(has(node.metrics_text(), "elrun_checkpoint_age_seconds 5\n"));
    CHECK(has(said(), "3 saves failed\n"));
  }
  for (const char* odd :
       {R"({"checkpoints":{"age_seconds":"x","last_failure":7,"saves_failed":-1}})", R"({"checkpoints":{"saves_failed":2}})"})
    CHECK(status_for_people(odd).ok());
}

TEST_CASE("the newest checkpoint only grows older, whoever tells late of it or of an older one", "[pages]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  node.on(FromWorker{5, Hello{.rank = 2, .world = 4, .is_job = true}});
  const auto saved = [](std::uint64_t step, FenceNumber fence, const std::string& root = "/ca") {
    return CheckpointSaved{
        encode(Acknowledgement{{step, fence, 1}, std::string(32, root.back()), {"run", Generation{3, {{1, 2}}}, 1}, root, "abc"})};
  };
  const std::string second = "elrun_checkpoint_age_seconds 1\n", sixth = "elrun_checkpoint_age_seconds 6\n";
  const Failure full{Code::no_space, Remedy::fix_config, "write /ck/x: No space left on device"};
  std::string expected = sixth;
  SECTION("a checkpoint was saved") {
    node.on(FromWorker{5, saved(40, 3)});
    node.on(FromWorker{5, SaveFailed{generation(1), 60, 1, full}});
    node.pass(5s);
    SECTION("another worker tells of it late") { node.on(FromWorker{6, saved(40, 3)}); }
    SECTION("a leader that was frozen tells of an earlier step") { node.on(FromWriter{9, saved(30, 3)}); }
    SECTION("a leader that was frozen tells of an older fence, although of a later step") { node.on(FromWriter{9, saved(50, 2)}); }
    SECTION("a later step is newer") {
      node.on(FromWriter{9, saved(60, 3)});
      expected = second;
    }
    SECTION("a newer fence is newer, also where the job went back") {
      node.on(FromWriter{9, saved(20, 4)});
      expected = second;
    }
    SECTION("fences of another root are its own") {
      node.on(FromWriter{9, saved(10, 1, "/cb")});
      expected = second;
    }
    CHECK(has(node.metrics_text(), "elrun_last_save_failure_info{") == (expected == sixth));
  }
  SECTION("the job went on from one, in an agent that has heard of no save") {
    node.on(
        FromWorker{5, WentOnFrom{generation(1), {"/ca/ckpt/" + to_string(CheckpointId{40, 3, 1}), 40, 0, "the newest checkpoint", {}}}});
    node.pass(5s);
    SECTION("and hears of that") { node.on(FromWriter{9, saved(40, 3)}); }
    SECTION("and hears of an older fence") { node.on(FromWriter{9, saved(50, 2)}); }
    SECTION("and hears of a newer one") {
      node.on(FromWriter{9, saved(45, 4)});
      expected = second;
    }
    SECTION("and hears of one in another root") {
      node.on(FromWriter{9, saved(10, 1, "/cb")});
      expected = second;
    }
  }
  node.pass(1s);
  CHECK(has(node.metrics_text(), expected));
}

TEST_CASE("a return to an in-memory checkpoint makes no checkpoint on the storage younger", "[pages]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  node.on(FromWorker{5, Hello{.rank = 2, .world = 4, .is_job = true}});
  const auto from_memory = [&] {
    node.on(FromWorker{5, WentOnFrom{generation(1), {std::string{in_memory_checkpoint}, 112, 3, "the newest in-memory checkpoint", {}}}});
  };
  SECTION("a checkpoint was saved or loaded before") {
    const auto saved = [](std::uint64_t step, FenceNumber fence) {
      return CheckpointSaved{
          encode(Acknowledgement{{step, fence, 1}, std::string(32, 'a'), {"run", Generation{3, {{1, 2}}}, 1}, "/ca", "abc"})};
    };
    const auto id = GENERATE(false, true) ? to_string(CheckpointId{40, 3, 1}) : std::string{};
    if (id.empty()) node.on(FromWorker{5, saved(40, 3)});
    else node.on(FromWorker{5, WentOnFrom{generation(1), {"/ca/ckpt/" + id, 40, 0, "the newest checkpoint", {}}}});
    node.pass(3600s);
    from_memory();
    CHECK(has(node.metrics_text(), "elrun_checkpoint_age_seconds 3600\n"));
    node.on(FromWriter{9, saved(50, 2)});  // a leader that was frozen tells late of an older fence
    CHECK(has(node.metrics_text(), "elrun_checkpoint_age_seconds 3600\n"));
    node.on(FromWriter{9, saved(120, 3)});
    CHECK(has(node.metrics_text(), "elrun_checkpoint_age_seconds 0\n"));
  }
  SECTION("nobody has said that there is one") {
    from_memory();
    CHECK_FALSE(has(node.metrics_text(), "elrun_checkpoint_age_seconds"));
    CHECK_FALSE(has(*status_for_people(status_page(node.snapshot())), "since the newest one was saved or loaded"));
  }
}

TEST_CASE("saves that were left out, and what ckptd has written, are shown", "[pages]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  node.on(FromWorker{5, Hello{.rank = 2, .world = 4, .is_job = true}});
  const auto said = [&] { return *status_for_people(status_page(node.snapshot())); };
  CHECK(has(node.metrics_text(), "elrun_saves_left_out_total 0\n"));
  CHECK_FALSE(has(said(), "left out"));
  CHECK_FALSE(has(said(), "ckptd"));
  for (const ConnectionId worker : {5u, 6u}) node.on(FromWorker{worker, SaveLeftOut{generation(1), 40, 1}});  // both say the same
  node.on(FromWorker{5, SaveLeftOut{generation(1), 60, 2}});
  node.on(FromWorker{5, SaveLeftOut{generation(7), 80, 9}});  // of no generation here
  CHECK(has(node.metrics_text(), "elrun_saves_left_out_total 2\n"));
  CHECK(has(said(), "  2 saves left out, for the one before was still being written; the newest of step 60\n"));
  node.on(FromWriter{9, PartVoted{40, 2, 500'000'000, 2s, {}}});
  node.on(FromWriter{9, PartVoted{40, 3, 100'000'000, 1s, {}}});
  node.on(FromWriter{9, PartVoted{60, 2, 500'000'000, 2s, Failure{Code::io, Remedy::retry, "sync /ck/x: Input/output error"}}});
  CHECK(has(node.metrics_text(), "elrun_checkpoint_parts_total{vote=\"yes\"} 2\n"));
  CHECK(has(node.metrics_text(), "elrun_checkpoint_parts_total{vote=\"no\"} 1\n"));
  CHECK(has(node.metrics_text(), "elrun_checkpoint_part_bytes_total 600000000\n"));
  CHECK(has(said(), "  elrun ckptd: 2 parts written with 0.60 GB, the newest at 100 MB/s; 1 could not be written\n"));
  for (const char* odd :
       {R"({"checkpoints":{"left_out":3,"parts":[]}})", R"({"checkpoints":{"left_out":{"saves":"x"},"parts":{"bytes":"y"}}})"})
    CHECK(status_for_people(odd).ok());
}

}  // namespace elrun::test::history
