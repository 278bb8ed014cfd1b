// What does the coordinator of a thousand, of ten thousand agents cost beyond what gRPC itself takes? Real streams on
// the loopback, the real `elrun store`, and beside it a server that only answers, with as many streams, the same number
// of messages and the same sizes, under the same load in the same run. That one answers each stream as it comes (the bare
// echo), or, as whoever forms a world must, no one before all have come (the echo that waits).
//
//   scale_bench [AGENTS [REPEATS]]      1000 and 10000 without arguments
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "rendezvous.grpc.pb.h"
#include "rendezvous/net/grpc.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun;
using elrun::test::Wait;
using Time = std::chrono::steady_clock::time_point;
constexpr auto now = std::chrono::steady_clock::now;

namespace {

constexpr std::int64_t opening_max = 512;      // streams on their way at once: the system's queue of connections is bounded
constexpr std::chrono::seconds patience{300};  // for any one phase

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "scale_bench: {}\n", why);
  std::_Exit(1);
}

double ms_since(Time begin) { return std::chrono::duration<double, std::milli>(now() - begin).count(); }

// --- the bare server ------------------------------------------------------------------------------------------------

class Echo;

// Holds the answers back until `count` streams wait for one.
class Gathering {
 public:
  explicit Gathering(std::size_t count) : count_{count} {}
  void add(Echo* stream);

 private:
  const std::size_t count_;
  std::mutex mutex_;
  std::vector<Echo*> waiting_;
};

// Answers a Join with as many bytes as a world has, a later one with those of a revocation before them, and keeps nothing.
class Echo final : public grpc::ServerBidiReactor<wire::ToCoordinator, wire::ToNode> {
 public:
  Echo(const wire::ToNode& world, const wire::ToNode& revoke, Gathering& gathering)
      : world_{world}, revoke_{revoke}, gathering_{gathering} {
    StartSendInitialMetadata();
    StartRead(&in_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    const bool join = in_.has_join();
    if (join && std::exchange(joined_, true)) answer(&revoke_);
    StartRead(&in_);
    if (join) gathering_.add(this);
  }
  void OnWriteDone(bool) override {
    const std::lock_guard lock{mutex_};
    queue_.pop_front();
    if (!queue_.empty()) StartWrite(queue_.front());
  }
  void OnDone() override { delete this; }
  void answer() { answer(&world_); }

 private:
  void answer(const wire::ToNode* message) {
    const std::lock_guard lock{mutex_};
    queue_.push_back(message);
    if (queue_.size() == 1) StartWrite(message);
  }
  const wire::ToNode &world_, &revoke_;
  Gathering& gathering_;
  bool joined_ = false;
  wire::ToCoordinator in_;
  std::mutex mutex_;
  std::deque<const wire::ToNode*> queue_;
};

void Gathering::add(Echo* stream) {
  std::vector<Echo*> all;
  {
    const std::lock_guard lock{mutex_};
    waiting_.push_back(stream);
    if (waiting_.size() >= count_) all.swap(waiting_);
  }
  for (Echo* one : all) one->answer();
}

class EchoService final : public wire::Rendezvous::CallbackService {
 public:
  EchoService(std::size_t world_bytes, std::size_t revoke_bytes, std::size_t together) : gathering_{together} {
    world_.mutable_world()->set_cause(std::string(world_bytes, 'w'));
    revoke_.mutable_revoke()->mutable_why()->set_what(std::string(revoke_bytes, 'r'));
  }
  grpc::ServerBidiReactor<wire::ToCoordinator, wire::ToNode>* Node(grpc::CallbackServerContext*) override {
    return new Echo{world_, revoke_, gathering_};
  }

 private:
  Gathering gathering_;
  wire::ToNode world_, revoke_;
};

int echo(std::size_t world_bytes, std::size_t revoke_bytes, std::size_t together) {
  quiet_grpc();
  EchoService service{world_bytes, revoke_bytes, together};
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  builder.SetMaxSendMessageSize(static_cast<int>(wire_message_max.value()));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  const auto server = builder.BuildAndStart();
  if (!server) give_up("the bare server cannot listen");
  fmt::print("serving at 127.0.0.1:{}\n", port);
  std::fflush(stdout);
  ::pause();
  return 0;
}

// --- the load -------------------------------------------------------------------------------------------------------

class Load;

// What an agent says, without an agent: one channel, one stream. gRPC's threads and the load's meet under the mutex.
class LoadStream final : grpc::ClientBidiReactor<wire::ToCoordinator, wire::ToNode> {
 public:
  LoadStream(Load& load, std::uint32_t number) : load_{load}, number_{number} {}
  void open(const std::string& target) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    arguments.SetMaxReceiveMessageSize(static_cast<int>(wire_message_max.value()));
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // as an agent has it, for both servers
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, stream_window);
    stub_ = wire::Rendezvous::NewStub(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
    context_.set_wait_for_ready(true);  // a connection that was lost in the crowd is tried again
    stub_->async()->Node(&context_, this);
    AddHold();
    StartRead(&in_);
    StartCall();
  }
  void say(wire::ToCoordinator message) {
    const std::lock_guard lock{mutex_};
    if (!up_) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }
  void beat() {
    wire::ToCoordinator message;
    message.mutable_alive();
    say(std::move(message));
  }
  /// Says, as an agent does with one message, that the generation that it knows is over here, and that it joins the next.
  void again() { say(join()); }
  [[nodiscard]] bool has_a_world() const { return has_a_world_; }
  void vanish() {
    {
      const std::lock_guard lock{mutex_};
      up_ = false;
    }
    vanished_ = true;
    context_.TryCancel();
    RemoveHold();
  }

