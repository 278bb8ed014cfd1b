#pragma once
/// \file A job of several members in threads, over any number of generations: members go away in mid-exchange, newcomers
/// come, and whoever is left goes on in the same thread, as a process does under elrun.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "lib/base/failure.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {

/// What happens to a generation. `at` counts exchanges of the one to whom it happens.
struct Fate {
  /// A member goes away; one more wants in; it has to end with nobody lost; or one exchange reaches one member alone: all
  /// others fail in it. Or its node is asked to leave, with the next fate in the same generation. Or one exchange takes too long on all members:
  /// nobody hears of it but from the member that says so to its session.
  enum class Kind : std::uint8_t { dies, grows, breaks, splits, leaves, times_out };
  Kind kind = Kind::dies;
  std::uint32_t whom = 0;  ///< Of the members in rank order, modulo their number.
  std::uint64_t at = 0;
  bool comes_back = true;      ///< A newcomer in the place of the one that dies or leaves.
  bool with_its_node = false;  ///< When it dies, so do all others of its node.
  /// Of a split: called by each member that it leaves out, before anybody hears of it. So the one whom it reached goes on meanwhile.
  std::function<void(Call)> before_told{};
  /// Of a split: the one whom it reached has no place in the next generation. It comes back, with its state, when that one grows.
  bool excluded = false;
  std::optional<std::uint32_t> excluded_node{};  ///< The same of all members of that node.
  bool coordinator_changes = false;              ///< Another coordinator begins the generations after it.
  bool storage_goes = false;                     ///< The storage does not answer, until a member says from where the world goes on.
};

/// What members sent each other in one generation, of pieces that have whole granules (votes and words are smaller): out of memory
/// that its group was shown, and out of other memory.
struct Sent {
  std::uint64_t in_place = 0, copied = 0;
};

/// Thrown out of an exchange: what SIGKILL is to a process.
struct MemberKilled {};

class ElasticWorld {
 public:
  /// `nodes`: of each member, in the order in which they are born, the number of its node; else all are on one.
  /// `arrays`: makes the memory of a member's arrays, on a device; else they lie in the host's. `device_groups`, `must_end`, `state_rate`: as JobHost's; without the last one state comes before slots.
  /// `before_state`: called by each member where state travels beside slots, before it does. `before_checkpoint`: the same where an in-memory checkpoint travels, in a world of so many.
  ElasticWorld(std::uint32_t members, std::vector<Fate> fates, Program program, std::vector<std::uint32_t> nodes = {},
               std::function<std::unique_ptr<Memory>()> arrays = {}, DeviceGroups device_groups = {}, bool must_end = false,
               std::uint64_t state_rate = 0, std::function<void(bool receives)> before_state = {},
               std::function<void(std::uint32_t world)> before_checkpoint = {})
      : fates_{fates.begin(), fates.end()},
        program_{std::move(program)},
        nodes_{std::move(nodes)},
        arrays_{std::move(arrays)},
        device_groups_{std::move(device_groups)},
        must_end_{must_end},
        state_rate_{state_rate},
        before_state_{std::move(before_state)},
        before_checkpoint_{std::move(before_checkpoint)} {
    const std::lock_guard lock{mutex_};
    for (std::uint32_t i = 0; i < members; ++i) add_member();
    form();
  }
  ~ElasticWorld() { wait(); }

