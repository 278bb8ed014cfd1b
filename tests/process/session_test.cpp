#include <elrun/session.hpp>

#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "lib/base/clock.hpp"
#include "lib/link/link_session.hpp"
#include "lib/link/message_stream.hpp"
#include "lib/link/server.hpp"
#include "lib/link/store_core.hpp"
#include "lib/link/world_host.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/program.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

const SteadyClock steady;
Deadline within(Duration wait) { return Deadline::after(steady.now(), wait); }

/// An agent with nothing but a server and a store, on a thread of its own.
class SmallAgent {
 public:
  explicit SmallAgent(std::uint32_t world) : world_{world} {
    char directory[] = "/tmp/elrun-session-XXXXXX";
    REQUIRE(::mkdtemp(directory) != nullptr);
    directory_ = directory;
    (void)store_.begin_generation(generation);
    auto server = WorkerServer::listen_unix(
        loop_, socket(),
        {[this](auto from, const Message& m) { on_message(from, m); }, [this](auto from, const Failure& why) { on_closed(from, why); }});
    REQUIRE(server.ok());
    server_ = std::move(*server);
    thread_ = std::thread{[this] { loop_.run(); }};
  }
  ~SmallAgent() {
    stop();
    std::filesystem::remove_all(directory_);
  }
  void stop() {  // as a killed agent would: all connections end at once
    if (!thread_.joinable()) return;
    boost::asio::post(loop_, [this] {
      server_.reset();
      work_.reset();
      loop_.stop();
    });
    thread_.join();
  }
  [[nodiscard]] std::string socket() const { return directory_ + "/agent"; }
  Result<std::unique_ptr<Session>> open(std::uint32_t rank, WorkerKind kind = WorkerKind::job) {
    return open_under_agent({socket(), Rank{rank}, WorldSize{world_}}, kind, within(20s));
  }
  void broadcast(Message message) {
    boost::asio::post(loop_, [this, message] {
      for (const auto& [connection, rank] : ranks_) server_->send(connection, message);
    });
  }
  /// The next generation, the same ranks in the opposite order.
  Generation begin_next() {
    const Generation next{generation.number + ++later_, generation.lineage};
    boost::asio::post(loop_, [this, next] {
      (void)store_.begin_generation(next);
      for (const auto& [connection, rank] : ranks_) {
        Place place;
        place.membership = {next, Rank{world_ - 1 - rank}, WorldSize{world_}};
        place.local_world = world_;
        place.elastic = true;
        server_->send(connection, Welcome{place});
      }
    });
    return next;
  }
  /// Waits for a message that a worker sent.
  template <class M>
  M next() {
    std::unique_lock lock{mutex_};
    for (;;) {
      const auto at = std::ranges::find_if(heard_, [](const Message& m) { return std::holds_alternative<M>(m); });
      if (at != heard_.end()) {
        M found = std::get<M>(*at);
        heard_.erase(at);
        return found;
      }
      const bool more = arrived_.wait_for(lock, 60s) == std::cv_status::no_timeout;
      REQUIRE(more);
    }
  }

  const Generation generation{7, {{11, 22}}};
  std::atomic<bool> refuse = false;
  std::atomic<int> closed = 0;

 private:
  void on_message(WorkerServer::Connection from, const Message& message) {
    if (const auto* hello = std::get_if<Hello>(&message)) {
      if (refuse) {
        server_->send(from, Refusal{{.code = Code::refused, .remedy = Remedy::fix_config, .what = "no place for you"}});
        return server_->close(from);
      }
      ranks_[from] = hello->rank;
      Place place;
      place.membership = {generation, Rank{hello->rank}, WorldSize{world_}};
      place.local_world = world_;
      place.local_rank = LocalRank{hello->rank};
      place.node = NodeId{"node-a"};
      place.address = "10.1.2.3";
      place.elastic = true;
      server_->send(from, Welcome{place});
    } else if (const auto* request = std::get_if<StoreRequest>(&message)) {
      for (const auto& [to, reply] : store_.call(StoreCaller{from}, *request, steady.now())) server_->send(to.value(), reply);
    } else if (std::holds_alternative<JobOver>(message)) {
      server_->send(from, message);
    }
    const std::lock_guard lock{mutex_};
    if (!std::holds_alternative<StoreRequest>(message)) heard_.push_back(message);
    arrived_.notify_all();
  }
  void on_closed(WorkerServer::Connection from, const Failure&) {
    ranks_.erase(from);
    ++closed;
  }