 private:
  [[nodiscard]] wire::ToCoordinator join() const;
  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool) override;
  void OnDone(const grpc::Status& status) override {
    if (!vanished_) give_up(fmt::format("stream {} ended: {}", number_, status.error_message()));
  }

  Load& load_;
  std::uint32_t number_;
  std::unique_ptr<wire::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  wire::ToNode in_;
  wire::Generation last_;  // number 0: none
  std::mutex mutex_;
  std::deque<wire::ToCoordinator> queue_;
  bool up_ = false, joined_ = false;
  std::atomic<bool> has_a_world_ = false, vanished_ = false;
};

class Load {
 public:
  Load(std::uint32_t agents, std::string target) : agents_{agents}, target_{std::move(target)} {}

  // One line per phase, and one when the spare has joined, too; then SIGUSR1 begins the second.
  int run() {
    sigset_t begin;
    sigemptyset(&begin);
    sigaddset(&begin, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &begin, nullptr);
    quiet_grpc();
    Time from = now();
    for (std::uint32_t i = 0; i <= agents_; ++i) open();  // one more than the world takes: the spare
    std::thread beats{[this] { beat(); }};
    if (!all_have_a_world(agents_)) give_up(fmt::format("{} of {} agents have a world", worlds_.load(), agents_));
    report("world", ms_since(from));
    if (!all_have_joined()) give_up(fmt::format("{} of {} agents have said their Join", joined_.load(), agents_ + 1));
    fmt::print("settled\n");
    std::fflush(stdout);

    int number = 0;
    sigwait(&begin, &number);
    beating_ = false;
    beats.join();
    worlds_ = 0, messages_ = 0, bytes_ = 0, revokes_ = 0, revoke_bytes_ = 0, world_bytes_ = 0;
    from = now();
    const auto member = std::find_if(streams_.begin(), streams_.end(), [](const auto& stream) { return stream->has_a_world(); });
    (*member)->vanish();
    if (bare_)
      for (const auto& stream : streams_)
        if (stream != *member) stream->again();
    if (!all_have_a_world(agents_)) give_up(fmt::format("{} of {} agents have the next world", worlds_.load(), agents_));
    report("replaced", ms_since(from));
    std::_Exit(0);  // ten thousand streams have nothing to say any more
  }

  void joined() {
    const std::lock_guard lock{mutex_};
    ++joined_;
    joined_changed_.notify_one();
  }
  void opened() {
    --opening_;
    opening_changed_.notify_one();
  }
  /// True when the stream is to begin again.
  bool received(const wire::ToNode& message) {
    ++messages_;
    const std::size_t size = message.ByteSizeLong();
    bytes_ += size;
    if (message.has_revoke()) {
      ++revokes_, revoke_bytes_ += size;
      return !bare_;
    }
    if (message.has_world()) {
      world_bytes_ += size;
      const std::lock_guard lock{mutex_};
      ++worlds_;
      worlds_changed_.notify_one();
    }
    return false;
  }
  void be_bare() { bare_ = true; }
  [[nodiscard]] std::uint32_t agents() const { return agents_; }

 private:
  void open() {
    {
      std::unique_lock lock{mutex_};
      opening_changed_.wait_for(lock, std::chrono::milliseconds{50}, [this] { return opening_ < opening_max; });
    }
    ++opening_;
    streams_.push_back(std::make_unique<LoadStream>(*this, static_cast<std::uint32_t>(streams_.size())));
    streams_.back()->open(target_);
    made_ = streams_.size();
  }
  bool all_have_a_world(std::uint32_t count) {
    std::unique_lock lock{mutex_};
    return worlds_changed_.wait_for(lock, patience, [&] { return worlds_ >= count; });
  }
  bool all_have_joined() {
    std::unique_lock lock{mutex_};
    return joined_changed_.wait_for(lock, patience, [this] { return joined_ > agents_; });
  }
  // Every agent says once a second that it lives, of many thousands less often; a twentieth of them at a time.
  void beat() {
    const auto pause = std::max(std::chrono::milliseconds{50}, std::chrono::milliseconds{agents_ / 40});
    for (std::uint32_t part = 0; beating_; part = (part + 1) % 20) {
      const Time next = now() + pause;
      for (std::size_t i = part; i < made_; i += 20) streams_[i]->beat();
      std::this_thread::sleep_until(next);
    }
  }
  void report(const char* what, double ms) const {
    fmt::print("{} ms={:.0f} messages={} bytes={} world_bytes={} revoke_bytes={}\n", what, ms, messages_.load(), bytes_.load(),
               world_bytes_.load() / agents_, revokes_ == 0 ? 0 : revoke_bytes_.load() / revokes_.load());
    std::fflush(stdout);
  }