  /// Waits for the end of all, and returns what became of each, in the order in which they were born.
  std::deque<Member>& wait() {
    for (std::size_t i = 0; i < count(); ++i)
      if (thread(i).joinable()) thread(i).join();
    return results_;
  }
  [[nodiscard]] std::uint64_t generations() const { return number_; }
  [[nodiscard]] bool was_killed(std::size_t member) const { return people_[member]->killed; }
  [[nodiscard]] bool has_left(std::size_t member) const { return people_[member]->has_left; }
  /// It had no place any more: its node is gone or has left, or the job was over.
  [[nodiscard]] bool was_refused(std::size_t member) const { return people_[member]->refused; }
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }
  /// What members told their agents of checkpoints; once all have ended.
  [[nodiscard]] const std::vector<Restoration>& restorations() const { return restorations_; }
  [[nodiscard]] const std::map<std::uint64_t, Sent>& sent() const { return sent_; }  ///< By generation; once all have ended.

 private:
  struct Shared {
    Shared(const Clock& clock, const Generation& generation, std::uint32_t world) : store{clock, generation}, net{world} {}
    SharedStore store;
    MemoryNet net;
  };
  struct Person;
  class PersonSession final : public Session {
   public:
    PersonSession(ElasticWorld& world, Person& person) : world_{world}, person_{person} {}
    const Place& place() const override { return place_; }
    Store& store() override { return *store_; }
    void on_generation_over(OnOver call) override {
      std::unique_lock lock{world_.mutex_};
      if (person_.over) {
        lock.unlock();
        return call(*person_.over);
      }
      calls_.push_back(std::move(call));
    }
    void progress(const StepProgress&) override {}
    void went_on_from(const Restoration& from) override {
      const std::lock_guard lock{world_.mutex_};
      world_.restorations_.push_back(from);
      world_.storage_is_away_ = false;
    }
    Result<void> finished(Deadline) override { return world_.finished(), Result<void>{}; }
    void cannot_go_on(const Failure& why) override { world_.end_generation(place_.membership.generation.number, why); }
    Result<void> next_generation(Deadline) override { return world_.next(person_); }
    bool is_leaving() const override { return person_.is_leaving; }
    void ready_to_leave() override { world_.leave(person_); }

    ElasticWorld& world_;
    Person& person_;
    Place place_;
    std::unique_ptr<Store> store_;
    std::vector<OnOver> calls_;
  };
  struct Person {
    Person(ElasticWorld& world, std::uint32_t node_number) : session{world, *this}, node{node_number} {}
    PersonSession session;
    const std::uint32_t node;
    bool dies_too = false;  // in its next exchange, or before it comes to the next generation
    bool alive = true, waits = true, killed = false;
    bool comes_back = false, has_left = false, refused = false, excluded = false;
    std::atomic<std::uint64_t> failed_in = 0;  // the generation in which one of its exchanges failed
    std::atomic<bool> is_leaving = false;
    std::optional<Failure> over;
    std::optional<Place> next;
    std::shared_ptr<Shared> shared;
    std::thread thread;
  };
  class Peers_ final : public Peers {
   public:
    Peers_(ElasticWorld& world, Person& person)
        : world_{world}, person_{person}, shared_{person.shared}, membership_{person.session.place().membership} {}
    Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives) override {
      account(sends);
      if (label_ == Call::state && world_.before_state_)
        world_.before_state_(std::ranges::any_of(receives, [](const ReceiveList& list) { return !list.empty(); }));
      if (label_ == Call::checkpoint && world_.before_checkpoint_) world_.before_checkpoint_(membership_.world.value());
      if (world_.strikes(person_, membership_, count_++)) {
        (void)shared_->net.exchange(membership_.rank.value(), sends, receives, true, label_);
        throw MemberKilled{};
      }
      const auto done = shared_->net.exchange(membership_.rank.value(), sends, receives, false, label_);
      const auto missed = done.ok() ? world_.misses(person_, membership_, count_ - 1) : std::nullopt;
      if (done.ok() && !missed) return done;
      person_.failed_in = membership_.generation.number;
      spoil(receives);
      if (!missed) return done;
      if (missed->kind == Fate::Kind::times_out) return Failure{Code::deadline_passed, Remedy::rejoin, "the exchange took too long"};
      if (missed->before_told) missed->before_told(label_);
      const Failure why{Code::peer_lost, Remedy::rejoin, "the line was cut at the last byte"};
      world_.end_generation(membership_.generation.number, why);
      return why;
    }
    void set_label(Call call) override { label_ = call; }
    Result<void> share(const SharedBuffer& memory) override { return shown_.push_back(memory), Result<void>{}; }
    void revoke(const Failure& why) override { shared_->net.revoke(why); }

   private:
    void account(std::span<const SendList> sends) {
      Sent sent;
      for (const SendList& list : sends)
        for (const auto& piece : list) {
          if (piece.empty() || piece.size() % (granule * sizeof(float)) != 0) continue;
          const bool in_place = std::ranges::any_of(shown_, [&](const SharedBuffer& memory) {
            const std::span<const std::byte> all = memory.bytes();
            return all.data() <= piece.data() && piece.data() + piece.size() <= all.data() + all.size();
          });
          (in_place ? sent.in_place : sent.copied) += piece.size();
        }
      const std::lock_guard lock{world_.mutex_};
      Sent& all = world_.sent_[membership_.generation.number];
      all.in_place += sent.in_place, all.copied += sent.copied;
    }

    /// What an exchange that fails leaves where it was to receive: anything.
    static void spoil(std::span<const ReceiveList> receives) {
      for (const ReceiveList& list : receives)
        for (const auto& part : list) std::ranges::fill(part, std::byte{0x3f});
    }

    ElasticWorld& world_;
    Person& person_;
    std::shared_ptr<Shared> shared_;
    Membership membership_;
    std::uint64_t count_ = 0;
    Call label_ = Call::none;
    std::vector<SharedBuffer> shown_;
  };

  std::size_t count() {
    const std::lock_guard lock{mutex_};
    return people_.size();
  }
  std::thread& thread(std::size_t i) {
    const std::lock_guard lock{mutex_};
    return people_[i]->thread;
  }

  // --- under the mutex ---

  /// `node`: else the one that is its by its birth.
  void add_member(std::optional<std::uint32_t> node = {}) {
    const std::uint32_t by_birth = people_.size() < nodes_.size() ? nodes_[people_.size()] : 0;
    Person& person = *people_.emplace_back(std::make_unique<Person>(*this, node.value_or(by_birth)));
    Member& result = results_.emplace_back();
    person.thread = std::thread{[this, &person, &result] { live(person, result); }};
  }

  /// A generation of all who live and wait, when nobody else lives.
  void form() {
    std::vector<Person*> members;
    for (const auto& p : people_) {
      if (!p->alive || p->excluded) continue;
      if (!p->waits) return;
      members.push_back(p.get());
    }
    if (members.empty() || over_for_good_) return;
    ++number_;
    const Generation generation{number_, {{0x1234, lineage_}}};
    const auto size = static_cast<std::uint32_t>(members.size());
    const auto shared = std::make_shared<Shared>(clock_, generation, size);
    for (std::uint32_t r = 0; r < size; ++r) {
      Place place;
      place.membership = {generation, Rank{r}, WorldSize{size}};
      place.run = RunId{"test"};
      place.elastic = true;
      place.address = "127.0.0.1";
      place.restart_count = static_cast<std::uint32_t>(number_ - 1);
      place.node = NodeId{fmt::format("node {}", members[r]->node)};
      const auto on_its_node = [&](auto end) {
        return static_cast<std::uint32_t>(
            std::count_if(members.begin(), end, [&](const Person* p) { return p->node == members[r]->node; }));
      };
      place.local_rank = LocalRank{on_its_node(members.begin() + r)};
      place.local_world = on_its_node(members.end());
      members[r]->next = place;
      members[r]->shared = shared;
      members[r]->waits = false;
    }
    draw_fate();
    changed_.notify_all();
  }
  void draw_fate() {
    fate_ = fates_.empty() ? std::nullopt : std::optional{fates_.front()};
    if (!fates_.empty()) fates_.pop_front();
  }

  // --- from the members' threads ---

  void live(Person& person, Member& result) {
    if (!next(person).ok()) return gone(person, false);  // its node died before it had begun, or the job is over
    const Log log{"test", [this, &result](Level, std::string_view line) {
                    const std::lock_guard lock{mutex_};
                    result.lines.emplace_back(line);
                    lines_.emplace_back(line);
                  }};
    PosixFiles files;
    ForwardingFiles may_go{files, [this](const char* verb, const Path& path) -> Result<void> {
                             return storage_is_away_ ? Result<void>{from_errno(EIO, fmt::format("{} {}", verb, path.string()))}
                                                     : Result<void>{};
                           }};
    std::unique_ptr<Memory> arrays;
    try {
      if (arrays_) arrays = arrays_();  // on a device that another member has lost for this process there is none
      JobAccess::drive({.clock = clock_,
                        .files = storage_may_go_ ? static_cast<Files&>(may_go) : files,
                        .session = person.session,
                        .log = log,
                        .out = [&](std::string_view line) { result.lines.emplace_back(line); },
                        .join = [this, &person](Session&) -> Result<std::unique_ptr<Peers>> {
                          if (person.failed_in == person.session.place().membership.generation.number)  // its peers may never come again
                            throw Error{{Code::protocol, Remedy::exit_process, "a generation is joined again in which an exchange failed"}};
                          return std::unique_ptr<Peers>{std::make_unique<Peers_>(*this, person)};
                        },
                        .device_groups = device_groups_,
                        .share = SharedBuffer::make,
                        .device = arrays ? arrays->device() : Device{},
                        .arrays = arrays.get(),
                        .must_end = must_end_,
                        .state_rate = state_rate_,
                        .loss_reserve_min = 1},
                       [&](Job& job) { program_(job, result); });
    } catch (const MemberKilled&) {
      gone(person, true);
      return;
    } catch (const Error& e) {
      result.failure = e.failure();
      // Others hear that a worker has ended, as the coordinator says it; its own code and remedy are its own.
      end_generation(person.session.place().membership.generation.number, {Code::peer_lost, Remedy::rejoin, e.failure().what});
    } catch (const std::exception& e) {
      result.failure = Failure{Code::internal, Remedy::exit_process, e.what()};
      end_generation(person.session.place().membership.generation.number, *result.failure);
    }
    gone(person, false);
  }

  Result<void> next(Person& person) {
    std::unique_lock lock{mutex_};
    const auto refuse = [&](const char* why) {
      person.refused = true;
      return Failure{Code::generation_over, Remedy::exit_process, why};
    };
    if (person.dies_too) return refuse("its node is gone");
    if (person.has_left) return refuse("its node has left");
    if (!person.next) {
      person.waits = true;
      form();
    }
    if (!changed_.wait_for(lock, 60s, [&] { return person.next || over_for_good_; }))
      return Failure{Code::deadline_passed, Remedy::exit_process, "no generation formed in the test's world"};
    if (!person.next) return refuse("the job is over");
    person.session.place_ = *std::exchange(person.next, std::nullopt);
    person.session.store_ = person.shared->store.of(person.session.place_.membership.rank);
    person.session.calls_.clear();
    person.over.reset();
    return {};
  }

  /// As its agent does: the node leaves at once, and the others go on without it.
  void leave(Person& person) {
    {
      const std::lock_guard lock{mutex_};
      person.has_left = true;
      if (person.comes_back) add_member(person.node);
    }
    end_generation(person.session.place().membership.generation.number, {Code::generation_over, Remedy::rejoin, "a node leaves"});
  }

  void gone(Person& person, bool killed) {
    const std::lock_guard lock{mutex_};
    person.killed = killed || person.dies_too || !person.alive;  // death may meet it where it has heard of the end before
    person.alive = false;
    form();
  }

  void finished() {
    const std::lock_guard lock{mutex_};
    over_for_good_ = true;
    changed_.notify_all();
  }

  void end_generation(std::uint64_t number, const Failure& why) {
    std::vector<std::pair<Session::OnOver, Failure>> calls;
    std::shared_ptr<Shared> ended;
    Generation next;
    {
      const std::lock_guard lock{mutex_};
      if (number != number_) return;
      next = {number + 1, {{0x1234, lineage_}}};
      for (const auto& p : people_) {
        if (!p->alive || p->over || p->session.place_.membership.generation.number != number) continue;
        p->over = why;
        ended = p->shared;
        for (auto& call : std::exchange(p->session.calls_, {})) calls.emplace_back(std::move(call), why);
      }
    }
    for (const auto& [call, reason] : calls) call(reason);
    if (ended != nullptr) ended->store.begin_generation(next);  // who waits in the store's calls hears it, too
  }

  /// Whether this exchange is the member's last one.
  bool strikes(Person& person, const Membership& who, std::uint64_t exchange) {
    Fate fate;
    {
      const std::lock_guard lock{mutex_};
      if (std::exchange(person.dies_too, false)) return person.alive = false, true;
      if (!fate_ || fate_->kind == Fate::Kind::splits || fate_->kind == Fate::Kind::times_out || who.generation.number != number_ ||
          fate_->whom % who.world.value() != who.rank.value() || fate_->at != exchange)
        return false;
      fate = *std::exchange(fate_, std::nullopt);
      if (fate.coordinator_changes) lineage_ = ++lineages_;
      if (fate.storage_goes) storage_is_away_ = true;
      if (fate.kind == Fate::Kind::leaves) {
        person.comes_back = fate.comes_back;
        person.is_leaving = true;
        draw_fate();
        return false;
      }
      if (fate.kind == Fate::Kind::grows) {
        const auto out = std::ranges::find_if(people_, [](const auto& p) { return p->alive && p->excluded; });
        if (out == people_.end()) add_member();
        else
          for (auto& p : people_) p->excluded = false;
      }
      if (fate.kind == Fate::Kind::dies) {
        person.alive = false;
        const std::size_t born = people_.size();
        for (std::size_t i = 0; i < born; ++i) {
          Person& other = *people_[i];
          const bool dies_too = fate.with_its_node && other.alive && other.node == person.node;
          if (dies_too) other.dies_too = true;
          if (fate.comes_back && (dies_too || &other == &person)) add_member(person.node);
        }
      }
    }
    if (fate.kind != Fate::Kind::dies) end_generation(who.generation.number, {Code::generation_over, Remedy::rejoin, "the world changes"});
    return fate.kind == Fate::Kind::dies;
  }

  /// The fate for which this member does not get what others sent in this exchange, as far as it knows.
  std::optional<Fate> misses(Person& person, const Membership& who, std::uint64_t exchange) {
    const std::lock_guard lock{mutex_};
    if (!fate_ || fate_->at != exchange || who.generation.number != number_) return std::nullopt;
    const bool is_reached = fate_->whom % who.world.value() == who.rank.value();
    const bool splits = fate_->kind == Fate::Kind::splits && !is_reached;
    if (fate_->kind == Fate::Kind::splits && (fate_->excluded_node ? person.node == *fate_->excluded_node : is_reached && fate_->excluded))
      person.excluded = true;
    return splits || fate_->kind == Fate::Kind::times_out ? fate_ : std::nullopt;
  }

  const SteadyClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Fate> fates_;
  std::optional<Fate> fate_;  // of this generation; one that struck is gone, but for a split or a timeout
  const bool storage_may_go_ = std::ranges::any_of(fates_, &Fate::storage_goes);
  const Program program_;
  const std::vector<std::uint32_t> nodes_;
  const std::function<std::unique_ptr<Memory>()> arrays_;
  const DeviceGroups device_groups_;
  const bool must_end_;
  const std::uint64_t state_rate_;
  const std::function<void(bool receives)> before_state_;
  const std::function<void(std::uint32_t world)> before_checkpoint_;
  std::deque<std::unique_ptr<Person>> people_;
  std::deque<Member> results_;
  std::vector<std::string> lines_;
  std::vector<Restoration> restorations_;
  std::map<std::uint64_t, Sent> sent_;
  std::uint64_t number_ = 0;
  // Another coordinator begins to count again, with another lineage. Checkpoints tell jobs on one root apart by it.
  static inline std::atomic<std::uint64_t> lineages_{0};
  std::uint64_t lineage_ = ++lineages_;
  std::atomic<bool> storage_is_away_ = false;
  bool over_for_good_ = false;
};

}  // namespace elrun::test
