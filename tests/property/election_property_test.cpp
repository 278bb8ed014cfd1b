// Agents of one job and a model of etcd, under a clock of their own: requests and answers are late or lost, etcd goes away
// and comes back, agents are frozen, and lines break. A checker that knows all of it looks after every event.

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <set>

#include "rendezvous/election/election.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;
using namespace elrun::election;

namespace {

constexpr Instant start{1000s};

/// One term of one coordinator.
struct Leadership {
  Revision created;
  LeaseId lease;
  friend bool operator==(const Leadership&, const Leadership&) = default;
};

/// What etcd keeps: leases that end, and the two keys.
struct Model {
  struct Term {
    Duration length;
    Instant until;
  };
  std::int64_t revision = 1, leases_made = 0;
  std::map<std::int64_t, Term> leases;
  std::optional<Leader> leader;
  std::optional<std::string> state;

  void pass(Instant now) {
    std::erase_if(leases, [&](const auto& lease) { return lease.second.until <= now; });
    if (leader && !leases.contains(leader->lease.value())) leader.reset();
  }
  [[nodiscard]] bool is(const Leadership& leadership) const {
    return leader && leader->created == leadership.created && leader->lease == leadership.lease;
  }
};

struct World {
  struct Member {
    Election election;
    bool there = true;  // not frozen
    std::optional<Instant> wake{};
    std::optional<Leadership> leadership{};  // leads, as it thinks
    std::uint64_t number = 0;                // the newest generation that it began
    std::optional<Leadership> follows{};
    bool up = false;
    bool writes = false;          // one at a time
    std::vector<Event> missed{};  // while it was frozen
  };
  struct Delivery {
    Instant at;
    std::uint64_t order;
    std::function<void()> deliver;
    bool operator<(const Delivery& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
  };

  Rng& rng;
  Instant now = start;
  Model etcd{};
  bool etcd_away = false;
  std::optional<Instant> begun_anew{};  // when etcd lost all, last
  double loss = 0;
  int quickness = 1;  // 1: some answers come too late
  Duration lease;
  std::vector<Member> members{};
  std::priority_queue<Delivery> deliveries{};
  std::uint64_t order = 0;
  std::set<std::uint64_t> begun{};  // generations that anybody heard of
  std::uint64_t newest = 0;

  World(Rng& random, std::size_t count, Duration lease_length) : rng{random}, lease{lease_length} {
    for (std::size_t i = 0; i < count; ++i) members.push_back({Election{{.lease = lease, .seed = rng.next64()}}});
    for (std::size_t i = 0; i < count; ++i) give(i, Begin{});
  }

  void post(Duration after, std::function<void()> deliver) { deliveries.push({now + after, order++, std::move(deliver)}); }
  Duration some(Duration most) { return Duration{static_cast<Duration::rep>(rng.below(static_cast<std::uint64_t>(most.count()) + 1))}; }

  void give(std::size_t i, const Event& event) {
    Member& member = members[i];
    if (!member.there) return member.missed.push_back(event);
    for (const Action& action : member.election.on(event, now)) std::visit([&](const auto& a) { perform(i, a); }, action);
    member.wake = member.election.wake_at();
    check();
  }
  /// A question to etcd: it arrives or not, and so does the answer; whoever hears nothing is told so after the limit.
  void ask(std::size_t i, std::function<Event()> answer) {
    const auto answered = std::make_shared<bool>(false);
    const Duration limit = lease / 3;
    post(limit, [this, i, answered] {
      if (!std::exchange(*answered, true)) give(i, Unanswered{"nothing was heard"});
    });
    if (rng.chance(loss)) return;
    post(some(limit / quickness), [this, i, answered, answer, limit] {
      if (etcd_away) return;
      etcd.pass(now);
      const Event event = answer();
      if (rng.chance(loss)) return;
      post(some(limit / 2 / quickness), [this, i, answered, event] {
        if (!std::exchange(*answered, true)) give(i, event);
      });
    });
  }

