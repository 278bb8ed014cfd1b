/// The idea: the link thread owns the connection and everything on its loop; it never waits for user code or a peer.
/// Callers post tasks to the loop, and wait on one condition variable for what the loop puts under the mutex.

#include "lib/link/link_session.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <elrun/philox.hpp>

#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/files.hpp"
#include "lib/base/log.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/base/timeouts.hpp"
#include "lib/link/message_stream.hpp"
#include "lib/link/request_store.hpp"
#include "lib/link/world_host.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

constexpr Duration backoff_least = 20ms, backoff_most = 1s;
constexpr Duration patience = 1s;         // a quick start needs no word about who came first
constexpr Duration attempt_max = 5s;      // for one connection attempt: a host that is gone does not answer at all
constexpr Duration answer_slack = 1s;     // the loop ends every wait by its deadline; the caller's own clock only if it cannot
constexpr std::size_t calls_max = 65536;  // store calls under way in one process

std::string host_name() {
  char name[256] = "";
  (void)::gethostname(name, sizeof name - 1);
  return name;
}

/// What differs between the two connections.
struct Target {
  Hello hello;
  std::string where;  ///< For people: the socket, or `rank 0 at node-a:29500`.
  std::variant<UnderAgent, InOperatorsJob> place;
  [[nodiscard]] const InOperatorsJob* operators() const { return std::get_if<InOperatorsJob>(&place); }
};

/// The state behind a LinkSession. Leaked in a forked child, whose link thread does not exist.
class Link {
 public:
  Link(Target target, Deadline deadline)
      : target_{std::move(target)},
        deadline_{deadline},
        log_{clock_, fmt::format("elrun rank {}", target_.hello.rank)},
        heartbeat_{loop_},
        retry_{loop_},
        deadline_timer_{loop_} {
    std::uint64_t seed = 0;
    random_bytes(std::as_writable_bytes(std::span{&seed, 1}));
    jitter_ = Rng{seed};
    asio::post(loop_, [this] { start(); });
    thread_ = quiet_thread([this] { loop_.run(); });
  }
  ~Link() {
    loop_.stop();
    thread_.join();
  }

  // --- on the caller's threads ---

