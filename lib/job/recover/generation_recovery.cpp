#include "lib/job/recover/generation_recovery.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {

void GenerationRecovery::attend(const Generation& here) {
  coordinator_changed_ = here.lineage != coordinator_;
  if (here.number == no_gap_until_) return;
  missed_none_ = no_gap_until_ > 0 && here.number == no_gap_until_ + 1;
  if (missed_none_) no_gap_until_ = here.number;
}

void GenerationRecovery::gather(JobWorld& world, const MemberStatus& mine) {
  const auto parts = expect(world, world.all_gather(encode(mine)));
  statuses_.clear();
  for (const ByteVector& part : parts) statuses_.push_back(expect(world, decode_member_status(part)));
}

void GenerationRecovery::settle(const Layout& layout, Sums sums, const SavedCheckpoint& saved) {
  settled_ = elrun::settle(layout, statuses_, sums, saved);
  if (auto same = check_same_update(statuses_, settled_.newest_step); !same.ok()) throw Error{std::move(same).failure()};
}

void GenerationRecovery::end_settling(bool whole_after_update) {
  bring_up_to_date(statuses_, settled_, whole_after_update);
  stage_ = Stage::settled;
}

bool GenerationRecovery::somebody_has_begun() const { return std::ranges::any_of(statuses_, &MemberStatus::has_begun); }

bool GenerationRecovery::somebody_runs() const {
  return std::ranges::any_of(statuses_,
                             [&](const MemberStatus& s) { return s.is_past_restore || (s.keeps_position && transfer_.complete); });
}

bool GenerationRecovery::were_compared() const {
  if (!transfer_.complete) return false;
  for (std::uint32_t r = 0; r < statuses_.size(); ++r) {
    const MemberStatus& s = statuses_[r];
    if (!transfer_.held[r] || transfer_.newcomers[r] || !s.whole_parameters) return false;
    if (s.before.world == 0 || s.before.generation != settled_.decided_in) return false;
  }
  return true;
}

std::vector<std::uint32_t> GenerationRecovery::nodes() const {
  std::vector<std::string> names;
  for (const MemberStatus& s : statuses_) names.push_back(s.node);
  return number_nodes(names);
}

const StateTransfer& GenerationRecovery::plan_transfer(const Layout& layout, const ShardMap& shards, const TransferFacts& facts) {
  transfer_ = plan_state_transfer(layout, statuses_, settled_.newest_step, shards.cuts);
  transfer_.beside = goes_beside(transfer_, statuses_, settled_.newest_step, facts);
  transfer_begun_ = evaluated_ = false;
  return transfer_;
}

void GenerationRecovery::share() { stage_ = Stage::shared; }

void GenerationRecovery::state_came(const Membership& here) {
  no_gap_until_ = here.generation.number;
  coordinator_ = here.generation.lineage;
  before_ = {here.generation, here.rank.value(), here.world.value()};
  nodes_before_ = {here.generation, {}};
  for (const MemberStatus& s : statuses_) nodes_before_.names.push_back(s.node);
}

bool GenerationRecovery::somebody_evaluates(JobWorld& world, bool i_am, std::uint64_t step) {
  if (!somebody_runs()) return false;
  world.now(Call::meeting);
  std::optional<std::uint32_t> evaluates, steps;
  const std::byte word{i_am};
  const auto words = expect(world, world.all_gather(std::span{&word, 1}));
  for (std::uint32_t r = 0; r < words.size(); ++r) {
    const bool does = words[r].size() == 1 && words[r][0] != std::byte{0};
    if (does && !evaluates) evaluates = r;
    if (!does && !steps && transfer_.complete && !transfer_.newcomers[r]) steps = r;
  }
  if (evaluates && steps)
    throw Error{Failure{Code::mismatch, Remedy::fix_config,
                        fmt::format("rank {} is in {} and rank {} in {} after step {}: make the same calls on all ranks, in the same order",
                                    *evaluates, name_of_call(static_cast<std::uint16_t>(Call::evaluate)), *steps,
                                    name_of_call(static_cast<std::uint16_t>(Call::next_step)), step)}};
  evaluated_ |= evaluates.has_value();
  return evaluates.has_value();
}

bool GenerationRecovery::frozen_may_be_older() const {
  bool has_newcomer = false, one_came_before = false, evaluations_differ = false;
  for (std::uint32_t r = 0; r < statuses_.size(); ++r) {
    has_newcomer |= transfer_.newcomers[r];
    one_came_before |= transfer_.newcomers[r] && transfer_.held[r].has_value();
    evaluations_differ |= !transfer_.newcomers[r] && statuses_[r].evaluations != giver().evaluations;
  }
  return transfer_.complete && has_newcomer && (evaluated_ || one_came_before || evaluations_differ);
}

std::optional<ByteVector> GenerationRecovery::evaluation_decided_elsewhere(std::uint64_t step, std::uint64_t evaluations) const {
  const auto at = std::ranges::find_if(
      statuses_, [&](const MemberStatus& s) { return s.has_state && s.knowledge.applied == step && s.evaluations == evaluations + 1; });
  return at == statuses_.end() ? std::nullopt : std::optional{at->evaluation};
}

}  // namespace elrun::inline v0
