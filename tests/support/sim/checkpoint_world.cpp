#include "tests/support/sim/checkpoint_world.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/format/records.hpp"
#include "lib/base/failure.hpp"

namespace elrun::checkpoint_sim {

using namespace elrun::commit;

namespace {

using test::Faults;
using test::Killed;

const Path root_path{"/ckpts"};
constexpr std::uint64_t items_max = 300;          // of a run with trouble
constexpr std::uint64_t healing_items_max = 600;  // until a save has to be acknowledged after it
constexpr std::uint32_t keep = 2;
constexpr CommitLimits limits{.votes = 20s, .owner = 2s, .storage = 30s};

ModelTable tiny_model() { return {.units = {{"a", 40, {}}, {"b", 7, {}}}, .kinds = {{"param", DType::f32}}}; }

std::byte byte_of(std::uint64_t token, std::uint64_t unit, std::uint64_t at) {
  std::uint64_t x = (token ^ unit * 0x9e3779b97f4a7c15u) + at * 0xbf58476d1ce4e5b9u;
  x ^= x >> 29;
  return std::byte(x * 0x94d049bb133111ebu >> 56);
}

Path directory_of(const CheckpointId& id) { return root_path / checkpoints_directory / to_string(id); }

}  // namespace

CheckpointWorld::CheckpointWorld(std::uint64_t seed, Where where, Ran& ran)
    : rng_{seed},
      ran_{ran},
      place_{where == Where::files ? file_system(root_path)
                                   : object_store(root_path, clock_, seed, where == Where::objects_with_stale_lists)},
      log_{"", [this](Level, std::string_view line) { said(std::string{line}); }},
      model_{tiny_model()} {
  place_->faults().before = [this](std::uint64_t) { between_operations(); };
  place_->faults().broken = [this](const Path& path) {
    if (path != bad_spot_) return 0;
    ++faults_fired_, ++ran_.faults;
    return EIO;
  };
}

// --- time ---

void CheckpointWorld::said(std::string line) {
  ran_.trace.push_back(fmt::format("{:8.3f} {}", std::chrono::duration<double>(clock_.now().time_since_epoch()).count(), line));
}

void CheckpointWorld::after(Duration delay, const Who& who, std::function<void()> what) {
  queue_.emplace(clock_.now() + delay, Item{who, std::move(what)});
}

bool CheckpointWorld::run_next() {
  if (queue_.empty()) return false;
  const auto first = queue_.begin();
  if (first->first > clock_.now()) clock_.advance(first->first - clock_.now());
  Item item = std::move(first->second);
  queue_.erase(first);
  run_item(std::move(item));
  return true;
}

void CheckpointWorld::run_item(Item item) {
  if (!item.who) return item.what();
  Member& m = *item.who;
  if (!m.alive) return;
  if (m.busy || m.frozen_until > clock_.now()) {
    const Duration later = std::max<Duration>(m.frozen_until - clock_.now(), 1ms);
    return after(later, item.who, std::move(item.what));
  }
  try {
    item.what();
  } catch (const Killed&) {
    kill(m, "dies in an operation");
  }
}

// --- members ---

CheckpointWorld::Who CheckpointWorld::leader_of(const Generation& generation) const {
  for (const Who& m : members_)
    if (m->generation == generation && m->rank == 0) return m;
  return nullptr;
}

void CheckpointWorld::kill(Member& m, const char* how) {
  if (!m.alive) return;
  m.alive = false;
  said(fmt::format("process {} (rank {} of generation {}) {}", m.number, m.rank, m.generation.number, how));
}

/// The members of the last generation are gone, go on as if nothing had happened, or are frozen and thaw at any time.
void CheckpointWorld::form(bool with_state) {
  const Who last = leader_of(current_);
  with_state = with_state && last && last->has_state && last->alive;
  const History state = with_state ? last->state : History{};
  const std::uint64_t step = with_state ? last->step : 0;
  for (const Who& m : members_) {
    if (!m->alive) continue;
    if (m->busy && rng_.chance(0.5)) continue;
    if (rng_.chance(0.6)) kill(*m, "is ended");
    else if (!healthy_ && rng_.chance(0.6)) {
      m->frozen_until = clock_.now() + some(40s);
      ++ran_.frozen;
      said(fmt::format("process {} (rank {} of generation {}) freezes", m->number, m->rank, m->generation.number));
    }
  }
  current_ = {current_.number + 1, {{7, 7}}};
  const auto world = static_cast<std::uint32_t>(1 + rng_.below(3));
  std::vector<test::Held> held = test::random_cut(model_, world, static_cast<std::uint32_t>(rng_.below(2)), rng_);
  said(fmt::format("generation {} of {} begins {}", current_.number, world, with_state ? "with the state" : "from a checkpoint"));
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    auto m = std::make_shared<Member>();
    m->number = ++processes_, m->generation = current_, m->rank = rank, m->world = world;
    m->held = std::move(held[rank]);
    const Saver saver{"run", current_, Rank{rank}, WorldSize{world}, {"plan", "text"}, model_, begin_anew_};
    m->tier = place_->tier(m->number, saver);
    m->saver = std::make_unique<Checkpointer>(*m->tier, clock_, log_, saver);
    m->has_state = with_state, m->state = state, m->step = step;
    members_.push_back(m);
    if (rank == 0) after(some(2s), m, [this, m] { start(m); });
  }
}