  void perform(std::size_t i, const Look&) {
    ask(i, [this] { return Found{etcd.leader}; });
  }
  void perform(std::size_t i, const Grant& a) {
    ask(i, [this, a] {
      const std::int64_t id = ++etcd.leases_made;
      etcd.leases[id] = {a.lease, now + a.lease};
      return Granted{{LeaseId{id}, a.lease}};
    });
  }
  void perform(std::size_t i, const Campaign& a) {
    ask(i, [this, a]() -> Event {
      if (!etcd.leases.contains(a.lease.value())) return Unanswered{"no such lease"};
      if (!etcd.leader) etcd.leader = Leader{Revision{++etcd.revision}, a.lease, ""};
      return Counted{etcd.leader, etcd.state};
    });
  }
  void perform(std::size_t i, const Publish& a) {
    ask(i, [this, a]() -> Event {
      if (!etcd.is({a.created, a.lease})) return Published{false};
      etcd.leader->address = a.address;
      return Published{true};
    });
  }
  void perform(std::size_t i, const KeepAlive& a) {
    ask(i, [this, a]() -> Event {
      const auto held = etcd.leases.find(a.lease.value());
      if (held == etcd.leases.end()) return Kept{0s};
      held->second.until = now + held->second.length;
      return Kept{held->second.length};
    });
  }
  void perform(std::size_t, const Revoke& a) {
    if (rng.chance(loss)) return;
    post(some(lease / 3 / quickness), [this, a] {
      if (etcd_away) return;
      etcd.leases.erase(a.lease.value());
      etcd.pass(now);
    });
  }
  void perform(std::size_t i, const Follow&) {
    members[i].follows = etcd.leader ? std::optional{Leadership{etcd.leader->created, etcd.leader->lease}} : std::nullopt;
    members[i].up = false;
    connect(i);
  }
  void perform(std::size_t i, const Lead& a) {
    members[i].leadership = members[i].follows = Leadership{a.created, a.lease};
    members[i].number = begun_anew ? std::max(a.generation_floor, newest) : a.generation_floor;  // its nodes remember what etcd forgot
    members[i].up = true;
    members[i].writes = false;
    post(0s, [this, i] { give(i, Serving{"here"}); });
  }
  void perform(std::size_t i, const StepDown&) {
    const auto leadership = std::exchange(members[i].leadership, {});
    members[i].follows.reset();
    members[i].up = false;
    for (std::size_t j = 0; j < members.size(); ++j)
      if (j != i && members[j].follows == leadership) cut(j);
  }
  void perform(std::size_t, const Explain&) {}
  void perform(std::size_t, const election::Say&) {}

  /// The line to whoever is followed comes up if that one serves.
  void connect(std::size_t i) {
    post(some(50ms), [this, i] {
      Member& member = members[i];
      if (member.up || member.leadership || !member.follows) return;
      const bool served =
          std::any_of(members.begin(), members.end(), [&](const Member& m) { return m.there && m.leadership == member.follows; });
      if (!served) return connect(i);
      member.up = true;
      give(i, LineUp{});
    });
  }
  void cut(std::size_t i) {
    if (!std::exchange(members[i].up, false)) return;
    post(0s, [this, i] { give(i, LineDown{}); });
    connect(i);
  }

  /// A coordinator wants to begin a generation; as the ledger does it.
  void begin_generation(std::size_t i) {
    if (!members[i].leadership || !members[i].there || std::exchange(members[i].writes, true)) return;
    const Leadership leadership = *members[i].leadership;
    if (begun_anew) members[i].number = std::max(members[i].number, newest);
    const std::uint64_t number = members[i].number + 1;
    give(i, WriteBegan{});
    try_to_write(i, leadership, number);
  }
  void try_to_write(std::size_t i, Leadership leadership, std::uint64_t number) {
    const auto known = std::make_shared<bool>(false);
    const auto answer = [this, i, leadership, number, known](bool written) {
      if (!members[i].there || std::exchange(*known, true) || members[i].leadership != leadership) return;
      if (!written) return give(i, WriteRefused{});
      const bool is_new = begun.insert(number).second;
      // What was written just before etcd lost it: another lineage may begin that number before anybody heard of this one.
      if (!begun_anew || now >= *begun_anew + lease) {
        CHECK(is_new);  // nobody ever began it
        CHECK(number > newest);
      }
      newest = std::max(newest, number);
      members[i].number = number;
      members[i].writes = false;
      give(i, WriteDone{});
    };
    if (!rng.chance(loss))
      post(some(lease / 3 / quickness), [this, leadership, number, answer] {
        if (etcd_away) return;
        etcd.pass(now);
        const bool holds = etcd.is(leadership);
        if (holds) etcd.state = state_text({number, {{number, 1}}});
        post(some(50ms), [answer, holds] { answer(holds); });
      });
    post(lease / 2, [this, i, leadership, number, known] {
      if (!std::exchange(*known, true) && members[i].leadership == leadership) try_to_write(i, leadership, number);
    });
  }

