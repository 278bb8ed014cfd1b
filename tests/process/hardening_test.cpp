// What outsiders do at the coordinator's port, and what a thousand nodes leave behind. Real sockets, real processes.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "lib/base/fd.hpp"
#include "rendezvous/net/acceptor.hpp"
#include "rendezvous/net/admission_watch.hpp"
#include "rendezvous/net/node_link.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/certificates.hpp"
#include "tests/support/property.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

// The address sanitizer keeps what was freed, and tells of what was not by itself.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool resident_tells = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool resident_tells = false;
#else
constexpr bool resident_tells = true;
#endif
#else
constexpr bool resident_tells = true;
#endif

constexpr Duration patience = 60s;  // only a failing test waits for so long

const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, const std::string& payload) {
  std::string out;
  for (const std::size_t shift : {16, 8, 0}) out += static_cast<char>(payload.size() >> shift);
  out += static_cast<char>(type);
  out += static_cast<char>(flags);
  for (const std::size_t shift : {24, 16, 8, 0}) out += static_cast<char>(stream >> shift);
  return out + payload;
}
const std::string settings = frame(4, 0, 0, "");

// The headers of a stream to the rendezvous, spelled out: no table, no compression.
std::string headers(std::uint32_t stream) {
  std::string block;
  const std::pair<const char*, const char*> fields[] = {{":method", "POST"}, {":scheme", "http"}, {":path", "/elrun.wire.Rendezvous/Node"},
                                                        {":authority", "x"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
  const auto put = [&](std::string_view text) { block.append(1, static_cast<char>(text.size())).append(text); };
  for (const auto& [name, value] : fields) {
    block += '\0';
    put(name);
    put(value);
  }
  return frame(1, 4, stream, block);
}

/// Somebody who is no node.
struct Outsider {
  Fd socket;
  explicit Outsider(std::uint16_t port) : socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)} {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
      throw std::system_error{errno, std::system_category(), "connect"};
    ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  }
  Outsider& say(const std::string& text) {
    (void)::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    return *this;
  }
  /// True once the other side has hung up; what it said before is read and forgotten.
  [[nodiscard]] bool is_shown_out() const {
    char buffer[4096];
    while (true) {
      const ssize_t got = ::recv(socket.get(), buffer, sizeof buffer, 0);
      if (got > 0) continue;
      return got == 0 || errno != EAGAIN;
    }
  }
};

/// Nodes in this process, whose coordinator may be elsewhere.
struct Stage {
  boost::asio::io_context loop;
  SteadyClock clock;
  Timeouts timeouts;
  bool until(const std::function<bool()>& so) {
    const Instant end = clock.now() + patience;
    while (!so()) {
      if (clock.now() > end) return false;
      loop.restart();
      loop.run_one_for(20ms);
    }
    return true;
  }
};

struct Node {
  Stage& stage;
  std::string name;
  std::uint64_t incarnation = 1;
  RoundOptions options{.nodes_min = 2, .nodes_max = 2};
  std::string version = "0.1.0";
  Generation last{};
  std::vector<CoordinatorMessage> heard{};
  std::unique_ptr<NodeLink> link{};

  void connect(std::uint16_t port, const Access& access = {}, const std::string& host = "127.0.0.1") {
    const NodeLink::Handler handler{.connected = [this] { join(); },
                                    .disconnected = [](const Failure&) {},
                                    .message =
                                        [this](const CoordinatorMessage& message) {
                                          heard.push_back(message);
                                          if (const auto* world = std::get_if<World>(&message)) last = world->generation;
                                        }};
    link = connect_to_coordinator(stage.loop, {host, port}, stage.timeouts, incarnation, handler, access);
  }
  void join() {
    Join message;
    message.who = {NodeId{name}, incarnation};
    message.run = RunId{"run"};
    message.version = version;
    message.options = options;
    message.address = "127.0.0.1";
    message.last = last;
    link->send(message);
  }
  template <class T>
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(std::count_if(heard.begin(), heard.end(), [](const auto& m) { return std::holds_alternative<T>(m); }));
  }
};

std::size_t entries(pid_t pid, const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{"/proc/" + std::to_string(pid) + "/" + folder}) ++count;
  return count;
}
std::size_t descriptors(pid_t pid) { return entries(pid, "fd"); }
std::size_t threads(pid_t pid) { return entries(pid, "task"); }
std::uint64_t resident_kib(pid_t pid) {
  std::ifstream file{"/proc/" + std::to_string(pid) + "/status"};
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmRSS:")) return std::strtoull(line.c_str() + 6, nullptr, 10);
  return 0;
}

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