// --- the storage ---

/// A call of a member that acts on the storage: an operation of it may fail, or be the process's last.
template <class Call>
auto CheckpointWorld::on_storage(const Who& m, const char* what, Call call, bool may_fail) {
  struct InCall {
    CheckpointWorld& world;
    Member& member;
    InCall(CheckpointWorld& w, Member& x) : world{w}, member{x} { world.in_calls_.push_back(&x), member.busy = true; }
    ~InCall() { world.in_calls_.pop_back(), member.busy = false; }
  } const in_call{*this, *m};
  std::optional<Faults::Fault> fault;
  if (!healthy_ && may_fail && rng_.chance(0.06)) {
    constexpr int errors[] = {0, 0, EIO, ENOSPC, EIO};
    fault = Faults::Fault{.at = rng_.below(40), .error = errors[rng_.below(5)], .sticky = false, .half_done = rng_.chance(0.5)};
    fault->sticky = fault->error == ENOSPC && rng_.chance(0.5);
  }
  place_->faults().arm(fault);
  auto result = call();
  if (place_->faults().fired()) {
    ++faults_fired_, ++ran_.faults;
    said(fmt::format("process {}: errno {} in operation {} of {}", m->number, fault ? fault->error : 0, fault ? fault->at : 0, what));
  }
  place_->faults().arm(std::nullopt);
  return result;
}

/// While a process is in a call, the world goes on.
void CheckpointWorld::between_operations() {
  if (healthy_ || in_calls_.empty() || !rng_.chance(0.03)) return;
  if (place_->faults().fired()) ++faults_fired_, ++ran_.faults;
  Member& interrupted = *in_calls_.back();
  for (auto n = 1 + rng_.below(6); n > 0; --n) run_next();
  if (!interrupted.alive) throw Killed{};
}

/// With a COMMIT, whole or not.
std::vector<CheckpointId> CheckpointWorld::on_disk() const {
  std::vector<CheckpointId> ids;
  for (const Path& path : place_->all_files())
    if (path.filename() == commit_file)
      if (const auto id = parse_checkpoint_id(path.parent_path().filename().string()); id && path == directory_of(*id) / commit_file)
        ids.push_back(*id);
  return ids;
}

std::vector<CheckpointId> CheckpointWorld::on_newest_timeline() {
  FenceNumber newest = 0;
  for (const Path& path : place_->all_files())
    if (const auto number = parse_fence_number(path.filename().string());
        number && path == root_path / fences_directory / fence_name(*number))
      newest = std::max(newest, *number);
  if (newest == 0) return {};
  const std::vector<CheckpointId> inherited = line_of(newest);
  std::vector<CheckpointId> ids = on_disk();
  std::erase_if(ids, [&](const CheckpointId& id) {
    return id.fence != newest && std::find(inherited.begin(), inherited.end(), id) == inherited.end();
  });
  return ids;
}

