/// The idea: the link thread owns the connection and everything on its loop; it never waits for user code or a peer.
/// Callers post tasks to the loop and wait in SessionState for what the loop writes there.

#include "lib/link/link_session.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>

#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/files.hpp"
#include "lib/base/log.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/base/timeouts.hpp"
#include "lib/link/death_futex.hpp"
#include "lib/link/known_generation.hpp"
#include "lib/link/link_connector.hpp"
#include "lib/link/message_stream.hpp"
#include "lib/link/request_store.hpp"
#include "lib/link/session_state.hpp"
#include "lib/link/world_host.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

constexpr Duration late_host_grace = 500ms;  // rank 0's host names the missing to everybody at the same instant: that is worth a moment

std::string host_name() {
  char name[256] = "";
  (void)::gethostname(name, sizeof name - 1);
  return name;
}

/// The state behind a LinkSession. Leaked in a forked child, whose link thread does not exist. One class although it has nearly 30 methods: it
/// conducts, and has one short method for each word that a worker says or hears. What is decided is SessionState's, KnownGeneration's and LinkConnector's.
class Link {
 public:
  Link(LinkTarget target, Deadline deadline)
      : target_{std::move(target)},
        deadline_{deadline},
        log_{clock_, fmt::format("elrun rank {}", target_.hello.rank)},
        state_{clock_, target_.where, Rank{target_.hello.rank}},
        heartbeat_{loop_},
        deadline_timer_{loop_},
        connector_{
            loop_,     clock_,
            log_,      target_,
            deadline_, {[this](StreamSocket socket) { on_connected(std::move(socket)); }, [this](Failure why) { lose(std::move(why)); }}} {
    asio::post(loop_, [this] { start(); });
    thread_ = quiet_thread([this] {
      std::optional<DeathFutexHold> hold;  // before the agent hears of this process
      if (const auto* agent = std::get_if<UnderAgent>(&target_.place); agent != nullptr && agent->local_rank)
        hold.emplace(Path{agent->socket}.parent_path() / death_futexes_name, agent->local_rank->value());
      loop_.run();
    });
  }
  ~Link() {
    loop_.stop();
    thread_.join();
    if (stream_) stream_->drop();
  }

  // --- on the caller's threads ---

  Result<void> wait_until_ready() { return state_.wait_until_ready(deadline_); }
  [[nodiscard]] const SessionState& state() const { return state_; }
  [[nodiscard]] const Place& place() const { return state_.place(); }

  Result<StoreReply> ask(StoreRequest request, Deadline deadline) {
    ELRUN_TRY_ASSIGN(request.id, state_.begin_call());
    const std::uint64_t call = request.id;
    const std::string key = request.keys.empty() ? "" : request.keys.front();
    post(std::move(request));
    return state_.wait_for_answer(call, key, deadline);
  }

  void on_over(Session::OnOver call) {
    asio::post(loop_, [this, call = std::move(call)]() mutable {
      if (const auto over = state_.over()) call(*over);
      else on_over_.push_back(std::move(call));
    });
  }

  void progress(const StepProgress& p) { post(StepDecided{place().membership.generation, p.decided.value(), p.steps, p.loss, p.times}); }
  void cannot_go_on(Failure why) {
    const bool unreachable = why.code == Code::unreachable && why.peer;
    const bool own = !why.peer && (why.code == Code::io || why.code == Code::internal || why.code == Code::exhausted ||
                                   why.code == Code::invalid_argument);
    why.code = Code::peer_lost;  // the one word for all of these that earlier agents know
    post(GenerationOver{place().membership.generation, std::move(why), {}, unreachable, own});
  }
  void returns_within(Duration time) { returns_within_.store(time.count(), std::memory_order_relaxed); }

  void ready_to_leave() { post(PrepareToLeave{place().membership.generation}); }
  void went_on_from(Restoration restoration) { post(WentOnFrom{place().membership.generation, std::move(restoration)}); }
  void save_failed(StepNumber step, std::uint64_t count, Failure why) {
    post(SaveFailed{place().membership.generation, step.value(), count, std::move(why)});
  }
  void save_left_out(StepNumber step, std::uint64_t count) { post(SaveLeftOut{place().membership.generation, step.value(), count}); }
  void waits_for_storage(StorageWaiting waiting) { post(WaitsForStorage{place().membership.generation, std::move(waiting)}); }
  void rank_is_slow(SlowRank slow) { post(RankIsSlow{place().membership.generation, std::move(slow)}); }
  void checkpoint_saved(std::string acknowledgement) { post(CheckpointSaved{std::move(acknowledgement)}); }