struct Store {
  std::uint16_t port = free_port();
  Job job;
  explicit Store(const std::vector<std::string>& more = {})
      : job{{.arguments = with({"store", "--host", "127.0.0.1", "--port", std::to_string(port)}, more)}} {
    REQUIRE(job.line("serving the rendezvous"));
  }
};

}  // namespace

TEST_CASE("the first bytes of a connection say what it is", "[hardening]") {
  const auto kind = [](std::string_view text) { return first_bytes(as_bytes(text)); };
  CHECK(kind(preface) == FirstBytes::http2);
  CHECK(kind("\x16\x03\x01\x02") == FirstBytes::tls);
  CHECK(kind("\x16") == FirstBytes::unfinished);
  for (std::size_t size = 1; size < preface.size(); ++size)
    CHECK(kind(std::string_view{preface}.substr(0, size)) == FirstBytes::unfinished);
  for (const char* other : {"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/1.1\r\n", "\x16\x02", "\x80", "SSH-2.0-x"})
    CHECK(kind(other) == FirstBytes::other);
  for_all_seeds(500, [&](Rng& rng) {
    std::string text = preface;
    text[rng.below(text.size())] ^= static_cast<char>(1u << rng.below(8));
    CHECK(kind(text) == FirstBytes::other);
  });
}

TEST_CASE("a peer is written in one way", "[hardening]") {
  CHECK(plain_peer("ipv4:10.0.0.1:29500") == "10.0.0.1:29500");
  CHECK(plain_peer("ipv6:[::1]:29500") == "[::1]:29500");
  CHECK(plain_peer("ipv6:%5Bfe80::1%25eth0%5D:29500") == "[fe80::1%eth0]:29500");
  CHECK(plain_peer("10.0.0.1:29500") == "10.0.0.1:29500");
  for (const char* odd : {"", "ipv", "ipv4:", "%", "%5", "%zz", "unix:/tmp/x"}) (void)plain_peer(odd);
}

