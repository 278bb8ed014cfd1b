// VoteExchange and StepAudit without a job: what votes carry, and how an audited slot is judged.

#include "lib/job/commit/votes.hpp"

#include "lib/job/commit/step_audit.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {

TEST_CASE("after the exchange of votes every rank has the same losses, tokens, nodes and words of all", "[votes]") {
  const std::vector<std::vector<std::uint32_t>> slots{{0, 2}, {1}, {}};
  const std::vector<std::size_t> norm_nodes{1, 2, 0};
  std::mutex mutex;
  std::vector<std::tuple<float, std::uint64_t, std::vector<float>>> heard;
  int right = 0;
  in_world(3, [&](JobWorld& world, std::uint32_t rank) {
    VoteExchange votes{slots, 3, norm_nodes, rank};
    for (std::size_t i = 0; i < slots[rank].size(); ++i) votes.set_slot(i, static_cast<float>(slots[rank][i]) + 0.5f, 10 + slots[rank][i]);
    for (std::size_t i = 0; i < norm_nodes[rank]; ++i) votes.norm_nodes()[i] = static_cast<float>(rank * 10 + i);
    const VoteMessage mine{.vote = {world.membership().generation, 4, rank != 2},
                           .leaves = rank == 1,
                           .stops = rank == 0,
                           .audit_hash = 100 + rank,
                           .audit_probability = 0.25,
                           .update = {.passed = {.kind = 1 + rank}},
                           .parameters = 200 + rank};
    const bool done = votes.exchange(world, mine).ok();
    std::vector<float> nodes;
    for (const auto& of_rank : votes.all_norm_nodes()) nodes.insert(nodes.end(), of_rank.begin(), of_rank.end());
    const std::lock_guard lock{mutex};
    right += done;
    for (std::uint32_t r = 0; r < 3; ++r) {
      const VoteMessage message = votes.of_rank(r);
      right += message.vote == Vote{world.membership().generation, 4, r != 2} && message.leaves == (r == 1) && message.stops == (r == 0) &&
               message.audit_hash == 100 + r && message.audit_probability == 0.25 && message.update.passed.kind == 1 + r &&
               message.parameters == 200 + r;
    }
    heard.emplace_back(votes.sum_of_losses(), votes.tokens(), nodes);
  });
  CHECK(right == 3 * (1 + 3));
  REQUIRE(heard.size() == 3);
  for (const auto& [loss, tokens, nodes] : heard) {
    CHECK(loss == 4.5f);
    CHECK(tokens == 33);
    CHECK(nodes == std::vector<float>{0, 10, 11});
  }
}

TEST_CASE("an audited slot runs once on each auditor, before its own slots, and counts for nothing else", "[votes]") {
  const std::vector<std::vector<std::uint32_t>> slots{{0, 1}, {2, 3}, {4, 5}};
  int auditors = 0, owners = 0;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    StepAudit audit;
    CHECK_FALSE(audit.is_chosen());
    audit.choose(1, 3, 1.0, slots, rank);
    REQUIRE(audit.is_chosen());
    auditors += audit.is_due();
    owners += !audit.is_due();
    if (!audit.is_due()) continue;
    const auto slot = audit.take_slot();
    REQUIRE(slot.has_value());
    CHECK(audit.is_running());
    CHECK_FALSE(audit.is_due());
    CHECK_FALSE(audit.audits(*slot + 1));
    CHECK(audit.audits(*slot));
    audit.note(17, 1, 2);
    const std::uint64_t hash = audit.hash();
    CHECK(hash != 0);
    audit.note(18, 1, 2);
    CHECK(audit.hash() != hash);
    CHECK(audit.end_slot());
    CHECK_FALSE(audit.take_slot().has_value());
    CHECK_FALSE(audit.end_slot());
  }
  CHECK(auditors == 2);
  CHECK(owners == 1);
}

TEST_CASE("the rank whose gradient differs from two others is outvoted; of two, nobody is", "[votes]") {
  const auto judge = [](std::uint32_t world, std::uint32_t wrong) {
    std::vector<std::vector<std::uint32_t>> slots;
    for (std::uint32_t r = 0; r < world; ++r) slots.push_back({r});
    StepAudit audit;
    audit.choose(1, 3, 1.0, slots, 0);
    std::vector<std::uint64_t> hashes(world, 7);
    if (wrong < world) hashes[wrong] = 8;
    return audit.judge(4, hashes);
  };
  CHECK_FALSE(judge(3, 3).has_value());
  for (std::uint32_t wrong = 0; wrong < 3; ++wrong) {
    const auto verdict = judge(3, wrong);
    REQUIRE(verdict.has_value());
    CHECK(verdict->outvoted);
    CHECK(verdict->culprit == wrong);
    CHECK(verdict->reporter != wrong);
    CHECK_THAT(verdict->what, Catch::Contains("in step 4"));
  }
  const auto of_two = judge(2, 1);
  REQUIRE(of_two.has_value());
  CHECK_FALSE(of_two->outvoted);
}

}  // namespace elrun::test