  const std::uint32_t agents_;
  const std::string target_;
  bool bare_ = false;
  std::deque<std::unique_ptr<LoadStream>> streams_;
  std::atomic<std::size_t> made_ = 0;
  std::atomic<std::int64_t> opening_ = 0;
  std::atomic<bool> beating_ = true;
  std::atomic<std::uint64_t> joined_ = 0, worlds_ = 0, messages_ = 0, bytes_ = 0, world_bytes_ = 0, revokes_ = 0, revoke_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable opening_changed_, joined_changed_, worlds_changed_;
};

wire::ToCoordinator LoadStream::join() const {
  wire::ToCoordinator message;
  wire::Join& join = *message.mutable_join();
  join.set_node(fmt::format("node-{}.bench.example.internal", number_));
  join.set_incarnation(number_ + 1);
  join.set_run("scale");
  join.set_version("0.1.0");
  join.mutable_options()->set_nodes_min(load_.agents());
  join.mutable_options()->set_nodes_max(load_.agents());
  join.mutable_options()->set_last_call_ns(30'000'000'000);
  join.mutable_options()->set_max_restarts(-1);
  join.set_workers(8);
  join.set_address(fmt::format("10.{}.{}.{}", number_ / 65536, number_ / 256 % 256, number_ % 256));
  join.set_master_port(40000);
  join.set_hint(-1);
  if (last_.number() != 0) *join.mutable_last() = last_;
  return message;
}

void LoadStream::OnReadInitialMetadataDone(bool ok) {
  if (!ok) return;  // why is told at its end
  {
    const std::lock_guard lock{mutex_};
    up_ = true;
  }
  say(join());
  load_.opened();
}

void LoadStream::OnWriteDone(bool) {
  if (!std::exchange(joined_, true)) load_.joined();  // the first that it says
  const std::lock_guard lock{mutex_};
  queue_.pop_front();
  if (!queue_.empty() && up_) StartWrite(&queue_.front());
}

void LoadStream::OnReadDone(bool ok) {
  if (!ok) return;
  if (in_.has_refused()) give_up("refused: " + in_.refused().failure().what());
  if (in_.has_world()) last_ = in_.world().generation(), has_a_world_ = true;
  if (load_.received(in_)) again();
  StartRead(&in_);
}

// --- the two beside each other ----------------------------------------------------------------------------------------

struct Phase {
  double ms = 0, cpu_ms = 0, messages = 0, bytes = 0;
};
struct Outcome {
  Phase world, replaced;
  double memory_kb = 0;  // resident, of all streams
  std::size_t world_bytes = 0, revoke_bytes = 0;
};

double cpu_ms(pid_t pid) {
  clockid_t clock{};
  timespec used{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &used) != 0) give_up("the server's processor time cannot be read");
  return static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) * 1e-6;
}

double resident_kb(pid_t pid) {
  std::ifstream in{fmt::format("/proc/{}/status", pid)};
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("VmRSS:")) return std::strtod(line.c_str() + 6, nullptr);
  return 0;
}

Phase phase_of(const std::string& line) {
  const auto number = [&](const char* name) { return static_cast<double>(test::number_after(line, name)); };
  return {.ms = number("ms"), .messages = number("messages"), .bytes = number("bytes")};
}

