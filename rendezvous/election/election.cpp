// The idea: whoever makes the leader key coordinates, and keeps it by keeping its lease. All that a coordinator writes
// down names the revision at which its key was made, and etcd refuses the write when the key is another one by then. So
// safety needs no clock: a coordinator that was paused or cut off can begin no generation any more. Clocks only decide
// how soon one gives way.
//
// When etcd itself is away, nobody can be elected, and the coordinator that is there goes on with what runs: only a new
// generation has to wait. It cannot tell this from being cut off alone, so once it has something to write and could not
// for a whole lease more, it steps down: another agent may reach etcd.
//
//   looking --key absent, twice--> campaigning --key made--> leading --refused, lease gone, too long in doubt--> looking
//      ^ `--key present: Follow--> following --line down--> looking

#include "rendezvous/election/election.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace elrun::inline v0 {

using namespace election;

std::string state_text(const Generation& generation) {
  return fmt::format("{} {:016x}{:016x}", generation.number, generation.lineage.bits[0], generation.lineage.bits[1]);
}

Result<Generation> generation_from_state(std::string_view text) {
  const Failure wrong{
      Code::corrupt, Remedy::fix_config,
      fmt::format("the state in etcd is none that elrun wrote (`{}`): delete the key, or use another run id", text.substr(0, 80))};
  Generation generation;
  const char* const end = text.data() + text.size();
  const auto [number_end, number_error] = std::from_chars(text.data(), end, generation.number);
  if (number_error != std::errc{} || generation.number > state_number_max || end - number_end != 33 || *number_end != ' ') return wrong;
  for (std::size_t i = 0; i < 2; ++i) {
    const char* const first = number_end + 1 + 16 * i;
    const auto [last, error] = std::from_chars(first, first + 16, generation.lineage.bits[i], 16);
    if (error != std::errc{} || last != first + 16) return wrong;
  }
  return generation;
}

std::vector<Action> Election::on(const Event& event, Instant now) {
  now_ = now;
  actions_.clear();
  if (phase_ == Phase::resigned) return {};
  std::visit([this](const auto& e) { on(e); }, event);
  return std::move(actions_);
}

std::optional<Instant> Election::wake_at() const {
  std::optional<Instant> least;
  const auto at = [&](std::optional<Instant> when) {
    if (when && (!least || *when < *least)) least = when;
  };
  if (phase_ == Phase::resigned) return least;
  at(calls_.next_at());
  if (leads() && !leadership_->is_doubtful()) at(lease_until_);
  at(give_up_at());
  return least;
}

std::optional<Instant> Election::give_up_at() const {
  if (!leads()) return {};
  return leadership_->given_up_at(lease_until_, lease_.length);
}

Duration EtcdCalls::half_by_chance(Duration most) {
  return most / 2 + Duration{static_cast<Duration::rep>(rng_.below(static_cast<std::uint64_t>((most / 2).count()) + 1))};
}

Duration EtcdCalls::after_failure() {
  const Duration wait = half_by_chance(backoff_);
  backoff_ = std::min(backoff_ * 2, etcd_backoff_max);
  return wait;
}

void Election::explain(std::string why) {
  if (why == explained_) return;
  explained_ = why;
  act(Explain{std::move(why)});
}

// --- no coordinator is at hand --------------------------------------------------------------------------------------

void Election::look() {
  if (!calls_.under_way()) call(Look{});
}

void Election::on(const LineUp&) {
  if (phase_ != Phase::looking) return;
  phase_ = Phase::following;
  calls_.plan_nothing();
  explained_.clear();
  // A coordinator that was frozen may answer again before it knows that another one was elected.
  confirms_ = !std::exchange(is_first_line_, false);
  if (confirms_) look();
}

void Election::on(const LineDown&) {
  if (phase_ != Phase::following) return;
  phase_ = Phase::looking;
  was_absent_ = confirms_ = false;
  look();
}