std::set<CheckpointId> CheckpointWorld::quarantined() const {
  std::set<CheckpointId> ids;
  for (const Path& path : place_->all_files())
    if (path.filename() == quarantine_file)
      if (const auto id = parse_checkpoint_id(path.parent_path().filename().string())) ids.insert(*id);
  return ids;
}

std::vector<CheckpointId> CheckpointWorld::line_of(FenceNumber fence) {
  const auto record = decode_fence(place_->content(root_path / fences_directory / fence_name(fence)), "fence");
  return record.ok() ? record->inherits : std::vector<CheckpointId>{};
}

// --- a start ---

void CheckpointWorld::start(const Who& m) {
  std::vector<Witness> outside;
  if (!remembered_.empty())
    if (const auto record = decode_acknowledgement(as_bytes(remembered_), "agent"); record.ok())
      outside.push_back(witness(*record, "an agent", true));
  const std::uint64_t faults = faults_fired_;
  const std::uint64_t promises = truth_.promises_made();
  m->marked = quarantined();
  const auto begun = on_storage(m, "a start", [&] {
    return m->has_state ? m->saver->start_with_state(m->step, {.witnesses = outside}) : m->saver->start({.witnesses = outside});
  });
  ++ran_.starts;
  if (!begun.ok()) return start_failed(m, begun.failure(), faults_fired_ != faults);
  started(m, *begun, promises);
}

void CheckpointWorld::started(const Who& m, const Start& start, std::uint64_t promises) {
  said(fmt::format("process {}: fence {} of generation {}, from {}", m->number, start.fence, m->generation.number,
                   m->has_state   ? std::string{"its state"}
                   : start.choice ? to_string(*start.choice)
                                  : std::string{"step 0"}));
  const std::vector<CheckpointId> line = line_of(start.fence);
  if (m->has_state) {
    truth_.check_line(line, &m->state);
    return after(some(3s), m, [this, m] { begin_save(m); });
  }
  truth_.check_line(line, nullptr);
  if (start.choice) {
    if (m->marked.contains(*start.choice)) throw Broken{fmt::format("{} is quarantined, and gone on from", to_string(*start.choice))};
    if (!load(m, start)) return;
  }
  truth_.check_choice(start.choice, start.fence, promises);
  m->state = start.choice ? truth_.state_of(*start.choice) : History{1};
  m->step = start.choice ? start.choice->step : 0;
  m->has_state = true;
  begin_anew_.reset();
  after(some(3s), m, [this, m] { begin_save(m); });
}

/// All members load, and have what was saved.
bool CheckpointWorld::load(const Who& m, const Start& start) {
  for (const Who& r : std::vector<Who>{members_}) {
    if (r->generation != m->generation) continue;
    if (!r->alive || (r != m && r->busy)) return false;  // its generation ends, some time
    const std::uint64_t faults = faults_fired_;
    const auto loaded = on_storage(r, "a load", [&] { return r->saver->load(start, r->held.fragments); });
    if (!loaded.ok()) {
      const Failure why = loaded.failure();
      said(fmt::format("process {}: {}", r->number, message(why)));
      const bool is_damage = why.code == Code::corrupt || why.code == Code::not_found || why.code == Code::io;
      if (is_damage && ++m->rejections < 8) {
        const auto rejected = on_storage(
            m, "a rejection", [&] { return m->saver->reject(start, why); }, false);
        const bool is_done = rejected.ok() || faults_fired_ != faults;
        if (!is_done) throw Broken{fmt::format("a load fails, and the leader sees nothing: {}", message(rejected.failure()))};
        if (!healthy_ && rng_.chance(0.7)) kill(*m, "dies after it rejected a checkpoint");  // the next one must know, too
        after(some(2s), m, [this, m] { this->start(m); });
      }
      return false;
    }
    const std::uint64_t token = truth_.state_of(*start.choice).back();
    for (const Fragment& f : r->held.fragments)
      for (std::uint64_t i = 0; i < f.bytes.size(); ++i)
        if (f.bytes[i] != byte_of(token, f.unit, f.begin * 4 + i))
          throw Broken{fmt::format("a load of {} succeeded with wrong bytes", to_string(*start.choice))};
  }
  return true;
}

