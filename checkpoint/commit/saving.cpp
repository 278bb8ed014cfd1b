// Checkpointer: saves. The commit machine says what comes next, save_actions does it.

#include <utility>

#include <fmt/format.h>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/commit/save_actions.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/format/shard.hpp"
#include "checkpoint/storage/shard_writer.hpp"
#include "lib/base/crc32c.hpp"

namespace elrun::inline v0 {

using namespace commit;

namespace {

constexpr Bytes space_reserve = 4_MiB;  // for the other files of a save, and for others on the disk

/// Of an operation of a tier that failed so nobody knows it.
bool may_have_taken_effect(Code why) { return why == Code::io || why == Code::unreachable || why == Code::deadline_passed; }

CommitTerms terms(const CheckpointRoot& root, const OwnFence& fence, const CommitLimits& limits) {
  return {.fence = fence.number(), .author = root.author(), .world = root.saver().world.value(), .root = root.where(), .limits = limits};
}

}  // namespace

CommitMachine Checkpointer::new_save(std::uint64_t step, std::uint64_t aux_bytes, const CommitLimits& limits, MakeRoom room) const {
  const std::uint64_t state = state_bytes(root_.saver().model) + aux_bytes;
  const Bytes needs = Bytes{state + state / 50} + Bytes{root_.saver().world.value() * std::uint64_t{16384}} + space_reserve;
  return CommitMachine::begin(terms(root_, fence_, limits), {step, needs, room});
}

CommitMachine Checkpointer::save_of(const SaveTicket& ticket, const CommitLimits& limits) const {
  CommitTerms of_ticket = terms(root_, fence_, limits);
  of_ticket.fence = ticket.id.fence;  // not a later one of this process
  return CommitMachine::collect(std::move(of_ticket), ticket);
}

CommitAnswer Checkpointer::perform(const CommitAction& action) {
  if (std::holds_alternative<MakeDirectory>(action.what)) tried_ = action.ticket.id;
  const bool is_publication = std::holds_alternative<PublishCommit>(action.what);
  const SaveContext scene{root_, fence_, timeline_};
  CommitAnswer answer = elrun::perform(scene, action);
  if (const auto* ask = std::get_if<AskSpace>(&action.what))
    if (const auto* left = std::get_if<SpaceLeft>(&answer); left != nullptr && left->bytes < ask->needs) {
      make_room(*ask);
      answer = elrun::perform(scene, action);
    }
  if (auto* found = std::get_if<AttemptsFound>(&answer); found != nullptr && tried_) found->taken.push_back(*tried_);
  if (const auto* failure = std::get_if<Failure>(&answer); is_publication && failure != nullptr && may_have_taken_effect(failure->code))
    doubtful_.push_back(action.ticket.id);
  if (is_publication && std::holds_alternative<Done>(answer)) timeline_.push_back(action.ticket.id), whole_.push_back(action.ticket.id);
  return answer;
}

/// Until it waits for votes, or is over. Blocking calls have no limits, so no time passes for the machine.
void Checkpointer::drive(CommitMachine& save, std::optional<CommitAction> next, const std::function<Result<void>()>& still_owner) {
  while (next) {
    CommitAnswer answer = Done{};
    if (!std::holds_alternative<AskOwner>(next->what)) answer = perform(*next);
    else if (auto asked = still_owner(); !asked.ok()) answer = std::move(asked).failure();
    next = save.on(Answered{next->number, std::move(answer)}, Instant{});
  }
}

Result<SaveTicket> Checkpointer::begin_save(std::uint64_t step, std::uint64_t aux_bytes, MakeRoom room) {
  CommitMachine save = new_save(step, aux_bytes, {}, room);
  drive(save, save.start(Instant{}), [] { return Result<void>{}; });
  if (save.is_over()) return root_.explained(save.failure());
  return save.ticket();
}

Result<void> Checkpointer::commit(const SaveTicket& ticket, std::span<const PartVote> votes,
                                  const std::function<Result<void>()>& still_owner) {
  if (votes.size() > root_.saver().world.value()) {
    abandon(ticket);
    return Failure{Code::protocol, Remedy::abort_group,
                   fmt::format("checkpoint {}: {} votes of {} ranks", to_string(ticket.id), votes.size(), root_.saver().world.value())};
  }
  CommitMachine save = save_of(ticket);
  for (std::uint32_t rank = 0; rank < votes.size() && save.phase() == CommitPhase::collecting; ++rank)
    drive(save, save.on(VoteArrived{{ticket.id, rank}, votes[rank]}, Instant{}), still_owner);
  drive(save, save.on(NoMoreVotes{}, Instant{}), still_owner);
  return outcome(save);
}

/// What the job hears of a save that is over.
Result<void> Checkpointer::outcome(const CommitMachine& save) const {
  if (save.phase() == CommitPhase::committed) return {};
  Failure why = save.failure();
  const auto saver_rank = why.rank;
  why = root_.explained(std::move(why));
  if (saver_rank) why.rank = saver_rank;               // the rank that voted no
  if (save.ticket().id == CheckpointId{}) return why;  // it had no name yet
  why.what = fmt::format("checkpoint {} was not saved: {}", to_string(save.ticket().id), why.what);
  return why;
}

Result<void> Checkpointer::check_fence() const {
  auto checked = fence_.check_newest(root_);
  if (checked.ok()) return checked;
  return root_.explained(std::move(checked).failure());
}

void Checkpointer::abandon(const SaveTicket& ticket) { remove_uncommitted(root_, ticket); }

PartVote Checkpointer::write_part(const SaveTicket& ticket, std::span<const Fragment> fragments, std::span<const Aux> aux,
                                  const ShardWriting& how) {
  PartVote vote{.id = ticket.id, .rank = root_.saver().rank.value(), .refusal = {}};
  if (auto written = write_part_files(ticket, fragments, aux, how, vote); !written.ok())
    vote.refusal = root_.explained(std::move(written).failure());
  return vote;
}

Result<void> Checkpointer::write_part_files(const SaveTicket& ticket, std::span<const Fragment> fragments, std::span<const Aux> aux,
                                            const ShardWriting& how, PartVote& vote) {
  const std::uint32_t rank = root_.saver().rank.value(), world = root_.saver().world.value();
  const std::string directory = checkpoint_directory(ticket.id);
  // A leader that sees another storage gives out names that are taken in this one. Where this look fails the next operation does, too.
  const auto commit = root_.tier().get_all(name_in(directory, commit_file), commit_bytes_max);
  if (commit.ok() || commit.failure().code == Code::corrupt)
    return Failure{
        Code::already_exists, Remedy::fix_config,
        fmt::format("{} is a checkpoint already, so nothing is written there; the leader of this save does not see it: mount the same "
                    "storage on all nodes",
                    root_.where(directory))};
  ELRUN_TRY_ASSIGN(const ShardLayout layout,
                   lay_out_shard(root_.saver().model, ticket.id, ticket.root, root_.author(), rank, world, fragments, aux));
  auto part = write_shard(root_.tier(), directory, layout, how);
  if (!part.ok()) {
    Failure why = std::move(part).failure();
    if (why.code == Code::no_space) {
      const auto left = root_.tier().space_left();
      why.what = fmt::format(
          "{} needs {} bytes, {} bytes are free under {} ({}): free some space, keep fewer checkpoints, or choose "
          "another directory",
          layout.part.file.name, layout.part.file.bytes, left.ok() ? fmt::to_string(left->value()) : "an unknown number of", root_.where(),
          why.what);
    }
    return why;
  }
  const std::string text = encode(*part);
  const std::string name = name_in(directory, part_name(rank, world));
  if (auto written = root_.tier().put(name, as_bytes(text)); !written.ok()) {  // from here on the shard is durable, too
    (void)root_.tier().discard(name);
    (void)root_.tier().discard(name_in(directory, layout.part.file.name));
    return written;
  }
  vote.part_bytes = text.size();
  vote.part_crc = crc32c(as_bytes(text));
  return {};
}

}  // namespace elrun::inline v0