void Election::on(const Found& found) {
  calls_.end();
  calls_.succeeded();
  if (phase_ == Phase::looking) consider(found.leader);
  else if (phase_ == Phase::following && confirms_) confirm(found.leader);
}

// Keeps the line if it leads to the elected coordinator, or if nobody knows yet who is elected. Otherwise it follows the elected one.
void Election::confirm(const std::optional<Leader>& leader) {
  if (leader && leader->is_same_leadership(followed_)) return void(confirms_ = false);
  if (!leader || leader->address.empty() || leader->lease == LeaseId{} || leader->lease == lease_.id)
    return look_after(calls_.half_by_chance(look_interval));
  confirms_ = false;
  phase_ = Phase::looking;
  was_absent_ = false;
  look_after(calls_.half_by_chance(look_interval));
  follow(*leader);
}

void Election::follow(const Leader& leader) {
  followed_ = leader;
  is_first_line_ = true;
  explained_.clear();
  act(Follow{leader.address});
}

void Election::consider(const std::optional<Leader>& leader) {
  // The agent that this one connects to is not elected any more. It may be frozen, and answer when it thaws.
  if (!leader || !leader->is_same_leadership(followed_)) is_first_line_ = false;
  if (!leader) {
    if (!options_.campaigns) {
      explain("no agent coordinates, and this one may not (is_host=0)");
      return look_after(calls_.half_by_chance(look_interval));
    }
    if (withdrawn_) {
      explain("no agent coordinates, and this one leaves");
      return look_after(calls_.half_by_chance(look_interval));
    }
    if (now_ < campaign_not_before_) return look_after(calls_.half_by_chance(look_interval));
    if (!std::exchange(was_absent_, true)) return look_after(calls_.half_by_chance(campaign_jitter));
    was_absent_ = false;
    phase_ = Phase::campaigning;
    return call(Grant{options_.lease});
  }
  was_absent_ = false;
  look_after(calls_.half_by_chance(look_interval));
  if (leader->lease == LeaseId{}) {
    return explain(
        "the leader key in etcd, /elrun/<run id>/leader, has no lease: no agent made it, and it never expires. Delete it, or use another run id");
  }
  // Won in a campaign whose outcome was not heard, or given up while etcd was away: nobody is to wait for it.
  if (leader->lease == lease_.id) return give_the_lease_back();
  if (leader->address.empty()) return explain("an agent was elected, and has not opened its service yet");
  if (!leader->is_same_leadership(followed_)) follow(*leader);
}

void Election::give_the_lease_back() { act(Revoke{lease_.id}); }

// --- the campaign ---------------------------------------------------------------------------------------------------

void Election::on(const Granted& granted) {
  calls_.end();
  lease_ = granted.lease;
  lease_until_ = calls_.begun_at() + lease_.length;
  call(Campaign{lease_.id});
}

void Election::on(const Counted& counted) {
  calls_.end();
  calls_.succeeded();
  phase_ = Phase::looking;
  // Whose lease the key has tells who won, even if this is the answer to the second sending of the same campaign.
  if (!counted.leader || counted.leader->lease != lease_.id) {
    give_the_lease_back();
    return consider(counted.leader);
  }
  if (withdrawn_) {  // it won while it left
    give_the_lease_back();
    return look_after(calls_.half_by_chance(look_interval));
  }
  std::uint64_t floor = 0;
  if (counted.state) {
    const Result<Generation> state = generation_from_state(*counted.state);
    if (!state.ok()) {
      give_the_lease_back();
      campaign_not_before_ = now_ + campaign_pause;
      explain(state.failure().what);
      return look_after(calls_.half_by_chance(look_interval));
    }
    floor = state.value().number;
  }
  phase_ = Phase::leading;
  leadership_.emplace(counted.leader->created);
  explained_.clear();
  followed_ = {};
  act(Lead{leadership_->created(), lease_.id, floor});
}

void Election::on(const Serving& serving) {
  if (!leads()) return;
  leadership_->serve(serving.address);
  keep_or_publish();
}