void CheckpointWorld::start_failed(const Who& m, const Failure& why, bool had_fault) {
  said(fmt::format("process {}: the start fails: {}", m->number, message(why)));
  if (why.code == Code::generation_over && !is_current(*m)) return;  // a later generation has its fence
  constexpr std::string_view before = "run with --begin_anew ";
  if (const auto at = why.what.rfind(before); at != std::string::npos && !truth_.all_lost().empty() && is_current(*m)) {
    const std::size_t from = at + before.size();
    begin_anew_ = parse_loss_name(why.what.substr(from, why.what.find(' ', from) - from));
    said("a person gives up what is lost");
    return form(false);
  }
  if (begin_anew_ && is_current(*m) && why.what.find("leave the option out") != std::string::npos) return begin_anew_.reset(), form(false);
  if (!had_fault && is_current(*m)) throw Broken{fmt::format("a start stops, and nothing is lost: {}", message(why))};
  after(1s + some(2s), m, [this, m] { this->start(m); });
}

// --- a save ---

void CheckpointWorld::begin_save(const Who& m) {
  if (m->tries == 0 && is_current(*m)) {  // a step needs all members: who is left alone with an old generation makes none
    m->step += 1 + rng_.below(3);
    m->state.push_back(rng_.next64());
  }
  ++m->saves, m->wakes_at = Instant::max();
  m->save = m->saver->new_save(m->step, 0, limits);
  next(m, m->save->start(clock_.now()));
  if (!healthy_ && rng_.chance(0.03))
    after(some(20s), m, [this, m, save = m->saves] { hear(m, save, GiveUp{{Code::io, Remedy::retry, "given up"}}); });
}

void CheckpointWorld::hear(const Who& m, std::uint64_t save, const CommitEvent& event) {
  if (save == m->saves && !m->save->is_over()) next(m, m->save->on(event, clock_.now()));
}

void CheckpointWorld::next(const Who& m, std::optional<CommitAction> action) {
  CommitMachine& save = *m->save;
  const bool wakes_later = save.wake_at() != std::exchange(m->wakes_at, save.wake_at());
  if (wakes_later && save.wake_at() != Instant::max())
    after(save.wake_at() - clock_.now(), m, [this, m, now = m->saves] { hear(m, now, TimePassed{}); });
  if (!action) {
    if (save.is_over()) save_over(m);
    else if (save.phase() == CommitPhase::collecting && !m->written.contains(save.ticket().id)) announce(m);
    return;
  }
  if (std::holds_alternative<MakeDirectory>(action->what)) truth_.begun(action->ticket.id, m->state);
  if (std::holds_alternative<WriteManifest>(action->what)) truth_.check_parts(action->ticket.id, m->world);
  if (std::holds_alternative<AskOwner>(action->what)) return ask_owner(m, action->number);
  m->todo.emplace_back(m->saves, std::move(*action));
  after(some(rng_.chance(0.9) ? 50ms : 10s), m, [this, m] { work(m); });
}

/// Actions one after the other, as they came out, also those of a save that has been given up since.
void CheckpointWorld::work(const Who& m) {
  if (m->todo.empty()) return;
  const auto [save, action] = m->todo.front();
  m->todo.erase(m->todo.begin());
  CommitAnswer answer = on_storage(m, "a save", [&, &act = action] { return m->saver->perform(act); });
  if (const auto* why = std::get_if<Failure>(&answer)) said(fmt::format("process {}: {}", m->number, message(*why)));
  after(some(healthy_ || rng_.chance(0.97) ? 50ms : 60s), m, [this, m, save = save, number = action.number, answer = std::move(answer)] {
    hear(m, save, Answered{number, answer});
  });
}