  std::uint32_t world_;
  std::uint64_t later_ = 0;
  std::string directory_;
  boost::asio::io_context loop_{1};
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_{loop_.get_executor()};
  std::unique_ptr<WorkerServer> server_;
  StoreCore store_;
  std::map<WorkerServer::Connection, std::uint32_t> ranks_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Message> heard_;
  std::thread thread_;
};

Failure loss_of(std::uint32_t rank) {
  return {.code = Code::peer_lost, .remedy = Remedy::rejoin, .what = "it was killed", .peer = Rank{rank}};
}

std::string worker_program() { return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "operators_worker"; }

std::vector<std::string> operators_environment(std::uint32_t rank, std::uint32_t world, std::uint16_t port) {
  return {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(world), "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + std::to_string(port)};
}

}  // namespace

TEST_CASE("alone, a worker is a world of one with a store of its own", "[session]") {
  for (const char* name : {"ELRUN_SOCKET", "RANK", "WORLD_SIZE"}) ::unsetenv(name);
  auto session = Session::open(WorkerKind::job, within(20s)).value();
  CHECK(session->place().membership.world == WorldSize{1});
  CHECK(session->place().membership.generation.number == 1);
  CHECK(!session->place().elastic);
  Store& store = session->store();
  CHECK(store.add("n", 2, within(20s)).value() == 2);
  CHECK(store.add("n", 3, within(20s)).value() == 5);
  CHECK(as_text(store.get("n", within(20s)).value()) == "5");
  CHECK(store.get("absent", within(10ms)).failure().code == Code::deadline_passed);
  CHECK(store.barrier("b", WorldSize{1}, within(20s)).ok());
  CHECK(store.all_gather("g", Rank{0}, WorldSize{1}, as_bytes("x"), within(20s)).value().size() == 1);
  CHECK(store.remove("n", within(20s)).value());
  CHECK(store.set("k", ByteVector(store_value_max.value() + 1), within(20s)).failure().code == Code::invalid_argument);
  CHECK(session->finished(within(20s)).ok());
}

TEST_CASE("where rank 0 cannot serve its world, the variable is named that says where", "[session]") {
  const Fd taken = listen_on(resolve("127.0.0.1", 0).value().front()).value();
  const std::string port = std::to_string(local_address(taken.get()).port());
  ::unsetenv("ELRUN_SOCKET");
  const std::array<std::pair<const char*, std::string>, 4> place{
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}}};
  for (const auto& [name, value] : place) ::setenv(name, value.c_str(), 1);
  const auto session = Session::open(WorkerKind::job, within(20s));
  for (const auto& [name, value] : place) ::unsetenv(name);
  REQUIRE_FALSE(session.ok());
  const std::string& what = session.failure().what;
  INFO(what);
  CHECK(what.find("Address already in use") != std::string::npos);
  CHECK(what.find("MASTER_PORT") != std::string::npos);
  CHECK(what.find("torchrun") != std::string::npos);
}