void Election::on(const CannotServe& cannot) {
  if (!leads()) return;
  campaign_not_before_ = now_ + campaign_pause;
  give_the_lease_back();
  step_down(cannot.why);
}

// --- leading ---------------------------------------------------------------------------------------------------------

void Election::keep_or_publish() {
  if (calls_.under_way()) return;
  if (leadership_->is_published()) call(KeepAlive{lease_.id});
  else call(Publish{leadership_->created(), lease_.id, leadership_->address()});
}

void Election::on(const Published& published) {
  calls_.end();
  if (!leads()) return look();
  if (!published.still_leader) return step_down("the leader key in etcd is not this agent's any more");
  leadership_->publish();
  calls_.succeeded();
  // As long after the lease began as any other: an etcd that answers late has taken much of it for the campaign already.
  calls_.plan(std::max(now_, lease_until_ - lease_.length * 2 / 3));
}

void Election::on(const Kept& kept) {
  calls_.end();
  if (!leads()) return look();
  if (kept.left <= Duration{0}) return step_down("etcd has ended its lease");
  lease_.length = kept.left;
  lease_until_ = calls_.begun_at() + kept.left;
  calls_.succeeded();
  calls_.plan(now_ + lease_.length / 3);
  if (leadership_->is_doubtful() && now_ < lease_until_) {
    leadership_->trust();
    act(Say{Level::info, "the lease in etcd is renewed, and this agent still coordinates"});
  }
  if (!leadership_->is_published()) keep_or_publish();
}

void Election::on(const WriteBegan&) {
  if (leadership_) leadership_->begin_write(now_);
}

void Election::on(const WriteDone&) {
  if (leadership_) leadership_->end_write();
}

void Election::on(const WriteRefused&) {
  if (leads()) step_down("the leader key in etcd is not this agent's any more");
}

void Election::step_down(std::string why) {
  phase_ = Phase::looking;
  leadership_.reset();
  calls_.plan_nothing();
  was_absent_ = false;
  act(StepDown{std::move(why)});
  look();
}

void Election::on(const Unanswered& unanswered) {
  calls_.end();
  const Duration wait = calls_.after_failure();
  if (phase_ == Phase::leading) {  // there is time: it is tried again well before the lease ends
    calls_.plan(now_ + std::min(wait, lease_.length / 6));
    return;
  }
  if (phase_ == Phase::campaigning) {
    phase_ = Phase::looking;
    if (lease_until_ > now_) give_the_lease_back();
  }
  if (phase_ == Phase::following && confirms_) return look_after(wait);
  if (phase_ != Phase::looking) return;
  was_absent_ = is_first_line_ = false;
  explain(unanswered.why);
  look_after(wait);
}

void Election::on(const Tick&) {
  if (const auto end = give_up_at(); end && now_ >= *end)
    return step_down("etcd could not be asked to write for too long; another agent may reach it");
  if (leads() && !leadership_->is_doubtful() && now_ >= lease_until_) {
    leadership_->doubt();
    // A call has a third of the lease for its answer: one that is younger may have one still.
    const auto since = calls_.unanswered_since();
    const bool is_silent = since && now_ - *since >= lease_.length / 3;
    act(Say{Level::warning,
            is_silent ? fmt::format("etcd has not answered for {:.3g} s: what runs goes on, but no generation can begin until it does",
                                    std::chrono::duration<double>(now_ - *since).count())
                      : "etcd answers so late that the lease in it was not renewed in time: what runs goes on, but no generation can begin "
                        "until it is"});
  }
  if (const auto at = calls_.next_at(); !at || now_ < *at) return;
  if (phase_ == Phase::looking || confirms_) look();
  else if (leads()) keep_or_publish();
}

void Election::on(const Resign&) {
  if (leads() || phase_ == Phase::campaigning) give_the_lease_back();
  phase_ = Phase::resigned;
}

}  // namespace elrun::inline v0
