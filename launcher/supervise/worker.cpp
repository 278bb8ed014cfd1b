#include "launcher/supervise/worker.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "launcher/options/options.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr unsigned bit(Life life) { return 1U << static_cast<unsigned>(life); }

struct LifeRule {
  Life life;
  unsigned next;  // one bit for each that may follow
};
constexpr std::array<LifeRule, life_states> life_rules{{
    {Life::none, bit(Life::running) | bit(Life::pending)},
    {Life::running, bit(Life::running) | bit(Life::leaving) | bit(Life::stopping) | bit(Life::ended)},
    {Life::leaving, bit(Life::stayed) | bit(Life::stopping) | bit(Life::ended)},
    {Life::stayed, bit(Life::running) | bit(Life::stopping) | bit(Life::ended)},
    // A program that closed its session between two generations can open another one before it is killed.
    {Life::stopping, bit(Life::running) | bit(Life::stopping) | bit(Life::ended)},
    {Life::pending, bit(Life::ready) | bit(Life::running) | bit(Life::dismissed) | bit(Life::ended)},
    {Life::ready, bit(Life::running) | bit(Life::stopping) | bit(Life::dismissed) | bit(Life::ended)},
    {Life::dismissed, bit(Life::ended)},
    {Life::ended, bit(Life::collected)},
    {Life::collected, 0},  // its successor is a worker of its own
}};

constexpr bool rules_in_order_of_lives() {
  for (std::size_t i = 0; i < life_states; ++i)
    if (static_cast<std::size_t>(life_rules[i].life) != i) return false;
  return true;
}
static_assert(rules_in_order_of_lives(), "life_rules has a row for each Life, in their order");

}  // namespace

bool may_follow(Life before, Life after) { return (life_rules[static_cast<std::size_t>(before)].next & bit(after)) != 0; }

void WorkerLife::enter(Life next) {
  ELRUN_ASSERT(may_follow(now_, next));
  if (next == Life::ended) ended_as_ = now_;
  now_ = next;
}

void Worker::start_in(const Membership& membership, std::uint32_t in_place) {
  *this = Worker{};
  began_as = membership;
  place = in_place;
  life.enter(Life::running);
}

void Worker::start_beside(const Membership& membership, std::uint32_t in_place, std::uint32_t restart_count) {
  *this = Worker{};
  pending.place = in_place, pending.restart_count = restart_count;
  began_as = membership;
  session.is_job = true;  // as the one before was, also before it says so
  life.enter(Life::pending);
}

void Worker::is_awaited_in(std::uint32_t in_place) {
  place = in_place;
  life.enter(Life::running);
  if (pending.kill_at) hung.clear();
  pending = {};
}

void Worker::opens(ConnectionId from, const Hello& hello) {
  session.connection = from;
  session.pid = hello.pid;
  session.opened = true;
  session.is_job = hello.is_job;
  session.says_end = hello.says_end;
  session.can_stay = hello.stays;
}

bool Worker::take_place(std::uint32_t in_place) {
  place = in_place;
  if (life.stays() || (life.is(Life::ready) && session.connection)) return true;
  life.enter(Life::stopping);
  return false;
}

void Worker::enter_world(Instant now, Duration returning) {
  session.joined = session.joined || (life.stays() && !session.is_job) || life.is(Life::ready);
  if (session.joined && (life.stays() || pending.says_ready)) returns.by = now + std::max(returning, returns.within);
  returns.from_before = life.stays();
  life.enter(Life::running);
  ready_to_leave = false;
  peer_loss = PeerLoss::none;
  told_alive = false;
  pending = {};
}

bool Worker::leave_generation(bool stay) {
  returns.by.reset();
  const bool stays = stay && session.can_stay && session.connection && !ending && hung.empty();
  if (!ending) life.enter(stays ? Life::leaving : Life::stopping);
  return stays;
}

bool Worker::hold() {
  if (peer_loss != PeerLoss::said || !session.can_stay || !session.connection || ending) return false;
  peer_loss = PeerLoss::held;
  return true;
}

bool Worker::becomes_ready() {
  const bool is_killed = !hung.empty() && !pending.kill_at;
  if (is_killed || !life.is(Life::pending)) return false;
  life.enter(Life::ready);
  pending.kill_at.reset(), hung.clear();
  return true;
}

bool Worker::is_late(Instant now) {
  if (!returns.by || now < *returns.by) return false;
  returns.by.reset();
  return true;
}

void Worker::ends(const WorkerEnded& e, Instant now) {
  life.enter(Life::ended);
  ending = e.ending;
  failed_at = now - e.ago;
  death = e.death;
  ended_away = brought_along || (returns.by && returns.from_before);
  returns.by.reset();  // its end is told instead
  if (!hung.empty() && !e.ending.ok()) death.evidence = fmt::format("it hung ({}), and elrun ended it", hung);
}

int Worker::exit_code() const { return hung.empty() ? ending->code() : exit_code::hang; }

std::string Worker::cause() const {
  if (!early.as.empty()) return early.as;
  if (!ending) return fmt::format("a hang ({}); {}", hung, stuck);
  return hung.empty() ? describe(*ending) : fmt::format("a hang ({}), then {}", hung, describe(*ending));
}

int Worker::stop_signal(std::optional<int> asked, bool node_runs_job) const {
  return asked ? *asked : session.is_job || (node_runs_job && !session.opened) ? SIGKILL : SIGTERM;
}

}  // namespace elrun::inline v0::launcher