TEST_CASE("a worker gets its place, its store and its end from the agent", "[session]") {
  SmallAgent agent{2};
  auto first = agent.open(0).value();
  auto second = agent.open(1).value();
  const Hello hello = agent.next<Hello>();
  CHECK(hello.pid == static_cast<std::uint64_t>(::getpid()));
  CHECK(hello.is_job);
  CHECK(first->place().membership == Membership{agent.generation, Rank{0}, WorldSize{2}});
  CHECK(second->place().node == NodeId{"node-a"});
  CHECK(second->place().address == "10.1.2.3");
  CHECK(second->place().elastic);

  SECTION("store calls of many threads are under way at one time") {
    auto waits = std::async(std::launch::async, [&] { return first->store().get("later", within(20s)); });
    std::vector<std::thread> threads;
    std::atomic<int> added = 0;  // checked here: Catch's assertions belong to one thread
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) added += second->store().add("n", 1, within(20s)).ok();
      });
    for (auto& thread : threads) thread.join();
    CHECK(added == 200);
    CHECK(as_text(second->store().get("n", within(20s)).value()) == "200");
    CHECK(second->store().set("later", as_bytes("now"), within(20s)).ok());
    CHECK(as_text(waits.get().value()) == "now");
  }
  SECTION("progress and the end of the job arrive, in this order") {
    first->progress({StepNumber{41}, 100, 0.5f});
    CHECK(first->finished(within(20s)).ok());
    const auto decided = agent.next<StepDecided>();
    CHECK(decided.step == 41);
    CHECK(decided.steps == 100);
    CHECK(decided.loss == 0.5f);
    CHECK(agent.next<JobOver>().generation == agent.generation);
  }
  SECTION("it says that it lives") {
    (void)agent.next<Alive>();
    (void)agent.next<Alive>();
    (void)agent.next<Alive>();  // at least one of two workers has said so twice
  }
  SECTION("the end of the generation is acknowledged, ends calls that wait, and is told once") {
    std::promise<Failure> told;
    first->on_generation_over([&](const Failure& why) { told.set_value(why); });
    auto waits = std::async(std::launch::async, [&] { return first->store().get("never", within(60s)); });
    agent.broadcast(GenerationOver{{agent.generation.number, {}}, loss_of(1)});  // another lineage: not ours
    agent.broadcast(GenerationOver{agent.generation, loss_of(1)});
    CHECK(told.get_future().get().peer == Rank{1});
    CHECK(agent.next<GenerationOver>().generation == agent.generation);
    const auto ended = waits.get();
    REQUIRE(!ended.ok());
    CHECK(ended.failure().code == Code::generation_over);
    CHECK_THAT(ended.failure().what, Catch::Contains("it was killed"));
    CHECK(first->store().set("k", {}, within(20s)).failure().code == Code::generation_over);
    std::promise<Failure> late;
    first->on_generation_over([&](const Failure& why) { late.set_value(why); });
    CHECK(late.get_future().get().peer == Rank{1});
  }
  SECTION("a process that stays gets another place, and its calls are of that generation") {
    CHECK(first->next_generation(within(50ms)).failure().code == Code::deadline_passed);  // the agent does not agree that it is over
    std::promise<void> revoked;
    first->on_generation_over([&](const Failure&) { revoked.set_value(); });
    first->returns_within(7s);
    agent.broadcast(GenerationOver{agent.generation, loss_of(1)});
    revoked.get_future().get();
    const auto acknowledged = agent.next<GenerationOver>();
    CHECK(acknowledged.why.code == Code::generation_over);
    const Generation lost = agent.begin_next();  // over again before the program takes it: it never was in it
    agent.broadcast(GenerationOver{lost, loss_of(0)});
    for (int heard = 0; heard < 2;) heard += agent.next<GenerationOver>().generation == lost;  // else one may still take it
    CHECK_FALSE(first->is_leaving());
    const Generation next = agent.begin_next();
    agent.broadcast(PrepareToLeave{next});  // before the program takes its place there
    for (const Deadline heard = within(60s); !first->is_leaving() && !heard.passed(steady.now());) std::this_thread::yield();
    REQUIRE(first->next_generation(within(20s)).ok());
    CHECK(first->is_leaving());
    REQUIRE(second->next_generation(within(20s)).ok());
    CHECK(first->place().membership == Membership{next, Rank{1}, WorldSize{2}});
    CHECK(second->place().membership.rank == Rank{0});
    CHECK(agent.next<Returned>().generation == next);
    CHECK(second->store().add("n", 1, within(20s)).value() == 1);
    CHECK(first->store().add("n", 1, within(20s)).value() == 2);
    std::promise<Failure> told;
    first->on_generation_over([&](const Failure& why) { told.set_value(why); });
    agent.broadcast(GenerationOver{next, loss_of(0)});
    CHECK(told.get_future().get().peer == Rank{0});
    CHECK(first->store().set("k", {}, within(20s)).failure().code == Code::generation_over);
    agent.stop();  // nobody will tell of a next one
    CHECK(first->next_generation(within(20s)).failure().code == Code::peer_lost);
  }
  SECTION("a program that waits for a place that nobody has told yet says so") {
    const Generation over = agent.generation;
    agent.broadcast(GenerationOver{over, loss_of(1)});
    auto waits = std::async(std::launch::async, [&] { return first->next_generation(within(60s)).ok(); });
    CHECK(agent.next<ReadyForPlace>().generation == over);
    (void)agent.begin_next();
    CHECK(waits.get());
  }
  SECTION("an agent that is gone is the end of the generation") {
    std::promise<Failure> told;
    first->on_generation_over([&](const Failure& why) { told.set_value(why); });
    agent.stop();
    CHECK_THAT(told.get_future().get().what, Catch::Contains("the agent at"));
    CHECK(!first->finished(within(20s)).ok());
  }
  SECTION("in a forked child every call fails, and the parent's session lives on") {
    const pid_t child = ::fork();
    if (child == 0) {
      const bool refused = !first->store().set("k", {}, within(1s)).ok() && !first->finished(within(1s)).ok();
      first.reset();
      ::_exit(refused ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(first->store().set("k", {}, within(20s)).ok());
  }
  SECTION("a session that is closed is closed for the agent, too, while a forked child lives on") {
    const pid_t child = ::fork();
    while (child == 0) ::pause();
    first.reset();
    for (const Deadline heard = within(20s); agent.closed == 0 && !heard.passed(steady.now());) std::this_thread::yield();
    CHECK(agent.closed == 1);
    CHECK(second->store().set("k", {}, within(20s)).ok());
    CHECK((::kill(child, SIGKILL) == 0 && ::waitpid(child, nullptr, 0) == child));
  }
}

TEST_CASE("a refused worker is told why", "[session]") {
  SmallAgent agent{1};
  agent.refuse = true;
  const auto refused = agent.open(0);
  REQUIRE(!refused.ok());
  CHECK(refused.failure().what == "no place for you");
  CHECK(refused.failure().remedy == Remedy::fix_config);
}

TEST_CASE("a socket that nobody serves is an answer, not a wait", "[session]") {
  const auto lost = open_under_agent({"/tmp/elrun-no-such-socket", Rank{0}, WorldSize{1}}, WorkerKind::program, within(60s));
  REQUIRE(!lost.ok());
  CHECK_THAT(lost.failure().what, Catch::Contains("/tmp/elrun-no-such-socket"));
}

TEST_CASE("a session for which the system has no descriptor or no thread is a failure", "[session]") {
  SmallAgent agent{2};
  std::optional<Result<std::unique_ptr<Session>>> session;
  SECTION("descriptor") {
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{0, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    session = agent.open(1);
    ::setrlimit(RLIMIT_NOFILE, &before);
    REQUIRE(!session->ok());
    CHECK_THAT(session->failure().what, Catch::Contains("no descriptor (ulimit -n): Too many open files"));
  }
  SECTION("thread") {
    pthread_attr_t usual, huge;
    REQUIRE(::pthread_getattr_default_np(&usual) == 0);
    REQUIRE(::pthread_attr_init(&huge) == 0);
    REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 50) == 0);  // no machine has room for it
    REQUIRE(::pthread_setattr_default_np(&huge) == 0);
    session = agent.open(1);
    REQUIRE(::pthread_setattr_default_np(&usual) == 0);
    REQUIRE(!session->ok());
    CHECK_THAT(session->failure().what, Catch::Contains("no thread could be started (pids.max, ulimit -u)"));
  }
  CHECK(session->failure().code == Code::exhausted);
  CHECK(session->failure().remedy == Remedy::fix_config);
  CHECK(session->failure().rank == Rank{1});
  CHECK(agent.open(1).ok());
}

