#include "lib/job/world.hpp"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/device/handles.hpp"
#include "lib/device/wait.hpp"
#include "lib/job/arrays/staged_exchange.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t status_text_max = 64 << 10, status_node_max = 256;

}  // namespace

const char* name_of_call(std::uint16_t call) {
  switch (static_cast<Call>(call)) {
    case Call::none: return "no call of the job";
    case Call::meeting: return "restore() or next_step(), where members of a new generation meet";
    case Call::round: return "its slots or a use scope";
    case Call::next_step: return "job.next_step()";
    case Call::apply: return "step.apply()";
    case Call::evaluate: return "job.evaluate()";
    case Call::verify: return "verify()";
    case Call::checkpoint: return "job.next_step(), which makes an in-memory checkpoint";
    case Call::state: return "restore(), next_step() or evaluate(), which moves state between members";
    case Call::end: return "a return of the program before its first step";
  }
  return "a call that this version does not know";
}

bool JobWorld::End::set(const Failure& failure) {
  {
    const std::lock_guard lock{mutex};
    if (over.load(std::memory_order_relaxed)) return false;
    why = failure;
    over.store(true, std::memory_order_release);
    if (peers != nullptr) peers->revoke(failure);
  }
  const std::lock_guard lock{arrays_mutex};
  if (arrays != nullptr) arrays->revoke(failure);
  return true;
}

JobWorld::JobWorld(Session& session, JoinPeers join, WorldArrays arrays)
    : session_{session}, join_{std::move(join)}, arrays_{arrays}, membership_{session.place().membership}, end_{std::make_shared<End>()} {
  if (arrays_.memory != nullptr && arrays_.memory->device().kind != DeviceKind::host)
    staged_ = std::make_unique<StagedExchange>(arrays_.memory->device(), *arrays_.clock);
  session_.on_generation_over([end = end_](const Failure& why) { end->set(why); });
}

void JobWorld::renew() {
  forget_peers();
  membership_ = session_.place().membership;
  end_ = std::make_shared<End>();
  session_.on_generation_over([end = end_](const Failure& why) { end->set(why); });
}

JobWorld::~JobWorld() { forget_peers(); }

/// What is left of the generation is nobody's: waits for no peer.
void JobWorld::give_up_beside() {
  if (beside_ == nullptr) return;
  if (::getpid() == beside_->owner)  // else this is a forked child, and what the parent's threads had locked stays so
    end_->set({Code::generation_over, Remedy::abort_group, "the job was given up while ranks gave each other state beside their slots"});
  for (Beside* it = beside_.get(); it != nullptr; it = it->before.get()) join_or_leak(it->thread, it->owner);
  beside_.reset();
}

void JobWorld::forget_peers() {
  give_up_beside();
  {
    const std::lock_guard lock{end_->arrays_mutex};
    end_->arrays = nullptr;
  }
  of_generation_.reset();
  {
    const std::lock_guard lock{end_->mutex};
    end_->peers = nullptr;
  }
  peers_.reset();
}

Failure JobWorld::why_over() const {
  const std::lock_guard lock{end_->mutex};
  return end_->why;
}

Result<void> JobWorld::join() {
  if (size() == 1 || peers_ != nullptr) return {};
  auto joined = join_(session_);
  if (!joined.ok()) {
    end_->set(joined.failure());
    // What this host lacks, it lacks in the next generation, too: its node is the one to fail, and not the generation of all.
    if (joined.failure().code == Code::exhausted && joined.failure().remedy == Remedy::fix_config) throw Error{std::move(joined).failure()};
    return std::move(joined).failure();
  }
  peers_ = std::move(joined).value();
  peers_->wait_at_most(timeout());
  const std::lock_guard lock{end_->mutex};
  if (end_->over.load(std::memory_order_relaxed)) return end_->why;
  end_->peers = peers_.get();
  return {};
}

void JobWorld::use(std::unique_ptr<ArrayExchange> exchange) {
  of_generation_ = std::move(exchange);
  nothing_to_send_.assign(size(), {});
  nothing_to_receive_.assign(size(), {});
  {
    const std::lock_guard lock{end_->arrays_mutex};
    end_->arrays = of_generation_.get();
  }
  if (over()) of_generation_->revoke(why_over());  // it may have been meanwhile
}

