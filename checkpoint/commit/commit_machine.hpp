#pragma once
/// \file Core: the order of one save, as its leader conducts it. Events in, at most one action out; no file, no clock, no network.
///
///   begin()    looking_first  asking_space  reading_run  naming  making_directory
///              collecting     here the ticket goes to all ranks, and their votes come back
///              merging        MANIFEST, once all have voted yes
///              asking_owner   looking          may this process commit?
///              publishing     COMMIT
///              asking_owner_again  looking_again    may it still? Only then is the save promised to anybody
///              acknowledging  committed
///
/// A failure before `publishing` removes what the save left. From there on nothing is removed, for COMMIT may be there: the next start judges it.
/// README.md says what a crash after each action leaves.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "checkpoint/commit/fence.hpp"
#include "checkpoint/commit/messages.hpp"
#include "checkpoint/commit/votes.hpp"
#include "checkpoint/format/names.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {

/// How long a save waits. Nothing: without end.
struct CommitLimits {
  std::optional<Duration> votes{};    ///< For all votes, from the ticket on. Then the save fails and names the ranks that are missing.
  std::optional<Duration> owner{};    ///< For the job to say whether this process still leads. Then nobody can tell, and the fence decides.
  std::optional<Duration> storage{};  ///< For one action on the storage. Then the save fails; what it left is the next `retain`'s.
};

/// Who saves.
struct CommitTerms {
  FenceNumber fence = 0;  ///< Claimed by this process.
  Author author{};
  std::uint32_t world = 1;
  std::string root{};  ///< The path, for messages.
  CommitLimits limits{};
};

/// The manifest of a save, as COMMIT vouches for it.
struct ManifestWritten {
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  std::string sha256;
  std::uint64_t files = 0, total_bytes = 0;  ///< Of the shards.
};

namespace commit {

// What the shell is to do. Beside each: what it answers. Any may be answered by a Failure.
struct LookAtFences {};  ///< FencesSeen
struct AskSpace {        ///< SpaceLeft; where that is less than is needed, after what may go has been removed
  std::uint64_t step = 0;
  Bytes needs{};
  MakeRoom room{};
};
struct ReadRun {};        ///< RunKnown; RUN.json is made where there is none
struct ListAttempts {};   ///< AttemptsFound
struct MakeDirectory {};  ///< Done: it is new, and its name is durable
struct WriteManifest {    ///< ManifestWritten: the parts are what was voted for, the manifest and all names in the directory are durable
  std::vector<PartVote> votes;
};
struct AskOwner {};     ///< Done: this process still leads, or nobody can tell
struct PublishCommit {  ///< Done: COMMIT is there under its name, complete and durable
  ManifestWritten manifest;
};
struct Acknowledge {  ///< Done: the acknowledgement is durable
  ManifestWritten manifest;
};
struct Abandon {};  ///< Done or not: what the save left is removed, as far as that goes

struct SpaceLeft {
  Bytes bytes;
};
struct RunKnown {
  std::string root;  ///< Its identity.
};
struct AttemptsFound {
  std::vector<CheckpointId> taken;  ///< Of any step and fence: what is there, and what this process made or tried to make.
};
struct Done {};

struct CommitAction {
  std::uint64_t number = 0;  ///< An answer bears the number of its action.
  SaveTicket ticket;         ///< Whole from `MakeDirectory` on.
  std::variant<LookAtFences, AskSpace, ReadRun, ListAttempts, MakeDirectory, WriteManifest, AskOwner, PublishCommit, Acknowledge, Abandon>
      what;
};
using CommitAnswer = std::variant<Failure, Done, FencesSeen, SpaceLeft, RunKnown, AttemptsFound, ManifestWritten>;

struct Answered {
  std::uint64_t number = 0;
  CommitAnswer answer;
};
/// By whatever way: through the job's store, or gathered from all ranks. At any time, in any order, any number of times.
struct VoteArrived {
  VoteKey key;
  PartVote vote;
};
struct NoMoreVotes {};  ///< All that will ever come are there.
struct GiveUp {         ///< Somebody else knows that this save is no use. Counts until COMMIT is asked for.
  Failure why;
};
struct TimePassed {};
using CommitEvent = std::variant<Answered, VoteArrived, NoMoreVotes, GiveUp, TimePassed>;

}  // namespace commit
using commit::CommitAction, commit::CommitAnswer, commit::CommitEvent;

enum class CommitPhase {
  looking_first,
  asking_space,
  reading_run,
  naming,
  making_directory,
  collecting,
  merging,
  asking_owner,
  looking,
  publishing,
  asking_owner_again,
  looking_again,
  acknowledging,
  committed,  ///< Over: no crash loses this checkpoint from here on, and its loss by other ways is noticed.
  abandoning,
  failed,  ///< Over: `failure` says why.
};

/// A value. Actions are performed one after the other, in the order in which they come out; only the newest one's answer counts.
class CommitMachine {
 public:
  struct Save {
    std::uint64_t step = 0;
    Bytes needs{};  ///< Free space.
    MakeRoom room{};
  };
  /// From the first look on.
  [[nodiscard]] static CommitMachine begin(CommitTerms terms, Save save);
  /// A save whose ticket is out: from its votes on.
  [[nodiscard]] static CommitMachine collect(CommitTerms terms, SaveTicket ticket);

  /// The first action; nothing where votes are what it waits for.
  std::optional<CommitAction> start(Instant now);
  std::optional<CommitAction> on(const CommitEvent& event, Instant now);

  [[nodiscard]] CommitPhase phase() const { return phase_; }
  [[nodiscard]] bool is_over() const { return phase_ == CommitPhase::committed || phase_ == CommitPhase::failed; }
  /// From `collecting` on.
  [[nodiscard]] const SaveTicket& ticket() const { return ticket_; }
  /// COMMIT may be there.
  [[nodiscard]] bool may_be_published() const { return published_; }
  /// Why it failed; of a save that is over or abandoned.
  [[nodiscard]] const Failure& failure() const { return failure_; }
  /// When time alone changes something.
  [[nodiscard]] Instant wake_at() const { return until_; }
  /// For what it waits, a clause: "the votes of ranks 3, 5 to 7 on s...".
  [[nodiscard]] std::string waits_for() const;

 private:
  CommitMachine(CommitTerms terms, CommitPhase phase, VoteCount votes)
      : terms_{std::move(terms)}, phase_{phase}, votes_{std::move(votes)} {}
  std::optional<CommitAction> answered(const commit::Answered& event, Instant now);
  std::optional<CommitAction> hear(const commit::VoteArrived& event, Instant now);
  std::optional<CommitAction> time_passed(Instant now);
  std::optional<CommitAction> enter(CommitPhase phase, Instant now);
  std::optional<CommitAction> fail(Failure why, Instant now);
  Result<void> accept(const CommitAnswer& answer);
  Result<void> name_attempt(const commit::AttemptsFound& found);
  [[nodiscard]] Result<void> has_room(Bytes left) const;
  [[nodiscard]] Failure votes_missing() const;

  CommitTerms terms_;
  CommitPhase phase_;
  Save save_{};
  SaveTicket ticket_{};
  VoteCount votes_;
  ManifestWritten manifest_{};
  Failure failure_{};
  std::uint64_t number_ = 0;  // of the newest action
  Instant until_ = Instant::max();
  Duration waits_{};  // until then, from the beginning of the phase
  bool published_ = false;
};

}  // namespace elrun::inline v0