TEST_CASE("garbage on the agent's socket costs its own connection and nothing else", "[session]") {
  SmallAgent agent{1};
  const SocketAddress address = unix_address(agent.socket()).value();
  const Fd connection = connect_begin(address).value();
  const std::string garbage(1000, 'x');
  REQUIRE(::send(connection.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL) == 1000);
  pollfd closed{connection.get(), POLLIN, 0};
  CHECK(::poll(&closed, 1, 20000) == 1);
  auto session = agent.open(0);
  REQUIRE(session.ok());
  CHECK((*session)->store().set("k", {}, within(20s)).ok());
}

TEST_CASE("three processes of an operator's job meet with nothing but an address", "[session]") {
  const std::uint16_t port = free_port();
  SECTION("and end in order") {
    std::vector<std::unique_ptr<Program>> workers;
    for (const std::uint32_t rank : {2u, 1u, 0u})
      workers.push_back(std::make_unique<Program>(worker_program(), std::vector<std::string>{}, operators_environment(rank, 3, port)));
    for (auto& worker : workers) {
      CHECK(worker->line() == "met [rank 0] [rank 1] [rank 2] at 127.0.0.1");
      CHECK(worker->line() == "done");
      CHECK(worker->wait() == 0);
    }
  }
  SECTION("a member that dies ends the world of all others, and is named") {
    const auto doomed = GENERATE(0u, 2u);
    std::vector<std::unique_ptr<Program>> workers;
    for (const std::uint32_t rank : {0u, 1u, 2u})
      workers.push_back(
          std::make_unique<Program>(worker_program(), std::vector<std::string>{"wait"}, operators_environment(rank, 3, port)));
    for (auto& worker : workers) CHECK(worker->line().value_or("").starts_with("met"));
    workers[doomed]->kill(SIGKILL);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (rank == doomed) continue;
      CHECK_THAT(workers[rank]->line().value_or(""),
                 Catch::Contains("generation_over") && Catch::Contains("rank " + std::to_string(doomed)));
      CHECK(workers[rank]->wait() == 1);
    }
  }
  SECTION("who is missing at the deadline is named to those who came") {
    Program first{worker_program(), {"impatient"}, operators_environment(0, 3, port)};
    Program third{worker_program(), {"impatient"}, operators_environment(2, 3, port)};
    const std::string text = first.line().value_or("");
    CHECK_THAT(text, Catch::Contains("missing") && Catch::Contains("1"));
    CHECK(first.wait() == 1);
    CHECK(third.wait() == 1);
  }
  SECTION("a wrong world size is refused with both values, and the others go on") {
    Program first{worker_program(), {}, operators_environment(0, 2, port)};
    Program wrong{worker_program(), {}, operators_environment(1, 5, port)};
    CHECK_THAT(wrong.line().value_or(""), Catch::Contains("WORLD_SIZE=5") && Catch::Contains("WORLD_SIZE=2"));
    CHECK(wrong.wait() == 78);
    Program second{worker_program(), {}, operators_environment(1, 2, port)};
    CHECK(first.line() == "met [rank 0] [rank 1] at 127.0.0.1");
    CHECK(first.wait() == 0);
    CHECK(second.wait() == 0);
  }
  SECTION("a broken environment is told whole") {
    Program worker{worker_program(), {}, {"RANK=one", "WORLD_SIZE=2"}};
    CHECK_THAT(worker.line().value_or(""), Catch::Contains("problems"));
    CHECK_THAT(worker.line().value_or(""), Catch::Contains("RANK=one"));
    CHECK(worker.wait() == 78);
  }
}