/// The store may answer with what was true when it was asked, late, or not at all.
void CheckpointWorld::ask_owner(const Who& m, std::uint64_t number) {
  const auto answer = [this, m]() -> CommitAnswer {
    if (is_current(*m)) return Done{};
    return Failure{Code::generation_over, Remedy::rejoin, "another generation is current"};
  };
  if (rng_.chance(0.15)) return;
  const bool is_stale = rng_.chance(0.5);
  after(some(rng_.chance(0.8) ? 100ms : 8s), m, [this, m, save = m->saves, number, answer, is_stale, early = answer()] {
    hear(m, save, Answered{number, is_stale ? early : answer()});
  });
}

void CheckpointWorld::announce(const Who& m) {
  const SaveTicket ticket = m->save->ticket();
  m->written.insert(ticket.id);
  for (const Who& r : members_) {
    if (r->generation != m->generation || !r->alive) continue;
    for (auto copies = rng_.chance(0.1) ? 2 : 1; copies > 0; --copies)
      after(some(rng_.chance(0.9) ? 500ms : 12s), r,
            [this, r, bytes = encode(ticket)] { on_ticket(r, decode_save_ticket(bytes).value()); });
  }
  after(some(1s), m, [this, m, id = ticket.id] { poll(m, id); });
}

void CheckpointWorld::on_ticket(const Who& m, const SaveTicket& ticket) {
  if (m->rank != 0 && !m->written.insert(ticket.id).second) return;
  if (m->rank == 0 && !m->held.memory.empty() && votes_.end() != std::find_if(votes_.begin(), votes_.end(), [&](const auto& v) {
                                                   return v.first == to_string(VoteKey{ticket.id, 0});
                                                 }))
    return;
  const std::uint64_t token = truth_.state_of(ticket.id).back();
  for (const Fragment& f : m->held.fragments)
    for (std::uint64_t i = 0; i < f.bytes.size(); ++i) f.bytes[i] = byte_of(token, f.unit, f.begin * 4 + i);
  const PartVote vote = on_storage(m, "a part", [&] { return m->saver->write_part(ticket, m->held.fragments); });
  if (!vote.refusal) truth_.part_written(ticket.id, m->rank);
  if (!vote.refusal && !healthy_ && rng_.chance(0.02)) hide_shard(*m, ticket.id);
  cast(encode(vote), {ticket.id, m->rank});
}

/// A node that wrote to a disk of its own by mistake, or a storage that lost what it said to have: the writer's vote is yes all the same.
void CheckpointWorld::hide_shard(const Member& m, const CheckpointId& id) {
  const Path path = directory_of(id) / shard_name(m.rank, m.world);
  const auto files = place_->all_files();
  if (std::find(files.begin(), files.end(), path) == files.end()) return;  // its save was given up meanwhile
  said(fmt::format("nobody but process {} sees {}", m.number, path.string()));
  place_->remove(path);
  truth_.hidden(id, m.rank);
}

/// What is sent may be lost, and is sent again.
void CheckpointWorld::cast(ByteVector vote, const VoteKey& key) {
  if (rng_.chance(0.1)) return after(some(4s), nullptr, [this, vote = std::move(vote), key] { cast(vote, key); });
  after(some(300ms), nullptr, [this, vote = std::move(vote), key] { votes_.emplace_back(to_string(key), vote); });
}

