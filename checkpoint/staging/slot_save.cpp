#include "checkpoint/staging/slot_save.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/commit/newest.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/staging/save_keys.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration call_wait = 1s;         // of one call of the store; between two it is asked whether the save goes on
constexpr Duration pause = 100ms;          // before a call that failed is made again
constexpr std::size_t missing_named = 16;  // ranks that one failure names

/// Another name, a moment later, may succeed.
bool is_tried_again(Code why, unsigned attempt) {
  const bool may_be_a_moment = why == Code::io || why == Code::unreachable || why == Code::corrupt || why == Code::already_exists;
  return attempt < save_tries_max && may_be_a_moment;
}

/// The calls of one save to the store, each made again until it succeeds or the save is over.
class SaveMeeting {
 public:
  SaveMeeting(const SlotSaveHost& host, SaveKeys keys, const SlotRecord& record)
      : host_{host}, keys_{keys}, generation_{record.generation}, world_{record.world}, noted_{noted_save(record)} {}

  [[nodiscard]] Result<void> may_go_on() const {
    if (auto why = host_.cancel()) return *std::move(why);
    return {};
  }
  Result<void> put(const std::string& key, const ByteVector& value) {
    return until_done(key, [&] { return host_.store.set(key, value, soon()); });
  }
  Result<void> put_newest(const std::string& acknowledgement) {
    return until_done(newest_checkpoint_key, [&] { return tell_newest(host_.store, acknowledgement, soon()); });
  }
  /// Until another writer has said this, or one of them never will, or `may_wait` fails, which is asked about once a second.
  Result<ByteVector> await(unsigned attempt, const std::string& key, const std::function<Result<void>()>& may_wait = {}) {
    for (;;) {
      ELRUN_TRY(in_time(key));
      auto got = host_.store.get(key, soon());
      if (got.ok()) return std::move(got).value();
      if (is_hopeless(got.failure())) return std::move(got).failure();
      if (got.failure().code != Code::deadline_passed) host_.sleep(pause);
      if (auto gone = nobody_is_gone(attempt); !gone.ok()) {
        if (const auto there = host_.store.num_keys(key, soon()); there.ok() && *there > 0) continue;  // it had said it before it was gone
        return std::move(gone).failure();
      }
      if (may_wait) ELRUN_TRY(may_wait());
    }
  }
  /// Until every rank has voted yes; the failure of one that did not, or the names of those that said nothing.
  Result<std::vector<PartVote>> votes(unsigned attempt, const PartVote& mine, const std::function<Result<void>()>& may_wait) {
    std::vector<PartVote> all;
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      if (rank == mine.rank) {
        all.push_back(mine);
      } else {
        auto bytes = await(attempt, keys_.vote(attempt, rank), may_wait);
        if (!bytes.ok() && bytes.failure().code == Code::deadline_passed) return missing(attempt, mine.rank);
        if (!bytes.ok()) return std::move(bytes).failure();
        ELRUN_TRY_ASSIGN(PartVote vote, decode_part_vote(*bytes));
        all.push_back(std::move(vote));
      }
      if (all.back().refusal) {
        Failure why = *all.back().refusal;
        why.rank = Rank{rank};
        return why;
      }
    }
    return all;
  }
  /// Before the first key of this save: whoever leads a later one removes them.
  void note() {
    (void)until_done(noted_saves_key, [&] { return note_save(host_.store, noted_, soon()); });
  }
  /// No save begins before all ranks know how the one before ended, so nobody asks for the keys of older ones any more.
  void sweep() {
    sweep_saves(host_.store, noted_, [this] { return soon(); });
  }
  /// Nobody asks for what this writer has said, and whoever leads a later save may have swept already.
  void take_back(const std::string& key) { (void)host_.store.remove(key, soon()); }

 private:
  template <class Call>
  Result<void> until_done(std::string_view key, Call call) {
    for (;;) {
      ELRUN_TRY(in_time(key));
      auto done = call();
      if (done.ok() || is_hopeless(done.failure())) return done;
      host_.sleep(pause);
    }
  }
  static bool is_hopeless(const Failure& why) { return why.code == Code::invalid_argument || why.code == Code::protocol; }
  [[nodiscard]] Deadline soon() const {
    const Instant now = host_.clock.now();
    return Deadline::after(now, std::clamp<Duration>(host_.deadline() - now, Duration{1ms}, call_wait));
  }
  Result<void> in_time(std::string_view key) {
    ELRUN_TRY(may_go_on());
    if (host_.clock.now() < host_.deadline()) return {};
    return Failure{Code::deadline_passed, Remedy::retry,
                   fmt::format("the save was not over in time: {} did not come in the job's store", key)};
  }
  /// Nobody whose part of this try is not there. A store that does not answer says nothing of it: whoever waits asks again, until the save's time is over.
  Result<void> nobody_is_gone(unsigned attempt) {
    const auto count = host_.store.num_keys(keys_.all_gone(), soon());
    if (auto broken = broken_promise(host_.store, generation_, soon())) return *std::move(broken);
    if (!count.ok()) return {};
    std::uint64_t found = 0;
    for (std::uint32_t rank = 0; rank < world_ && found < *count; ++rank) {
      ELRUN_TRY(in_time(keys_.all_gone()));
      const auto is_gone =
          host_.store.num_keys(keys_.gone(rank), soon());  // which is answered at once; a `get` would wait for a key that is not there
      if (!is_gone.ok()) return {};
      if (*is_gone == 0) continue;
      ++found;
      const auto has_voted = host_.store.num_keys(keys_.vote(attempt, rank), soon());
      if (!has_voted.ok()) return {};
      if (*has_voted > 0) continue;
      const auto said = host_.store.get(keys_.gone(rank), soon());
      if (!said.ok()) return {};
      ELRUN_TRY_ASSIGN(const PartVote vote, decode_part_vote(*said));
      if (vote.refusal) return *vote.refusal;
    }
    return {};
  }
  /// The save's time is over: this takes no more than one call's.
  Failure missing(unsigned attempt, std::uint32_t mine) {
    std::string names;
    std::uint32_t count = 0;
    std::optional<Rank> first;
    const Deadline until = Deadline::after(host_.clock.now(), call_wait);
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      if (rank == mine) continue;
      if (auto goes_on = may_go_on(); !goes_on.ok()) return std::move(goes_on).failure();
      const auto there = host_.store.num_keys(keys_.vote(attempt, rank), until);
      if (!there.ok())
        return {
            .code = Code::deadline_passed,
            .remedy = Remedy::retry,
            .what = fmt::format(
                "not all parts of the checkpoint are known to be written in time. Whose are not cannot be told, for the job's store does not answer: {}",
                there.failure().what)};
      if (*there > 0) continue;
      if (!first) first = Rank{rank};
      if (count++ < missing_named) names += fmt::format("{}{}", names.empty() ? "" : ", ", rank);
    }
    return {.code = Code::deadline_passed,
            .remedy = Remedy::retry,
            .what = fmt::format("{} of {} parts of the checkpoint were not written in time; missing: {} {}{}", count, world_,
                                count == 1 ? "rank" : "ranks", names,
                                count > missing_named ? fmt::format(" and {} more", count - missing_named) : ""),
            .rank = first};
  }

  const SlotSaveHost& host_;
  const SaveKeys keys_;
  const Generation generation_;
  const std::uint32_t world_;
  const NotedSave noted_;
};