TEST_CASE("a flood of outsiders takes neither the port nor the job away, and leaves nothing behind", "[hardening][process][grpc]") {
  Store store;
  Stage stage;
  Node a{stage, "a"}, b{stage, "b"};
  a.connect(store.port);
  b.connect(store.port);
  REQUIRE(stage.until([&] { return a.count<World>() == 1 && b.count<World>() == 1; }));
  const std::size_t descriptors_before = descriptors(store.job.pid());
  const std::uint64_t resident_before = resident_kib(store.job.pid());
  // Far fewer descriptors than outsiders: gRPC's own listener would stop for good.
  const rlimit few{128, 128};
  REQUIRE(::prlimit(store.job.pid(), RLIMIT_NOFILE, &few, nullptr) == 0);

  std::vector<std::unique_ptr<Outsider>> outsiders;
  // They take their time where the port is slow to answer; the nodes of the job go on with their heartbeats.
  auto flood = std::async(std::launch::async, [&] {
    Rng rng{1};
    for (int i = 0; i < 600; ++i) {
      outsiders.push_back(std::make_unique<Outsider>(store.port));
      std::string noise(100, '\0');
      for (char& c : noise) c = static_cast<char>(rng.next());
      switch (i % 6) {
        case 0: break;
        case 1: outsiders.back()->say(preface.substr(0, 1 + rng.below(23))); break;
        case 2: outsiders.back()->say(noise); break;
        case 3: outsiders.back()->say("GET / HTTP/1.1\r\nHost: x\r\n\r\n"); break;
        case 4: outsiders.back()->say("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise); break;
        default: outsiders.back()->say(preface + settings); break;
      }
    }
  });
  REQUIRE(stage.until([&] { return flood.wait_for(0s) == std::future_status::ready; }));
  flood.get();
  // A node of the job comes while they are all there: a spare.
  Node c{stage, "c"};
  c.connect(store.port);
  CHECK(stage.until([&] { return c.count<Waiting>() == 1; }));
  // Who said something that no node says is gone by now or soon; who said nothing, when its time is over.
  CHECK(stage.until([&] { return std::all_of(outsiders.begin(), outsiders.end(), [](const auto& s) { return s->is_shown_out(); }); }));
  c.link.reset();
  CHECK(stage.until([&] { return descriptors(store.job.pid()) <= descriptors_before + 2; }));
  if (resident_tells) CHECK(resident_kib(store.job.pid()) < resident_before + 32 * 1024);
  CHECK(a.count<Revoke>() + b.count<Revoke>() == 0);
  a.link->send(JobFinished{a.last});
  CHECK(stage.until([&] { return b.count<Verdict>() == 1; }));
  b.link.reset(), a.link.reset();
  CHECK(store.job.wait() == 0);
  CHECK(store.job.says("turned away: connections that are not elrun's"));
  CHECK(store.job.says("turned away: connections with TLS"));
}

TEST_CASE("behind the acceptor every step has its time, and a length is judged before its message", "[hardening][grpc]") {
  Stage stage;
  stage.timeouts.newcomer = 300ms;
  std::string said;
  const Log log{"coordinator", [&](Level, std::string_view line) { said.append(line).append("\n"); }};
  const auto coordinator = Coordinator::create(stage.loop, stage.clock, log, {.run = RunId{"run"}, .timeouts = stage.timeouts});
  const std::uint16_t port = coordinator->serve("127.0.0.1", 0).value();
  Node a{stage, "a"}, b{stage, "b"};
  a.connect(port);
  b.connect(port);
  REQUIRE(stage.until([&] { return a.count<World>() == 1 && b.count<World>() == 1; }));

  const std::string join = [] {
    const std::string message{"\x0a\x00", 2};  // a Join without anything in it
    return frame(0, 0, 1, std::string{"\0\0\0\0\x02", 5} + message);
  }();
  const std::string begun = preface + settings + headers(1);
  std::string many = preface + settings;
  for (std::uint32_t stream = 1; stream < 200; stream += 2) many += headers(stream);
  Rng rng{2};
  std::string noise(5000, '\0');
  for (char& c : noise) c = static_cast<char>(rng.next());
  const std::pair<const char*, std::string> habits[] = {
      {"no settings", preface},
      {"no stream", preface + settings},
      {"no Join", begun},
      {"half a message", begun + frame(0, 0, 1, std::string{"\0\0\0\x01\0half", 9})},
      {"a message of 4 GiB", begun + frame(0, 0, 1, std::string{"\0\xff\xff\xff\xff", 5})},
      {"a message of 40 MiB that does not come", begun + frame(0, 0, 1, std::string{"\0\x02\x80\0\0", 5})},
      {"bytes that are no message", begun + frame(0, 0, 1, std::string{"\0\0\0\0\x04\xff\xff\xff\xff", 9})},
      {"another message before its Join", begun + frame(0, 0, 1, std::string{"\0\0\0\0\x02\x12\0", 7})},
      {"a hundred streams", many},
      {"noise behind the preface", preface + noise},
      {"noise behind a stream", begun + noise},
      {"a stream to nobody's method", preface + settings + frame(1, 4, 1, std::string{"\x83\x86\x44\x02/x\x41\x01x", 9})},
      {"a Join that fits nobody", begun + join},
  };
  for (const auto& [habit, words] : habits) {
    INFO(habit);
    Outsider outsider{port};
    outsider.say(words);
    CHECK(stage.until([&] { return outsider.is_shown_out(); }));
  }
  std::vector<std::unique_ptr<Outsider>> crowd;
  for (int i = 0; i < 200; ++i)
    crowd.push_back(std::make_unique<Outsider>(port)), crowd.back()->say(habits[static_cast<std::size_t>(i) % std::size(habits)].second);
  Node c{stage, "c"};
  c.connect(port);
  CHECK(stage.until([&] { return c.count<Waiting>() == 1; }));
  CHECK(stage.until([&] { return std::all_of(crowd.begin(), crowd.end(), [](const auto& s) { return s->is_shown_out(); }); }));
  CHECK(a.count<Revoke>() + b.count<Revoke>() == 0);
  CHECK(said.find("turned away: streams that did not join") != std::string::npos);
}

TEST_CASE("what connections send before somebody is let in is counted, and so are they", "[hardening][process][grpc]") {
  const TemporaryDirectory directory;
  const CertificateAuthority authority{directory.path()};
  const auto certificate = authority.sign("all", {"localhost", "127.0.0.1"});
  write_file(directory.path() + "/token", "nobody guesses this one");
  Access access;
  std::vector<std::string> more;
  const bool tls = GENERATE(false, true), token = GENERATE(false, true);
  INFO((tls ? "TLS " : "") << (token ? "token" : ""));
  std::string conf;
  if (tls) {
    access.ca_file = certificate.ca, access.certificate_file = certificate.certificate, access.key_file = certificate.key;
    conf = "cacert=" + certificate.ca + ",cert=" + certificate.certificate + ",key=" + certificate.key;
  }
  if (token) access.token_file = directory.path() + "/token", conf += (conf.empty() ? "" : ",") + ("token_file=" + access.token_file);
  if (!conf.empty()) more = {"--rdzv_conf", conf};
  Store store{more};
  Stage stage;
  Node a{stage, "a"}, b{stage, "b"};
  for (Node* node : {&a, &b}) node->connect(store.port, access);
  REQUIRE(stage.until([&] { return a.count<World>() == 1 && b.count<World>() == 1; }));
  const std::uint64_t resident_before = resident_kib(store.job.pid());

  // Small headers in frames that never end: gRPC keeps each. Or a handshake, for as long as it is read.
  std::string small;
  for (int i = 0; i < 3000; ++i) small += std::string{"\0\x01x\x01y", 5};
  const std::string begin = tls ? std::string{"\x16\x03\x01\x40\0\x01\0\x40\0\x03\x03", 11} + std::string(16373, 'x')
                                : preface + settings + frame(1, 0, 1, small.substr(0, 5));
  const std::string again = tls ? std::string{"\x16\x03\x01\x40\0", 5} + std::string(16384, 'x') : frame(9, 0, 1, small);
  std::uint64_t peak = 0, sent = 0;
  for (int i = 0; i < 16; ++i) {
    Outsider outsider{store.port};
    outsider.say(begin);
    if (pollfd answer{outsider.socket.get(), POLLIN, 0}; !tls) (void)::poll(&answer, 1, 20'000);  // gRPC has it now
    // 100 MB are enough to end a coordinator that takes them.
    for (std::uint64_t bytes = 0; bytes < 100'000'000;) {
      pollfd room{outsider.socket.get(), POLLOUT, 0};
      if (::poll(&room, 1, 20'000) <= 0 || (room.revents & (POLLERR | POLLHUP)) != 0) break;
      const ssize_t more_bytes = ::send(outsider.socket.get(), again.data(), again.size(), MSG_NOSIGNAL);
      if (more_bytes < 0 && errno != EAGAIN) break;
      bytes += static_cast<std::uint64_t>(std::max<ssize_t>(more_bytes, 0)),
          sent += static_cast<std::uint64_t>(std::max<ssize_t>(more_bytes, 0));
    }
    CHECK(stage.until([&] { return outsider.is_shown_out(); }));
    peak = std::max(peak, resident_kib(store.job.pid()));
    stage.loop.poll();
  }
  // More than there are places for, which say how they would begin and nothing more.
  std::vector<std::unique_ptr<Outsider>> held;
  auto crowd = std::async(std::launch::async, [&] {
    for (std::size_t i = 0; i < unadmitted_max + 300; ++i) {
      held.push_back(std::make_unique<Outsider>(store.port));
      held.back()->say(tls ? begin.substr(0, 300) : preface + settings);
    }
  });
  REQUIRE(stage.until([&] { return crowd.wait_for(0s) == std::future_status::ready; }));
  crowd.get();
  Node c{stage, "c"};
  c.connect(store.port, access);
  CHECK(stage.until([&] { return c.count<Waiting>() == 1; }));
  CHECK(descriptors(store.job.pid()) < 2 * unadmitted_max + 100);
  peak = std::max(peak, resident_kib(store.job.pid()));
  INFO("resident: " << resident_before << " KiB before, at most " << peak << "; sent: " << sent);
  if (resident_tells) CHECK(peak < resident_before + 96 * 1024);
  CHECK(a.count<Revoke>() + b.count<Revoke>() == 0);
  if (!tls) CHECK(store.job.line("turned away: connections that sent more than 64 KiB before they were let in"));
}

TEST_CASE("connections that each send less than they may cannot fill the memory together", "[hardening][process][grpc]") {
  Store store;
  const std::uint64_t resident_before = resident_kib(store.job.pid());
  std::string small;
  for (int i = 0; i < 3000; ++i) small += std::string{"\0\x01x\x01y", 5};
  std::vector<std::unique_ptr<Outsider>> outsiders;
  std::uint64_t peak = 0;
  for (int i = 0; i < 500; ++i) {
    outsiders.push_back(std::make_unique<Outsider>(store.port));
    outsiders.back()->say(preface + settings);
    pollfd answer{outsiders.back()->socket.get(), POLLIN, 0};
    REQUIRE(::poll(&answer, 1, 20'000) == 1);  // gRPC has it now
    outsiders.back()->say(frame(1, 0, 1, small));
    for (int more = 0; more < 3; ++more) outsiders.back()->say(frame(9, 0, 1, small));  // 60 KB of headers that have no end
    peak = std::max(peak, resident_kib(store.job.pid()));
  }
  // What is parsed last is seen last: gRPC's threads take turns.
  for (const auto end = std::chrono::steady_clock::now() + 1s; std::chrono::steady_clock::now() < end;)
    peak = std::max(peak, resident_kib(store.job.pid()));
  INFO("resident: " << resident_before << " KiB before, at most " << peak);
  if (resident_tells) CHECK(peak < resident_before + 96 * 1024);
  CHECK(store.job.line("turned away: connections that sent the most of more than 4 MiB before they were let in"));
}

TEST_CASE("an elrun store that was told its job takes neither run id nor number of nodes from an outsider", "[hardening][process][grpc]") {
  Store store{{"--rdzv_id", "run", "--nnodes", "2"}};
  Stage stage;
  Node outsider{.stage = stage, .name = "outsider", .options = {.nodes_min = 1, .nodes_max = 1}};
  outsider.connect(store.port);
  REQUIRE(stage.until([&] { return !outsider.heard.empty(); }));
  CHECK(outsider.count<Refused>() == 1);
  Node a{stage, "a"}, b{stage, "b"};
  for (Node* node : {&a, &b}) node->connect(store.port);
  CHECK(stage.until([&] { return a.count<World>() == 1 && b.count<World>() == 1; }));
}

TEST_CASE("a thousand nodes that came and went leave nothing in the coordinator's process", "[hardening][process][grpc]") {
  Store store;
  Stage stage;
  const pid_t pid = store.job.pid();
  std::uint64_t incarnation = 0;
  const auto cycles = [&](int count) {
    for (int i = 0; i < count; ++i) {
      Node node{.stage = stage, .name = "node", .incarnation = ++incarnation, .options = {.nodes_min = 1, .nodes_max = 1}};
      node.connect(store.port);
      REQUIRE(stage.until([&] { return node.count<World>() == 1; }));
      if (i % 4 == 0) continue;  // it is gone without a word
      node.link->send(Leave{"it was asked to"});
      node.link->send(Acknowledge{node.last});
      stage.loop.poll();
    }
  };
  cycles(100);  // gRPC makes its threads and pools
  const auto settled = [&] { return descriptors(pid) <= 40; };
  CHECK(stage.until(settled));
  const std::size_t threads_before = threads(pid), descriptors_before = descriptors(pid);
  const std::uint64_t resident_before = resident_kib(pid);
  cycles(1000);
  CHECK(stage.until([&] { return descriptors(pid) <= descriptors_before + 4; }));
  CHECK(stage.until([&] { return threads(pid) <= threads_before + 4; }));  // gRPC starts more while it is busy, and ends them
  const std::uint64_t resident = resident_kib(pid);
  INFO("resident: " << resident_before << " KiB before, " << resident << " after");
  if (resident_tells) CHECK(resident <= resident_before + 4 * 1024);
}

TEST_CASE("another minor version works together, another major one is refused with both named", "[hardening][grpc]") {
  Stage stage;
  const Log log{"coordinator", [](Level, std::string_view) {}};
  const auto coordinator = Coordinator::create(stage.loop, stage.clock, log, {.run = RunId{"run"}, .timeouts = stage.timeouts});
  const std::uint16_t port = coordinator->serve("127.0.0.1", 0).value();
  Node older{.stage = stage, .name = "older", .version = "0.0.9"}, newer{.stage = stage, .name = "newer", .version = "0.7.1"};
  Node other{.stage = stage, .name = "other", .version = "1.0.0"};
  other.connect(port);
  REQUIRE(stage.until([&] { return other.count<Refused>() == 1; }));
  const std::string why = std::get<Refused>(other.heard.back()).failure.what;
  CHECK(why.find("this node runs elrun 1.0.0") != std::string::npos);
  CHECK(why.find("the coordinator 0.1.0") != std::string::npos);
  older.connect(port);
  newer.connect(port);
  CHECK(stage.until([&] { return older.count<World>() == 1 && newer.count<World>() == 1; }));
}

}  // namespace elrun::test