  Result<void> next_generation(Deadline agreed_by) {
    ELRUN_TRY_ASSIGN(const bool told, state_.wait_until_over(agreed_by));
    if (!told) post(ReadyForPlace{place().membership.generation});
    ELRUN_TRY(state_.next_place());
    post(Returned{place().membership.generation});
    return {};
  }

  Result<void> finished(Deadline deadline) {
    post(JobOver{place().membership.generation});
    return state_.wait_until_job_is_over(deadline);
  }

  const SteadyClock& clock() const { return clock_; }

 private:
  void post(Message message) {
    asio::post(loop_, [this, message = std::move(message)] { send(message); });
  }

  // --- on the link thread ---

  void start() {
    deadline_timer_.expires_after(deadline_.left(clock_.now()));
    deadline_timer_.async_wait([this](const ErrorCode& error) {
      if (error || known_.has_place()) return;
      deadline_timer_.expires_after(late_host_grace);
      deadline_timer_.async_wait([this](const ErrorCode& cancelled) {
        if (!cancelled && !known_.has_place()) lose(no_answer_in_time());
      });
    });
    if (const auto* job = target_.operators(); job != nullptr && job->rank == Rank{0}) {
      auto host = WorldHost::open(loop_, clock_, log_, job->master_address, job->master_port, job->world, target_.hello.proof, deadline_);
      if (!host.ok()) return lose(std::move(host).failure());
      host_ = std::move(*host);
    }
    connector_.connect();
  }

  Failure no_answer_in_time() const {
    if (stream_) {
      return {.code = Code::deadline_passed,
              .remedy = Remedy::retry,
              .what = fmt::format("{} is there, but has not said in time that the world is complete", target_.where)};
    }
    return {.code = Code::unreachable,
            .remedy = Remedy::retry,
            .what = fmt::format("{} could not be reached in time: {}", target_.where, connector_.last_problem())};
  }

  void on_connected(StreamSocket socket) {
    if (target_.operators()) set_no_delay(socket.native_handle());
    local_ = local_address(socket.native_handle());
    // The agent is next door: its end of the socket closes when it dies. A host in the network may just fall silent.
    const MessageStream::Limits limits{.first_message = target_.operators() ? tcp_silence_max : Duration{0},
                                       .silence = target_.operators() ? tcp_silence_max : Duration{0}};
    stream_ = std::make_shared<MessageStream>(
        std::move(socket), limits,
        MessageStream::Handler{[this](const Message& message) { on_message(message); }, [this](const Failure& why) { on_closed(why); }});
    stream_->start();
    send(target_.hello);
    beat();
  }

  void beat() {
    send(Alive{});
    heartbeat_.expires_after(Timeouts{}.heartbeat);
    heartbeat_.async_wait([this](const ErrorCode& error) {
      if (!error) beat();
    });
  }

  void send(const Message& message) {
    if (stream_) stream_->send(message);
  }

  void on_message(const Message& message) {
    if (const auto* welcome = std::get_if<Welcome>(&message)) return on_welcome(*welcome);
    if (const auto* refusal = std::get_if<Refusal>(&message)) return lose(refusal->failure);
    if (!known_.has_place()) {
      if (const auto* early = std::get_if<GenerationOver>(&message)) known_.note_early_end(*early);
      return;
    }
    if (const auto* over = std::get_if<GenerationOver>(&message); over != nullptr && known_.is_newest(over->generation)) {
      end(over->why);  // first: with the acknowledgement nothing is done for it any more
      send(GenerationOver{known_.newest(), {.code = Code::generation_over}, Duration{returns_within_.load(std::memory_order_relaxed)}});
    } else if (const auto* leave = std::get_if<PrepareToLeave>(&message); leave != nullptr && known_.is_newest(leave->generation)) {
      state_.leave();
    } else if (const auto* reply = std::get_if<StoreReply>(&message)) {
      state_.answer(*reply);
    } else if (const auto* job = std::get_if<JobOver>(&message); job != nullptr && known_.is_newest(job->generation)) {
      state_.job_is_over();
    }
  }