Outcome measure(test::Job& server, std::uint32_t agents, bool bare) {
  const auto serving = server.line("serving", Wait{30'000});
  if (!serving) throw std::runtime_error("the server does not serve: " + server.output());
  const std::string port = serving->substr(serving->rfind(':') + 1);
  const double cpu_before = cpu_ms(server.pid()), memory_before = resident_kb(server.pid());
  test::Job load{{.arguments = {"load", std::to_string(agents), "ipv4:127.0.0.1:" + port, bare ? "bare" : "elrun"},
                  .program = std::filesystem::read_symlink("/proc/self/exe")}};
  const auto world = load.line("world ms", Wait{patience});
  if (!world) throw std::runtime_error("no world: " + load.output() + server.output());
  Outcome out;
  out.world = phase_of(*world);
  const double cpu_world = cpu_ms(server.pid());
  out.world.cpu_ms = cpu_world - cpu_before;
  out.memory_kb = resident_kb(server.pid()) - memory_before;
  out.world_bytes = static_cast<std::size_t>(test::number_after(*world, "world_bytes"));
  if (!load.line("settled", Wait{patience})) throw std::runtime_error("the spare has not joined: " + load.output() + server.output());
  const double cpu_rest = cpu_ms(server.pid());
  load.signal(SIGUSR1);
  const auto replaced = load.line("replaced ms", Wait{patience});
  if (!replaced) throw std::runtime_error("no next world: " + load.output() + server.output());
  out.replaced = phase_of(*replaced);
  out.replaced.cpu_ms = cpu_ms(server.pid()) - cpu_rest;
  out.revoke_bytes = static_cast<std::size_t>(test::number_after(*replaced, "revoke_bytes"));
  return out;
}

template <class Get>
double median(const std::vector<Outcome>& all, Get get) {
  std::vector<double> values;
  for (const Outcome& one : all) values.push_back(get(one));
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(std::uint32_t agents, int repeats) {
  std::vector<Outcome> ours, bare, waiting;
  for (int i = 0; i < repeats; ++i) {  // in turn, so that a busy machine is busy for both
    {
      // Beats that the load, on the same cores, sends late are nobody's death.
      test::Job store{{.arguments = {"store", "--host", "127.0.0.1", "--port", "0", "--rdzv_conf",
                                     "keep_alive_interval=1,keep_alive_max_attempt=300"}}};
      ours.push_back(measure(store, agents, false));
    }
    for (const std::uint32_t together : {std::uint32_t{1}, agents}) {
      test::Job echo{{.arguments = {"echo", std::to_string(ours.back().world_bytes), std::to_string(ours.back().revoke_bytes),
                                    std::to_string(together)},
                      .program = std::filesystem::read_symlink("/proc/self/exe")}};
      (together == 1 ? bare : waiting).push_back(measure(echo, agents, true));
    }
  }
  const auto line = [&](const char* question, auto get, double scale, const char* unit, double bound) {
    const double a = median(ours, get) / scale, b = median(bare, get) / scale, c = median(waiting, get) / scale;
    fmt::print(
        "scale: {} agents, {}: {:.2f} {} median of {} (bare echo: {:.2f}, ratio {:.2f}; echo that waits for all: {:.2f}, ratio {:.2f}; bound {:.1f})\n",
        agents, question, a, unit, repeats, b, a / b, c, a / c, bound);
  };
  line(
      "time to a world", [](const Outcome& o) { return o.world.ms; }, 1000, "s", 1.3);
  line(
      "coordinator's processor time", [](const Outcome& o) { return o.world.cpu_ms; }, 1000, "s", 1.3);
  line(
      "coordinator's memory per stream", [](const Outcome& o) { return o.memory_kb; }, agents, "KB", 1.2);
  fmt::print("scale: {} agents, messages to each until the world: {:.2f}, {:.0f} bytes together\n", agents,
             median(ours, [](const Outcome& o) { return o.world.messages; }) / agents,
             median(ours, [](const Outcome& o) { return o.world.bytes; }) / agents);
  line(
      "one replaced, time", [](const Outcome& o) { return o.replaced.ms; }, 1, "ms", 1.3);
  line(
      "one replaced, coordinator's processor time", [](const Outcome& o) { return o.replaced.cpu_ms; }, 1, "ms", 1.3);
  fmt::print("scale: {} agents, one replaced: {:.2f} messages and {:.0f} bytes to each agent, {:.0f} bytes in all\n", agents,
             median(ours, [](const Outcome& o) { return o.replaced.messages; }) / agents,
             median(ours, [](const Outcome& o) { return o.replaced.bytes; }) / agents,
             median(ours, [](const Outcome& o) { return o.replaced.bytes; }));
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  ::setlinebuf(stdout);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max = std::max<rlim_t>(files.rlim_max, 65536);
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) {  // without the right to raise it, what there is
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  const std::vector<std::string> words{argv + 1, argv + argc};
  if (words.size() == 4 && words[0] == "echo") return echo(std::stoul(words[1]), std::stoul(words[2]), std::stoul(words[3]));
  if (words.size() == 4 && words[0] == "load") {
    Load load{static_cast<std::uint32_t>(std::stoul(words[1])), words[2]};
    if (words[3] == "bare") load.be_bare();
    return load.run();
  }
  try {
    if (words.empty()) compare(1000, 5), compare(10000, 3);
    else compare(static_cast<std::uint32_t>(std::stoul(words[0])), words.size() > 1 ? std::stoi(words[1]) : 3);
  } catch (const std::exception& why) {  // what was started has ended by now
    give_up(why.what());
  }
}