/// What the store shows: in any order, some of it twice, some of it not yet, and votes on other saves.
void CheckpointWorld::poll(const Who& m, CheckpointId id) {
  if (m->save->phase() != CommitPhase::collecting || m->save->ticket().id != id) return;
  std::vector<std::pair<std::string, ByteVector>> seen;
  const std::size_t from = votes_.size() > 12 ? votes_.size() - 12 : 0;
  for (std::size_t i = from; i < votes_.size(); ++i)
    for (auto copies = rng_.below(10) == 0 ? 0 : 1 + rng_.below(2); copies > 0; --copies) seen.push_back(votes_[i]);
  for (std::size_t i = seen.size(); i > 1; --i) std::swap(seen[i - 1], seen[rng_.below(i)]);
  for (const auto& [key, bytes] : seen) {
    if (m->save->phase() != CommitPhase::collecting) return;
    next(m, m->save->on(VoteArrived{parse_vote_key(key).value(), decode_part_vote(bytes).value()}, clock_.now()));
  }
  if (m->save->phase() == CommitPhase::collecting) after(200ms + some(1s), m, [this, m, id] { poll(m, id); });
}

void CheckpointWorld::save_over(const Who& m) {
  const SaveTicket ticket = m->save->ticket();
  if (m->save->phase() == CommitPhase::committed) {
    truth_.acknowledged(ticket.id);
    ++ran_.acknowledged, ++acknowledged_here_;
    said(fmt::format("process {}: {} is acknowledged", m->number, to_string(ticket.id)));
    remembered_ = m->saver->acknowledged();
    m->tries = 0;
    const auto kept = on_storage(m, "a removal of old ones", [&] { return m->saver->retain(keep); });
    if (!kept.ok()) said(fmt::format("process {}: {}", m->number, message(kept.failure())));
    check_lost();
    return after(some(5s), m, [this, m] { begin_save(m); });
  }
  ++ran_.failed_saves;
  const Failure why = m->saver->outcome(*m->save).failure();
  said(fmt::format("process {}: {}", m->number, message(why)));
  if (why.code == Code::refused || why.code == Code::generation_over) {
    if (!is_current(*m)) return;
  }
  m->tries = m->tries < 2 ? m->tries + 1 : 0;
  after(some(3s), m, [this, m] { begin_save(m); });
}

// --- what happens to all of them ---

void CheckpointWorld::trouble() {
  if (healthy_) return;
  const auto dice = rng_.below(100);
  if (dice < 40) form(false);
  else if (dice < 65) form(true);
  else if (dice < 75) power_loss();
  else if (dice < 85) damage();
  else if (dice < 92) bad_spot();
  else if (!members_.empty()) {
    Member& m = *members_[members_.size() - 1 - rng_.below(std::min<std::size_t>(members_.size(), 4))];
    if (m.alive) {
      m.frozen_until = clock_.now() + some(30s), ++ran_.frozen;
      said(fmt::format("process {} (rank {} of generation {}) freezes", m.number, m.rank, m.generation.number));
    }
  }
  after(some(20s), nullptr, [this] { trouble(); });
}

void CheckpointWorld::power_loss() {
  said("the power goes");
  place_->power_loss(rng_);
  for (const Who& m : members_) kill(*m, "is gone with the power");
  if (rng_.chance(0.5)) remembered_.clear();
  form(false);
}

/// For a while a file of the newest that was acknowledged cannot be read. It is whole, so no start goes back to an older one for that.
void CheckpointWorld::bad_spot() {
  const auto promises = truth_.promises();
  if (promises.empty()) return;
  std::vector<Path> paths;
  for (const Path& path : place_->all_files())
    if (path.parent_path() == directory_of(promises.front())) paths.push_back(path);
  if (paths.empty()) return;
  bad_spot_ = paths[rng_.below(paths.size())];
  said(fmt::format("{} cannot be read", bad_spot_.string()));
  after(some(20s), nullptr, [this] { bad_spot_.clear(); });
  if (rng_.chance(0.7)) form(false);
}