  void on_welcome(const Welcome& welcome) {
    state_.remember(welcome.remembered);
    if (known_.has_place()) return on_next_place(welcome.place);
    Place place = welcome.place;
    if (place.membership.rank.value() != target_.hello.rank) {
      return lose({.code = Code::mismatch,
                   .remedy = Remedy::exit_process,
                   .what = fmt::format("{} gave a place for rank {} to rank {}", target_.where, place.membership.rank.value(),
                                       target_.hello.rank)});
    }
    if (const auto* job = target_.operators()) {  // rank 0 does not know where this worker is
      place.local_rank = job->local_rank;
      place.local_world = job->local_world;
      place.node = NodeId{host_name()};
      place.address = local_.host();
    }
    std::optional<Failure> over = known_.enter_first(place.membership.generation);
    deadline_timer_.cancel();
    state_.welcome(std::move(place), std::move(over));
  }

  void on_next_place(const Place& place) {
    if (known_.is_later(place.membership.generation) && state_.offer_next(place)) known_.enter_next(place.membership.generation);
  }

  void on_closed(const Failure& why) {
    heartbeat_.cancel();
    stream_.reset();
    if (!known_.has_place() && target_.operators()) return connector_.connect_later(why);  // rank 0 may have been started again
    const Failure gone{.code = Code::peer_lost,
                       .remedy = Remedy::exit_process,
                       .what = fmt::format("{} is gone: {}", target_.where, why.what),
                       .peer = target_.operators() ? std::optional{Rank{0}} : std::nullopt};
    lose(gone);
  }

  /// The connection will not come (back): nothing can be had from the other end any more.
  void lose(Failure why) {
    if (stream_) stream_->drop();
    stream_.reset();
    connector_.stop();
    heartbeat_.cancel();
    end(state_.lose(std::move(why)));
  }

  void end(const Failure& why) {
    state_.end(why);
    for (const auto& call : std::exchange(on_over_, {})) call(why);
  }

  SteadyClock clock_;
  const LinkTarget target_;
  const Deadline deadline_;
  Log log_;
  asio::io_context loop_{1};
  SessionState state_;
  std::atomic<Duration::rep> returns_within_{0};

  // The link thread's own.
  asio::steady_timer heartbeat_, deadline_timer_;
  LinkConnector connector_;
  std::shared_ptr<MessageStream> stream_;
  std::unique_ptr<WorldHost> host_;
  SocketAddress local_;
  std::vector<Session::OnOver> on_over_;
  KnownGeneration known_;

  std::thread thread_;
};

class LinkSession final : public Session {
 public:
  explicit LinkSession(std::unique_ptr<Link> link) : link_{std::move(link)} { store_.emplace(*this); }
  ~LinkSession() override {
    if (forked()) (void)link_.release();  // its thread, loop and connection are the parent's
  }
  [[nodiscard]] const Place& place() const override { return link_->place(); }
  [[nodiscard]] Store& store() override { return *store_; }
  void on_generation_over(OnOver call) override {
    if (forked()) return call(in_child());
    link_->on_over(std::move(call));
  }
  void progress(const StepProgress& progress) override {
    if (!forked()) link_->progress(progress);
  }
  void ended(const StepProgress& last) override {
    if (!forked()) link_->progress(last);
  }
  void cannot_go_on(const Failure& why) override {
    if (!forked() && why.code != Code::generation_over) link_->cannot_go_on(why);
  }
  Result<void> next_generation(Deadline agreed_by) override {
    if (forked()) return in_child();
    if (!place().elastic) return Session::next_generation(agreed_by);
    ELRUN_TRY(link_->next_generation(agreed_by));
    store_.emplace(*this);
    return {};
  }
  void returns_within(Duration time) override {
    if (!forked()) link_->returns_within(time);
  }
  [[nodiscard]] bool is_leaving() const override { return !forked() && link_->state().is_leaving(); }
  void ready_to_leave() override {
    if (!forked()) link_->ready_to_leave();
  }
  [[nodiscard]] Remembered remembered() const override { return forked() ? Remembered{} : link_->state().remembered(); }
  void checkpoint_saved(const std::string& acknowledgement) override {
    if (!forked()) link_->checkpoint_saved(acknowledgement);
  }
  void went_on_from(const Restoration& restoration) override {
    if (!forked()) link_->went_on_from(restoration);
  }
  void save_failed(StepNumber step, std::uint64_t count, const Failure& why) override {
    if (!forked()) link_->save_failed(step, count, why);
  }
  void save_left_out(StepNumber step, std::uint64_t count) override {
    if (!forked()) link_->save_left_out(step, count);
  }
  void waits_for_storage(const StorageWaiting& waiting) override {
    if (!forked()) link_->waits_for_storage(waiting);
  }
  void rank_is_slow(const SlowRank& slow) override {
    if (!forked()) link_->rank_is_slow(slow);
  }
  Result<void> finished(Deadline deadline) override {
    if (forked()) return in_child();
    return link_->finished(deadline);
  }