void JobWorld::set_timeout(Duration timeout) {
  timeout_.store(std::max(timeout, exchange_timeout_min), std::memory_order_relaxed);
  if (peers_ != nullptr) peers_->wait_at_most(this->timeout());
}

Result<void> JobWorld::exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Call> as) {
  const Clock* const clock = std::this_thread::get_id() == thread_ ? arrays_.clock : nullptr;
  const Instant begun = clock != nullptr ? clock->now() : Instant{};
  auto done = finish_beside();
  if (done.ok()) done = exchange_now(sends, receives, as.value_or(call_.load(std::memory_order_relaxed)));
  if (clock != nullptr) exchanged_ += clock->now() - begun;
  return done;
}

void JobWorld::exchange_beside(std::vector<SendList> sends, std::vector<ReceiveList> receives, Call as, std::function<void()> succeeded,
                               std::function<void(std::vector<ReceiveList>&)> prepare) {
  auto before = std::exchange(beside_, std::make_unique<Beside>());
  beside_->before = std::move(before);
  beside_->sends = std::move(sends), beside_->receives = std::move(receives);
  const auto run = [this, &it = *beside_, as, succeeded = std::move(succeeded), prepare = std::move(prepare)] {
    if (it.before) it.done = finish(*it.before);
    if (!it.done.ok()) return;
    if (prepare && !over()) prepare(it.receives);
    it.done = exchange_now(it.sends, it.receives, as);
    if (it.done.ok()) succeeded();
  };
  if (arrays_.one_thread) {
    beside_->owner = ::getpid();
    beside_->later = run;
    return;
  }
  const auto work = [this, &it = *beside_, run] {
    try {
      run();
    } catch (const std::exception& error) {
      it.thrown = std::current_exception();
      end_->set({Code::generation_over, Remedy::abort_group, error.what()});
    } catch (...) {  // how tests end a process here: without a word to anybody
      it.thrown = std::current_exception();
    }
  };
  try {
    beside_->owner = ::getpid();
    beside_->thread = quiet_thread(work);
  } catch (const std::system_error&) {  // no thread: at once
    work();
  }
}

Result<void> JobWorld::finish_beside() {
  if (beside_ == nullptr) return {};  // nothing is written then: the communication thread and the job's come here beside each other
  const auto ended = std::exchange(beside_, nullptr);
  return finish(*ended);
}

Result<void> JobWorld::finish(Beside& beside) {
  if (beside.later) beside.later();
  join_or_leak(beside.thread, beside.owner);
  if (beside.thrown) std::rethrow_exception(beside.thrown);
  return beside.done;
}

Result<void> JobWorld::exchange_now(std::span<const SendList> sends, std::span<const ReceiveList> receives, Call as) {
  if (over()) return why_over();
  if (size() == 1) return {};
  ELRUN_ASSERT(peers_ != nullptr);
  peers_->set_label(as);
  auto done = peers_->exchange(sends, receives);
  if (!done.ok()) end_->set(done.failure());
  return done;
}

/// What is left on the device when this process has to end is not for the next generation.
Result<void> JobWorld::ended(Failure why) {
  if (!why.rank.has_value()) why.rank = membership_.rank;
  if (!why.generation.has_value()) why.generation = membership_.generation;
  end_->set(why);
  if (why.remedy == Remedy::exit_process) throw Error{std::move(why)};
  return why;
}

Result<void> JobWorld::exchange_arrays(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Call> as,
                                       std::optional<Stream> in) {
  if (staged_ == nullptr) return exchange(sends, receives, as);
  if (over()) return why_over();
  if (size() == 1) return {};
  // A device's own exchange cannot tell that ranks make different calls: it would hang. In rounds all have just said what they do.
  if (of_generation_ != nullptr && as != Call::round) ELRUN_TRY(exchange(nothing_to_send_, nothing_to_receive_, as));
  auto done =
      (of_generation_ != nullptr ? *of_generation_ : *staged_)
          .exchange(sends, receives,
                    {.stream = in.value_or(arrays_.memory->stream()),
                     .host = [this, as](std::span<const SendList> out, std::span<const ReceiveList> to) { return exchange(out, to, as); },
                     .over = [this] { return over(); },
                     .limit = timeout()});
  return done.ok() ? done : ended(std::move(done).failure());
}