/// Of the newest that was acknowledged a bit flips, or its COMMIT is removed. Another that can be used stays. One that retention had removed, and that
/// is there again after a loss of power, is none.
void CheckpointWorld::damage() {
  const auto there = on_newest_timeline();
  std::vector<CheckpointId> good;
  for (const CheckpointId& id : truth_.promises())
    if (std::find(there.begin(), there.end(), id) != there.end()) good.push_back(id);
  if (good.size() < 2 || damages_ >= 2 || !in_calls_.empty()) return;
  ++damages_, ++ran_.damages;
  bad_spot_.clear();
  const CheckpointId id = good.front();
  if (rng_.chance(0.35)) {
    said(fmt::format("somebody removes the COMMIT of {}", to_string(id)));
    place_->remove(directory_of(id) / commit_file);
    return truth_.lost(id);
  }
  std::vector<Path> paths;
  for (const Path& path : place_->all_files())
    if (path.parent_path() == directory_of(id) && path.string().find(".part.json") == std::string::npos &&
        path.string().find(".tmp") == std::string::npos)
      for (auto weight = path.filename() == commit_file ? 1 : 3; weight > 0; --weight) paths.push_back(path);
  const Path& path = paths[rng_.below(paths.size())];
  ByteVector content = place_->content(path);
  std::size_t at = rng_.below(content.size());
  // A shard is mostly header, which a start looks at. Its data, which only a load does, come after it.
  constexpr std::size_t header = 4096;
  if (path.extension() == ".safetensors" && content.size() > header && rng_.chance(0.9)) at = header + rng_.below(content.size() - header);
  const auto is_digit = [&](std::size_t i) { return content[i] >= std::byte{'0'} && content[i] <= std::byte{'9'}; };
  if (path.filename() == manifest_file)
    for (std::size_t i = 0; i < content.size() && !is_digit(at); ++i) at = (at + 1) % content.size();  // what is still JSON
  content[at] ^= is_digit(at) && path.filename() == manifest_file ? std::byte{1} : std::byte(1 << rng_.below(8));
  place_->overwrite(path, content);
  truth_.damaged(id);
  said(fmt::format("a bit flips: byte {} of {}", at, path.string()));
  if (rng_.chance(0.5)) form(false);
}

/// A person may put its COMMIT back: nothing of it is removed.
void CheckpointWorld::check_lost() {
  for (const CheckpointId& id : truth_.all_lost()) {
    const auto files = place_->all_files();
    if (std::none_of(files.begin(), files.end(), [&](const Path& p) { return p == directory_of(id) / manifest_file; }))
      throw Broken{fmt::format("{} was acknowledged, and lost its COMMIT; what was left of it is removed", to_string(id))};
  }
}

/// From here on nothing fails, and what was frozen thaws.
void CheckpointWorld::heal() {
  healthy_ = true;
  bad_spot_.clear();
  place_->heal();
  said("all faults stop");
  for (const Who& m : members_) m->frozen_until = std::min(m->frozen_until, clock_.now() + 5s);
}

void CheckpointWorld::run() {
  form(false);
  after(10s + some(30s), nullptr, [this] { trouble(); });
  for (std::uint64_t n = 0; n < items_max; ++n) run_next();
  heal();
  // Those of old generations act on beside the new one.
  for (int times = 0; times < 2; ++times) {
    acknowledged_here_ = 0;
    form(false);
    for (std::uint64_t n = 0; n < healing_items_max && acknowledged_here_ < 2; ++n) run_next();
    const Who leader = leader_of(current_);
    if (acknowledged_here_ < 2)
      throw Broken{fmt::format("no save is acknowledged although nothing fails any more, until {}; the newest waits for {}",
                               std::chrono::duration<double>(clock_.now().time_since_epoch()).count(),
                               leader && leader->save ? leader->save->waits_for() : std::string{"a start"})};
  }
  check_lost();
}

Ran run_checkpoints(std::uint64_t seed, Where where, Bug planted) {
  Ran ran;
  planted_bug = planted;
  try {
    CheckpointWorld world{seed, where, ran};
    world.run();
  } catch (const Broken& broken) {
    ran.broken = broken.what();
  } catch (const AssertionFailed& failed) {
    ran.broken = fmt::format("an assertion fails: {}", failed.what());
  }
  planted_bug = Bug::none;
  return ran;
}

}  // namespace elrun::checkpoint_sim