  void check() {
    etcd.pass(now);
    if (begun_anew && now < *begun_anew + lease) return;  // nobody can be certain of what another etcd said
    std::size_t certain = 0;
    for (const Member& member : members) {
      CHECK(member.election.leads() == member.leadership.has_value());
      if (!member.election.certain(now)) continue;
      ++certain;
      CHECK(etcd.is(*member.leadership));  // its lease lives, and the key is its own
    }
    CHECK(certain <= 1);
  }

  /// etcd loses all that it knew, and counts its revisions anew; numbers of leases are drawn from its clock.
  void lose_etcd() {
    etcd.leases.clear();
    etcd.leader.reset();
    etcd.state.reset();
    etcd.revision = 1;
    begun_anew = now;
  }

  void freeze(std::size_t i) {
    members[i].there = false;
    for (std::size_t j = 0; j < members.size(); ++j)
      if (j != i && members[i].leadership && members[j].follows == members[i].leadership) cut(j);
  }
  void thaw(std::size_t i) {
    if (std::exchange(members[i].there, true)) return;
    for (const Event& event : std::exchange(members[i].missed, {})) give(i, event);
  }

  void run(Duration time) {
    const Instant end = now + time;
    while (true) {
      std::optional<std::size_t> next;
      for (std::size_t i = 0; i < members.size(); ++i)
        if (members[i].there && members[i].wake && (!next || *members[i].wake < *members[*next].wake)) next = i;
      const Instant wake = next ? std::max(now, *members[*next].wake) : end;
      if (!deliveries.empty() && deliveries.top().at <= std::min(wake, end)) {
        const Delivery delivery = deliveries.top();
        deliveries.pop();
        now = std::max(now, delivery.at);
        delivery.deliver();
      } else if (next && wake < end) {
        now = wake;
        members[*next].wake.reset();
        give(*next, Tick{});
      } else {
        now = end;
        return;
      }
    }
  }

  [[nodiscard]] bool settled() const {
    const auto leader = std::find_if(members.begin(), members.end(), [](const Member& m) { return m.leadership.has_value(); });
    return leader != members.end() &&
           std::all_of(members.begin(), members.end(), [&](const Member& m) { return m.up && m.follows == leader->leadership; });
  }
};

}  // namespace

TEST_CASE("one coordinator at a time can begin a generation, and there is one again soon after the faults", "[election][property]") {
  const bool etcd_is_lost = GENERATE(false, true);
  for_all_seeds(400, [&](Rng& rng) {
    const Duration lease = std::chrono::seconds{1 + rng.below(5)};
    World world{rng, 2 + rng.below(4), lease};
    world.loss = rng.chance(0.5) ? 0.0 : 0.2;
    for (int i = 0; i < 30; ++i) {
      const std::size_t who = rng.below(world.members.size());
      switch (rng.below(etcd_is_lost ? 7 : 6)) {
        case 0: world.freeze(who); break;
        case 1: world.thaw(who); break;
        case 2: world.etcd_away = rng.chance(0.5); break;
        case 3:
          if (!world.members[who].leadership) world.cut(who);
          break;
        case 6: world.lose_etcd(); break;
        default: world.begin_generation(who); break;
      }
      world.run(world.some(lease));
    }
    world.loss = 0;
    world.quickness = 10;
    world.etcd_away = false;
    for (std::size_t i = 0; i < world.members.size(); ++i) world.thaw(i);
    world.run(4 * lease + 4 * etcd_backoff_max);
    REQUIRE(world.settled());
    const std::uint64_t before = world.newest;
    for (std::size_t i = 0; i < world.members.size(); ++i) world.begin_generation(i);
    world.run(2 * lease);
    CHECK(world.newest > before);
  });
}