TEST_CASE("who comes to a world that was given up hears who was late, also while rank 0 is still there", "[session]") {
  std::string missing = "1 of 2 workers have come in time; missing: rank 0", heard_early, heard_late;
  // Rank 1 has these 2 s to come. Where the system does not run its threads for so long, nobody has come in time, and it is tried again.
  for (int tries = 0; tries < 4 && heard_early.find(missing) == std::string::npos; ++tries) {
    const std::uint16_t port = free_port();
    boost::asio::io_context loop;
    const Log log{"rank 0", [](Level, std::string_view) {}};
    const auto host = WorldHost::open(loop, steady, log, "127.0.0.1", port, WorldSize{2}, "", within(2s));
    REQUIRE(host.ok());
    std::thread runs{[&] { loop.run(); }};
    const auto early = open_in_operators_job({.rank = Rank{1}, .world = WorldSize{2}, .master_address = "127.0.0.1", .master_port = port},
                                             WorkerKind::job, within(20s));
    const SocketAddress address = resolve("127.0.0.1", port).value().front();
    const Fd late{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    const ByteVector hello = encode(Hello{.pid = 1, .rank = 0, .world = 2});
    std::array<char, 4096> answer{};
    pollfd heard{late.get(), POLLIN, 0};
    const bool is_answered = ::connect(late.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0 &&
                             ::send(late.get(), hello.data(), hello.size(), MSG_NOSIGNAL) > 0 && ::poll(&heard, 1, 20000) == 1 &&
                             ::recv(late.get(), answer.data(), answer.size(), 0) > 0;
    loop.stop();
    runs.join();
    REQUIRE((!early.ok() && is_answered));
    heard_early = early.failure().what, heard_late = std::string(answer.data(), answer.size());
  }
  CHECK_THAT(heard_early, Catch::Contains(missing));
  CHECK_THAT(heard_late, Catch::Contains(missing));
}

TEST_CASE("connections that are not authenticated at rank 0's port hold little, and nobody's rank", "[session]") {
  const std::uint16_t port = free_port();
  const SocketAddress address = resolve("127.0.0.1", port).value().front();
  const auto worker = [&](std::uint32_t rank, std::vector<std::string> more = {}) {
    std::vector<std::string> environment = operators_environment(rank, 2, port);
    environment.insert(environment.end(), more.begin(), more.end());
    return std::make_unique<Program>(worker_program(), std::vector<std::string>{}, environment);
  };
  const auto open_connection = [&] {
    for (int i = 0; i < 2000; ++i) {  // until rank 0 listens
      const Fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0) return Fd{::dup(socket.get())};
      std::this_thread::sleep_for(10ms);
    }
    throw std::runtime_error{"nobody listens"};
  };
  const auto say = [](const Fd& to, ByteSpan bytes) {
    return ::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
  };
  const auto is_closed = [](const Fd& socket) {
    std::array<char, 4096> bytes;
    for (pollfd heard{socket.get(), POLLIN, 0}; ::poll(&heard, 1, 20000) == 1;)
      if (::recv(socket.get(), bytes.data(), bytes.size(), 0) <= 0) return true;
    return false;
  };
  SECTION("frames that nobody ends, and more connections than there are places for") {
    const auto first = worker(0);
    const auto resident = [pid = first->pid()] {
      std::ifstream file{"/proc/" + std::to_string(pid) + "/status"};
      for (std::string line; std::getline(file, line);)
        if (line.starts_with("VmRSS:")) return std::strtoull(line.c_str() + 6, nullptr, 10);
      return 0ull;
    };
    std::vector<Fd> held;
    held.push_back(open_connection());
    const auto before = resident();
    ByteVector frame(1 << 20, std::byte{1});
    const std::uint32_t length = 30 << 20;
    std::memcpy(frame.data(), &length, sizeof length);
    for (int i = 0; i < 40; ++i) {
      const Fd one = open_connection();
      for (int sent = 0; sent < 15; ++sent) {
        pollfd room{one.get(), POLLOUT, 0};
        if (::poll(&room, 1, 20000) != 1 || !say(one, frame)) break;
      }
      CHECK(is_closed(one));
    }
    for (std::size_t i = 0; i < unauthenticated_max + 100; ++i) held.push_back(open_connection());
    const auto after = resident();  // while it waits for rank 1, and surely lives
    const auto second = worker(1);
    CHECK(first->line() == "met [rank 0] [rank 1] at 127.0.0.1");
    INFO("resident: " << before << " KiB before, " << after << " after");
    REQUIRE(before > 0);
    REQUIRE(after > 0);
    CHECK(after < before + 32 * 1024);
    CHECK(first->wait() == 0);
    CHECK(second->wait() == 0);
  }
  SECTION("a worker that comes again before its first connection has ended takes that one's place") {
    const Program first{worker_program(), {}, operators_environment(0, 3, port)};
    const ByteVector hello = encode(Hello{.pid = 1, .rank = 1, .world = 3, .session = 7});
    const Fd before = open_connection();
    CHECK(say(before, hello));
    const Fd again = open_connection();
    CHECK(say(again, hello));
    CHECK(is_closed(before));
    MessageReader reader;
    ByteVector bytes(4096);
    const auto next = [&]() -> std::optional<Message> {
      for (pollfd heard{again.get(), POLLIN, 0}; ::poll(&heard, 1, 20000) == 1;) {
        const auto got = ::recv(again.get(), bytes.data(), bytes.size(), 0);
        if (got <= 0) return {};
        reader.feed(ByteSpan{bytes}.first(static_cast<std::size_t>(got)));
        if (auto message = reader.next(); !message.ok() || *message) return message.ok() ? *message : std::nullopt;
      }
      return {};
    };
    const auto said = next();
    REQUIRE(said);
    CHECK(std::holds_alternative<Alive>(*said));  // and no refusal
  }
  SECTION("refused ones whose other ends stay open, more than there are places for") {
    const std::string token = "ELRUN_RDZV_TOKEN=nobody guesses this one";
    const auto first = worker(0, {token});
    const auto descriptors = [pid = first->pid()] {
      const std::filesystem::directory_iterator all{"/proc/" + std::to_string(pid) + "/fd"};
      return static_cast<std::size_t>(std::distance(begin(all), end(all)));
    };
    std::vector<Fd> held;
    held.push_back(open_connection());
    const std::size_t before = descriptors();
    const ByteVector hello = encode(Hello{.pid = 1, .rank = 1, .world = 2, .proof = "00"});
    std::size_t most = 0;
    for (std::size_t i = 0; i < unauthenticated_max + 300; ++i) {
      held.push_back(open_connection());
      CHECK(say(held.back(), hello));
      if (i % 10 == 0) most = std::max(most, descriptors());
    }
    most = std::max(most, descriptors());
    const auto second = worker(1, {token});
    CHECK(first->line() == "met [rank 0] [rank 1] at 127.0.0.1");
    INFO(before << " descriptors before, " << most << " at most");
    CHECK(most < before + unauthenticated_max + 20);
    CHECK(first->wait() == 0);
    CHECK(second->wait() == 0);
  }
  SECTION("with a token only who has it takes a rank") {
    const std::string token = "ELRUN_RDZV_TOKEN=nobody guesses this one";
    const auto first = worker(0, {token});
    Hello hello{.pid = 1, .rank = 1, .world = 2};
    for (const char* proof : {"", "00"}) {
      hello.proof = proof;
      const Fd one = open_connection();
      CHECK(say(one, encode(hello)));
      CHECK(is_closed(one));
    }
    const auto without = worker(1);
    CHECK_THAT(without->line().value_or(""),
               Catch::Contains("rank 1 shows no token, and rank 0 has one") && Catch::Contains("ELRUN_RDZV_TOKEN_FILE"));
    CHECK(without->wait() == 78);
    const auto second = worker(1, {token});
    CHECK(first->line() == "met [rank 0] [rank 1] at 127.0.0.1");
    CHECK(first->wait() == 0);
    CHECK(second->wait() == 0);
  }
}