Result<void> JobWorld::wait_for_arrays(std::string_view what) {
  if (staged_ == nullptr) return {};
  OwnedEvent event{arrays_.memory->device()};
  event.record(arrays_.memory->stream());
  const Clock& clock = *arrays_.clock;
  auto done =
      wait_for(event.view(), {.what = what, .over = [this] { return over(); }, .deadline = Deadline::after(clock.now(), timeout())}, clock);
  return done.ok() ? done : ended(std::move(done).failure());
}

Result<std::vector<ByteVector>> JobWorld::all_gather(ByteSpan mine) {
  std::vector<ByteVector> out(size());
  out[rank()].assign(mine.begin(), mine.end());
  std::vector<std::uint64_t> lengths(size(), 0);
  lengths[rank()] = mine.size();
  std::vector<SendList> sends(size());
  std::vector<ReceiveList> receives(size());
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    sends[r] = {std::as_bytes(std::span{&lengths[rank()], 1})};
    receives[r] = {std::as_writable_bytes(std::span{&lengths[r], 1})};
  }
  ELRUN_TRY(exchange(sends, receives));
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    if (lengths[r] > gather_bytes_max) {
      Failure f{Code::protocol, Remedy::abort_group,
                fmt::format("a part of {} bytes was announced, at most {} are allowed", lengths[r], gather_bytes_max)};
      f.peer = Rank{r};
      end_->set(f);
      return f;
    }
    out[r].resize(lengths[r]);
    sends[r] = {mine};
    receives[r] = {std::span{out[r]}};
  }
  ELRUN_TRY(exchange(sends, receives));
  return out;
}

Result<ByteVector> JobWorld::from_leader(ByteSpan leaders) {
  ELRUN_TRY_ASSIGN(auto parts, all_gather(leads() ? leaders : ByteSpan{}));
  return std::move(parts[0]);
}

Result<void> JobWorld::agree(const Result<void>& mine) {
  ELRUN_TRY_ASSIGN(const auto parts, all_gather(encode_status(mine.ok() ? mine : Result<void>{named(mine.failure())})));
  for (std::uint32_t r = 0; r < size(); ++r) {
    auto status = decode_status(parts[r]);
    if (status.ok()) continue;
    Failure f = std::move(status).failure();
    if (!f.rank.has_value()) f.rank = Rank{r};
    return f;
  }
  return {};
}

Failure JobWorld::named(Failure failure) const {
  if (!failure.rank) failure.rank = membership_.rank;
  if (failure.node.empty() && *failure.rank == membership_.rank) failure.node = session_.place().node.value();
  return failure;
}

// u32: 0 for success, else 1 + code + 256 x remedy; then what; u32: 0, or 1 + its rank; then its node.
ByteVector encode_status(const Result<void>& status) {
  ByteWriter w;
  if (status.ok()) {
    w.put(std::uint32_t{0});
    return w.take();
  }
  const Failure& f = status.failure();
  w.put(1 + static_cast<std::uint32_t>(f.code) + 256 * static_cast<std::uint32_t>(f.remedy));
  w.put_text(std::string_view{f.what}.substr(0, status_text_max));
  w.put(f.rank ? 1 + f.rank->value() : std::uint32_t{0});
  w.put_text(std::string_view{f.node}.substr(0, status_node_max));
  return w.take();
}

Result<void> decode_status(ByteSpan bytes) {
  ByteReader r{bytes};
  const auto number = r.get<std::uint32_t>();
  if (number == 0) return r.finish("a peer's status");
  const std::uint32_t code = (number - 1) % 256, remedy = (number - 1) / 256;
  std::string what = r.get_text(status_text_max);
  const auto rank = r.get<std::uint32_t>();
  std::string node = r.get_text(status_node_max);
  if (code > static_cast<std::uint32_t>(Code::internal) || remedy > static_cast<std::uint32_t>(Remedy::exit_process)) r.mark_broken();
  ELRUN_TRY(r.finish("a peer's status"));
  Failure failure{static_cast<Code>(code), static_cast<Remedy>(remedy), std::move(what)};
  if (rank > 0) failure.rank = Rank{rank - 1};
  failure.node = std::move(node);
  return failure;
}

}  // namespace elrun::inline v0