 private:
  class LinkStore final : public RequestStore {
   public:
    explicit LinkStore(LinkSession& session)
        : RequestStore{session.link_->clock(), session.place().membership.generation}, session_{session} {}

   protected:
    Result<StoreReply> ask(StoreRequest request, Deadline deadline) override {
      if (session_.forked()) return session_.in_child();
      return session_.link_->ask(std::move(request), deadline);
    }
    [[nodiscard]] std::uint32_t rank() const override { return session_.place().membership.rank.value(); }

   private:
    LinkSession& session_;
  };

  [[nodiscard]] bool forked() const { return ::getpid() != owner_; }
  [[nodiscard]] Failure in_child() const {
    return {.code = Code::refused,
            .remedy = Remedy::exit_process,
            .what = fmt::format("this process was forked from worker {} and has no session of its own", owner_)};
  }

  const pid_t owner_ = ::getpid();
  std::unique_ptr<Link> link_;
  std::optional<LinkStore> store_;  // of the generation at hand
};

// Where the system gives no descriptor Asio throws, and where it gives no thread the standard library.
Result<std::unique_ptr<Link>> make_link(LinkTarget target, Deadline deadline) {
  const Rank rank{target.hello.rank};
  const auto refused = [rank](std::string_view what, const auto& error) {
    return Failure{.code = Code::exhausted,
                   .remedy = Remedy::fix_config,
                   .what = fmt::format("open a session: no {}: {}", what, error.code().message()),
                   .rank = rank};
  };
  try {
    return std::make_unique<Link>(std::move(target), deadline);
  } catch (const boost::system::system_error& error) {
    return refused("descriptor (ulimit -n)", error);
  } catch (const std::system_error& error) {
    return refused("thread could be started (pids.max, ulimit -u)", error);
  }
}

Result<std::unique_ptr<Session>> open_link(LinkTarget target, Deadline deadline) {
  ELRUN_TRY_ASSIGN(auto link, make_link(std::move(target), deadline));
  ELRUN_TRY(link->wait_until_ready());
  return std::unique_ptr<Session>{std::make_unique<LinkSession>(std::move(link))};
}

Hello hello_of(Rank rank, WorldSize world, WorkerKind kind) {
  return {.release = ELRUN_RELEASE,
          .pid = static_cast<std::uint64_t>(::getpid()),
          .rank = rank.value(),
          .world = world.value(),
          .is_job = kind != WorkerKind::program,
          .stays = kind == WorkerKind::staying,
          .says_ready = true,
          .says_end = kind == WorkerKind::staying};
}

// A digest: the token itself, which the rendezvous may use as well, is not on the wire.
Result<std::string> proof_of(const InOperatorsJob& place) {
  std::string token = place.token;
  if (!place.token_file.empty()) {
    constexpr Bytes token_max = 4_KiB;
    ELRUN_TRY_ASSIGN(const ByteVector bytes, PosixFiles{}.read_all(place.token_file, token_max));
    token = as_text(bytes);
  }
  constexpr const char* blanks = " \t\r\n";
  const auto first = token.find_first_not_of(blanks);
  if (first == std::string::npos && !place.token_file.empty())
    return invalid(fmt::format("ELRUN_RDZV_TOKEN_FILE={} is empty", place.token_file));
  if (first == std::string::npos) return std::string{};
  token = token.substr(first, token.find_last_not_of(blanks) - first + 1);
  return to_hex(sha256(as_bytes("elrun world token: " + token)));
}

}  // namespace

Result<std::unique_ptr<Session>> open_under_agent(const UnderAgent& place, WorkerKind kind, Deadline deadline) {
  return open_link({hello_of(place.rank, place.world, kind), fmt::format("the agent at {}", place.socket), place}, deadline);
}

Result<std::unique_ptr<Session>> open_in_operators_job(const InOperatorsJob& place, WorkerKind kind, Deadline deadline) {
  Hello hello = hello_of(place.rank, place.world, kind);
  ELRUN_TRY_ASSIGN(hello.proof, proof_of(place));
  random_bytes(std::as_writable_bytes(std::span{&hello.session, 1}));
  return open_link({std::move(hello), fmt::format("rank 0 at {}:{}", place.master_address, place.master_port), place}, deadline);
}

}  // namespace elrun::inline v0