/// One try. `again`: another one may follow.
struct Tried {
  Result<std::string> acknowledged;
  bool again = false;
};

class SlotSave {
 public:
  SlotSave(const SlotView& slot, const SlotRecord& record, const SlotSaveHost& host)
      : record_{record},
        host_{host},
        keys_{noted_save(record)},
        meeting_{host, keys_, record},
        fragments_{slot.fragments(record)},
        checkpointer_{host.files,
                      host.clock,
                      host.log,
                      record.directory,
                      Saver{record.run_id, record.generation, Rank{record.rank}, WorldSize{record.world}, record.plan, record.model},
                      host.operations_at_once} {
    checkpointer_.take_over(record.ownership);
  }

  SaveOutcome run() {
    SaveOutcome out{record_.ownership.fence, record_.step};
    if (record_.rank == 0) meeting_.note();
    for (unsigned attempt = 1;; ++attempt) {
      Tried tried = record_.rank == 0 ? lead(attempt) : follow(attempt);
      if (tried.acknowledged.ok()) out.acknowledgement = std::move(tried.acknowledged).value();
      else if (tried.again) continue;
      else out.failure = std::move(tried.acknowledged).failure();
      if (out.failure && !out.failure->generation) out.failure->generation = record_.generation;
      if (record_.rank == 0) meeting_.sweep();
      return out;
    }
  }

 private:
  PartVote write(const SaveTicket& ticket) {
    const Instant begun = host_.clock.now();
    PartVote vote = fragments_.ok() ? checkpointer_.write_part(ticket, *fragments_, record_.aux, host_.writing)
                                    : PartVote{.id = ticket.id, .rank = record_.rank, .refusal = fragments_.failure()};
    if (host_.voted) host_.voted(vote, host_.clock.now() - begun);
    return vote;
  }

  static bool is_taken_over(const Failure& why) { return why.code == Code::generation_over || why.code == Code::refused; }
  /// A leader that was frozen waits for votes that never come: their ranks save with a later generation by now. A storage that cannot be asked says nothing.
  Result<void> is_not_taken_over() {
    auto newest = checkpointer_.check_fence();
    return newest.ok() || !is_taken_over(newest.failure()) ? Result<void>{} : newest;
  }