  Result<void> wait_until_ready() {
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, deadline_.left(clock_.now()) + answer_slack, [&] { return place_ || lost_; });
    if (place_) return {};
    if (lost_) return *lost_;
    return Failure{Code::deadline_passed, Remedy::retry, fmt::format("no word from {} in time", target_.where)};
  }
  [[nodiscard]] const Place& place() const { return *place_; }

  Result<StoreReply> ask(StoreRequest request, Deadline deadline) {
    std::unique_lock lock{mutex_};
    if (auto failure = over_failure()) return *failure;
    if (calls_.size() >= calls_max) return Failure{Code::exhausted, Remedy::retry, fmt::format("{} store calls are under way", calls_max)};
    const std::uint64_t id = request.id = ++last_call_;
    const std::string what = request.keys.empty() ? "" : fmt::format(" (\"{}\")", request.keys.front());
    calls_.emplace(id, std::nullopt);
    asio::post(loop_, [this, message = Message{std::move(request)}] { send(message); });
    changed_.wait_for(lock, deadline.left(clock_.now()), [&] { return over_ || calls_.at(id); });
    auto call = calls_.extract(id);
    if (call.mapped()) return std::move(*call.mapped());
    if (auto failure = over_failure()) return *failure;
    return Failure{.code = Code::deadline_passed,
                   .remedy = Remedy::retry,
                   .what = fmt::format("a store call{} had no answer from {} in time", what, target_.where),
                   .rank = place_->membership.rank,
                   .generation = place_->membership.generation};
  }

  void on_over(Session::OnOver call) {
    asio::post(loop_, [this, call = std::move(call)]() mutable {
      std::optional<Failure> over;
      {
        const std::lock_guard lock{mutex_};
        over = over_;
      }
      if (over) call(*over);
      else on_over_.push_back(std::move(call));
    });
  }

  void progress(StepNumber decided) { post(StepDecided{place_->membership.generation, decided.value()}); }
  void cannot_go_on(Failure why) {
    const bool unreachable = why.code == Code::unreachable && why.peer;
    why.code = Code::peer_lost;  // the one word for all of these that earlier agents know
    post(GenerationOver{place_->membership.generation, std::move(why), {}, unreachable});
  }
  void returns_within(Duration time) { returns_within_.store(time.count(), std::memory_order_relaxed); }

  [[nodiscard]] bool is_leaving() const { return leaving_.load(std::memory_order_relaxed); }
  void ready_to_leave() { post(PrepareToLeave{place_->membership.generation}); }
  void checkpoint_saved(std::string acknowledgement) { post(CheckpointSaved{std::move(acknowledgement)}); }
  [[nodiscard]] Session::Remembered remembered() const {
    const std::lock_guard lock{mutex_};
    return remembered_;
  }

  Result<void> next_generation(Deadline agreed_by) {
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, agreed_by.left(clock_.now()), [&] { return over_ || lost_; });
    if (!over_ && !lost_)
      return Failure{.code = Code::deadline_passed,
                     .remedy = Remedy::exit_process,
                     .what = fmt::format("{} has not said in time that the generation is over", target_.where),
                     .rank = place_->membership.rank,
                     .generation = place_->membership.generation};
    if (!next_) post(ReadyForPlace{place_->membership.generation});
    changed_.wait(lock, [&] { return next_ || lost_; });  // as long as the agent lives
    if (lost_) return *lost_;
    place_ = std::exchange(next_, std::nullopt);
    over_.reset();
    post(Returned{place_->membership.generation});
    return {};
  }

  Result<void> finished(Deadline deadline) {
    post(JobOver{place_->membership.generation});
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, deadline.left(clock_.now()), [&] { return job_over_ || lost_; });
    if (job_over_) return {};
    if (lost_) return *lost_;
    return Failure{Code::deadline_passed, Remedy::retry, fmt::format("{} has not confirmed in time that the job is over", target_.where)};
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
      if (error || welcomed_) return;
      // Rank 0's host names the missing to everybody at the same instant; its word is worth a moment.
      deadline_timer_.expires_after(answer_slack / 2);
      deadline_timer_.async_wait([this](const ErrorCode& cancelled) {
        if (!cancelled && !welcomed_) lose(no_answer_in_time());
      });
    });
    if (const auto* job = target_.operators(); job != nullptr && job->rank == Rank{0}) {
      auto host = WorldHost::open(loop_, clock_, log_, job->master_address, job->master_port, job->world, target_.hello.proof, deadline_);
      if (!host.ok()) return lose(std::move(host).failure());
      host_ = std::move(*host);
    }
    connect();
  }

  Failure no_answer_in_time() const {
    if (stream_) {
      return {.code = Code::deadline_passed,
              .remedy = Remedy::retry,
              .what = fmt::format("{} is there, but has not said in time that the world is complete", target_.where)};
    }
    return {.code = Code::unreachable,
            .remedy = Remedy::retry,
            .what = fmt::format("{} could not be reached in time: {}", target_.where, last_problem_)};
  }

  Result<SocketAddress> next_address() {
    if (const auto* agent = std::get_if<UnderAgent>(&target_.place)) return unix_address(agent->socket);
    const auto& job = *target_.operators();
    ELRUN_TRY_ASSIGN(const auto addresses, resolve(job.master_address, job.master_port));  // anew each time: names move
    const SocketAddress address = addresses[attempts_++ % addresses.size()];
    if (job.rank != Rank{0} || !address.is_loopback() || job.master_address == "localhost" || job.master_address == address.host())
      return address;
    loopback_(log_, Level::warning,
              fmt::format(
                  "MASTER_ADDR={} is the loopback address {} on this host: workers on other hosts cannot reach rank 0; give an IP address",
                  job.master_address, address.host()));
    return address;
  }

  void connect() {
    auto address = next_address();
    if (!address.ok()) return connect_later(std::move(address).failure());
    auto fd = connect_begin(*address);
    if (!fd.ok()) return connect_later(std::move(fd).failure());
    const auto socket = std::make_shared<StreamSocket>(adopt(loop_, std::move(*fd), address->family()));
    retry_.expires_after(attempt_max);
    retry_.async_wait([socket](const ErrorCode& error) {
      ErrorCode ignored;
      if (!error) socket->close(ignored);
    });
    socket->async_wait(StreamSocket::wait_write, [this, socket, to = *address](const ErrorCode& error) {
      retry_.cancel();
      if (error) {
        return connect_later(
            {Code::unreachable, Remedy::retry, fmt::format("connect to {}: no answer within {} s", to_string(to), attempt_max / 1s)});
      }
      if (auto connected = connect_result(socket->native_handle(), to); !connected.ok())
        return connect_later(std::move(connected).failure());
      on_connected(std::move(*socket));
    });
  }

  void connect_later(Failure why) {
    last_problem_ = why.what;
    // The agent's socket was there before this process: when it is not, the agent has gone.
    if (!target_.operators() && !(why.code == Code::io && why.remedy == Remedy::retry)) return lose(std::move(why));
    if (deadline_.passed(clock_.now())) return;  // the deadline's own timer says it
    if (clock_.now() - started_ > patience) waiting_(log_, Level::info, fmt::format("waiting for {} ({})", target_.where, why.what));
    backoff_ = std::clamp(2 * backoff_, backoff_least, backoff_most);
    retry_.expires_after(Duration{static_cast<Duration::rep>(jitter_.below(static_cast<std::uint64_t>(backoff_.count()))) + 1});
    retry_.async_wait([this](const ErrorCode& error) {
      if (!error) connect();
    });
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
    if (!welcomed_) {
      if (const auto* early = std::get_if<GenerationOver>(&message)) over_before_place_ = *early;
      return;
    }
    if (const auto* over = std::get_if<GenerationOver>(&message); over != nullptr && over->generation == newest_) {
      end(over->why);  // first: with the acknowledgement nothing is done for it any more
      send(GenerationOver{newest_, {.code = Code::generation_over}, Duration{returns_within_.load(std::memory_order_relaxed)}});
    } else if (const auto* leave = std::get_if<PrepareToLeave>(&message); leave != nullptr && leave->generation == newest_) {
      leaving_ = true;
    } else if (const auto* reply = std::get_if<StoreReply>(&message)) {
      const std::lock_guard lock{mutex_};
      if (const auto call = calls_.find(reply->id); call != calls_.end()) call->second = *reply;
      changed_.notify_all();
    } else if (const auto* job = std::get_if<JobOver>(&message); job != nullptr && job->generation == newest_) {
      const std::lock_guard lock{mutex_};
      job_over_ = true;
      changed_.notify_all();
    }
  }

  void on_welcome(const Welcome& welcome) {
    {
      const std::lock_guard lock{mutex_};
      remembered_ = welcome.remembered;
    }
    if (welcomed_) return on_next_place(welcome.place);
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
    welcomed_ = true;
    newest_ = place.membership.generation;
    deadline_timer_.cancel();
    const std::lock_guard lock{mutex_};
    if (over_before_place_ && over_before_place_->generation == newest_) over_ = over_before_place_->why;
    place_ = std::move(place);
    changed_.notify_all();
  }

  // The program takes it when it is back from its own code. If the generation is over before that, it never was in it.
  void on_next_place(const Place& place) {
    const std::lock_guard lock{mutex_};
    if (!over_ || place.membership.generation.number <= newest_.number) return;
    newest_ = place.membership.generation;
    leaving_ = false;  // here, for the agent may say so again before the program takes its place
    next_ = place;
    changed_.notify_all();
  }

  void on_closed(const Failure& why) {
    heartbeat_.cancel();
    stream_.reset();
    if (!welcomed_ && target_.operators()) return connect_later(why);  // rank 0 may have been started again
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
    retry_.cancel();
    heartbeat_.cancel();
    {
      const std::lock_guard lock{mutex_};
      why.rank = place_ ? place_->membership.rank : Rank{target_.hello.rank};
      if (place_) why.generation = place_->membership.generation;
      if (!lost_) lost_ = why;
    }
    end(why);
  }

  void end(const Failure& why) {
    {
      const std::lock_guard lock{mutex_};
      next_.reset();
      if (!over_) over_ = why;
      changed_.notify_all();
    }
    for (const auto& call : std::exchange(on_over_, {})) call(why);
  }

  // --- under the mutex ---

  std::optional<Failure> over_failure() const {
    if (!over_) return {};
    Failure failure = *over_;
    failure.code = Code::generation_over;
    failure.what = fmt::format("the generation is over: {}", over_->what);
    failure.rank = place_ ? place_->membership.rank : Rank{target_.hello.rank};
    if (place_) failure.generation = place_->membership.generation;
    return failure;
  }

  SteadyClock clock_;
  Target target_;
  Deadline deadline_;
  Instant started_ = clock_.now();
  Log log_;
  asio::io_context loop_{1};

  // The link thread's own.
  asio::steady_timer heartbeat_, retry_, deadline_timer_;
  std::shared_ptr<MessageStream> stream_;
  std::unique_ptr<WorldHost> host_;
  SocketAddress local_;
  Rng jitter_{0};
  Duration backoff_ = backoff_least / 2;
  std::size_t attempts_ = 0;
  std::string last_problem_ = "no attempt was made";
  LogIfChanged waiting_, loopback_;
  std::vector<Session::OnOver> on_over_;
  bool welcomed_ = false;
  std::optional<GenerationOver> over_before_place_;  // of the generation of its first place
  Generation newest_{};                              // that the other end has told a place of
  std::atomic<bool> leaving_{false};
  std::atomic<Duration::rep> returns_within_{0};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Session::Remembered remembered_;
  std::optional<Place> place_;          // changed, and read without the lock, by the caller's thread alone once it is there
  std::optional<Place> next_;           // told, and not taken yet
  std::optional<Failure> lost_, over_;  // the connection; the generation
  std::map<std::uint64_t, std::optional<StoreReply>> calls_;
  std::uint64_t last_call_ = 0;
  bool job_over_ = false;

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
  void progress(StepNumber decided) override {
    if (!forked()) link_->progress(decided);
  }
  void cannot_go_on(const Failure& why) override {
    if (!forked() && (why.code == Code::peer_lost || why.code == Code::unreachable || why.code == Code::deadline_passed))
      link_->cannot_go_on(why);
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
  [[nodiscard]] bool is_leaving() const override { return !forked() && link_->is_leaving(); }
  void ready_to_leave() override {
    if (!forked()) link_->ready_to_leave();
  }
  [[nodiscard]] Remembered remembered() const override { return forked() ? Remembered{} : link_->remembered(); }
  void checkpoint_saved(const std::string& acknowledgement) override {
    if (!forked()) link_->checkpoint_saved(acknowledgement);
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

Result<std::unique_ptr<Session>> open_link(Target target, Deadline deadline) {
  auto link = std::make_unique<Link>(std::move(target), deadline);
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
  return open_link({std::move(hello), fmt::format("rank 0 at {}:{}", place.master_address, place.master_port), place}, deadline);
}

}  // namespace elrun::inline v0