  /// Says a failure to the others, and whether another try follows.
  Tried fail(unsigned attempt, const std::string& key, Failure why) {
    // A later generation removes what this save has written, which looks like a fault of the storage.
    if (meeting_.may_go_on().ok())
      if (auto still = is_not_taken_over(); !still.ok()) why = std::move(still).failure();
    const bool again = is_tried_again(why.code, attempt) && meeting_.may_go_on().ok();
    if (again)
      host_.log.warning(fmt::format("the checkpoint of step {} could not be saved, it is tried again under another name: {}", record_.step,
                                    message(why)));
    const ByteVector said = encode(Said{.failure = why, .again = again});
    if (meeting_.put(key, said).ok()) return {std::move(why), again};
    // The save's time is over, and others wait for this.
    (void)host_.store.set(key, encode(Said{.failure = why, .again = false}), Deadline::after(host_.clock.now(), call_wait));
    return {std::move(why), false};
  }

  Tried lead(unsigned attempt) {
    std::uint64_t aux_bytes = 0;
    for (const Aux& a : record_.aux) aux_bytes += a.bytes.size();
    auto ticket = meeting_.may_go_on().ok() ? checkpointer_.begin_save(record_.step, aux_bytes, {EarlierSaves::are_over, record_.keep})
                                            : Result<SaveTicket>{meeting_.may_go_on().failure()};
    if (!ticket.ok()) return fail(attempt, keys_.ticket(attempt), std::move(ticket).failure());
    if (auto told = meeting_.put(keys_.ticket(attempt), encode(Said{.value = encode(*ticket)})); !told.ok()) {
      checkpointer_.abandon(*ticket);
      return {std::move(told).failure(), false};
    }
    const PartVote mine = write(*ticket);
    auto votes = meeting_.votes(attempt, mine, [this] { return is_not_taken_over(); });
    if (ELRUN_PLANTED(acknowledged_before_commit) && votes.ok())
      host_.acknowledged(
          encode(Acknowledgement{ticket->id, ticket->root, {record_.run_id, record_.generation}, record_.directory, record_.plan.hash}));
    auto committed =
        votes.ok() ? checkpointer_.commit(*ticket, *votes, [this] { return meeting_.may_go_on(); }) : Result<void>{votes.failure()};
    if (!votes.ok()) checkpointer_.abandon(*ticket);
    if (!committed.ok()) return fail(attempt, keys_.outcome(attempt), std::move(committed).failure());
    const std::string acknowledged = checkpointer_.acknowledged();
    if (host_.acknowledged) host_.acknowledged(acknowledged);
    const auto bytes = as_bytes(acknowledged);
    (void)meeting_.put_newest(acknowledged);
    (void)meeting_.put(keys_.outcome(attempt), encode(Said{.value = {bytes.begin(), bytes.end()}}));
    if (const auto kept = checkpointer_.retain(record_.keep); !kept.ok())
      host_.log.warning("old checkpoints could not be removed: " + message(kept.failure()));
    return {acknowledged, false};
  }

  Tried follow(unsigned attempt) {
    auto said = await_said(attempt, keys_.ticket(attempt));
    if (!said.ok()) return {std::move(said).failure(), false};
    if (said->failure) return {*std::move(said->failure), said->again};
    auto ticket = decode_save_ticket(said->value);
    if (!ticket.ok()) return {std::move(ticket).failure(), false};
    const PartVote mine = write(*ticket);
    if (auto told = meeting_.put(keys_.vote(attempt, record_.rank), encode(mine)); !told.ok()) return {std::move(told).failure(), false};
    auto end = await_said(attempt, keys_.outcome(attempt));
    if (!end.ok()) {
      if (is_taken_over(end.failure())) meeting_.take_back(keys_.vote(attempt, record_.rank));
      return {std::move(end).failure(), false};
    }
    if (end->failure) return {*std::move(end->failure), end->again};
    std::string acknowledged{as_text(end->value)};
    if (host_.acknowledged) host_.acknowledged(acknowledged);
    return {std::move(acknowledged), false};
  }

  Result<Said> await_said(unsigned attempt, const std::string& key) {
    ELRUN_TRY_ASSIGN(const ByteVector bytes, meeting_.await(attempt, key));
    return decode_said(bytes);
  }

  const SlotRecord& record_;
  const SlotSaveHost& host_;
  const SaveKeys keys_;
  SaveMeeting meeting_;
  Result<std::vector<Fragment>> fragments_;
  Checkpointer checkpointer_;
};

}  // namespace

SaveOutcome save_slot(const SlotView& slot, const SlotRecord& record, const SlotSaveHost& host) {
  return SlotSave{slot, record, host}.run();
}

}  // namespace elrun::inline v0
