#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <future>
#include <set>

#include <elrun/philox.hpp>

#include "lib/base/bounded_write.hpp"
#include "lib/base/broken_pipe.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/files.hpp"
#include "lib/base/log.hpp"
#include "lib/base/log_limited.hpp"
#include "lib/base/memory_file.hpp"
#include "lib/base/mounts.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/base/timeouts.hpp"
#include "lib/base/wall_time.hpp"
#include "tests/support/file_size_limit.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/support/property.hpp"

using namespace elrun;

TEST_CASE("Philox4x32-10 gives its published known answers", "[base]") {
  // Random123, kat_vectors: "philox4x32 10".
  CHECK(Philox4x32::block({0, 0, 0, 0}, {0, 0}) == Philox4x32::Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox4x32::block({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Philox4x32::Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox4x32::block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Philox4x32::Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("CRC-32C gives its published known answers", "[base]") {
  // RFC 3720, B.4, and the check value of the catalogue.
  CHECK(crc32c(as_bytes("123456789")) == 0xE3069283u);
  CHECK(crc32c(ByteVector(32, std::byte{0})) == 0x8A9136AAu);
  CHECK(crc32c(ByteVector(32, std::byte{0xFF})) == 0x62A8AB43u);
  ByteVector ascending(32);
  for (unsigned i = 0; i < 32; ++i) ascending[i] = std::byte(i);
  CHECK(crc32c(ascending) == 0x46DD794Eu);
  CHECK(crc32c({}) == 0);
}

TEST_CASE("CRC-32C of any length is what it is bit by bit", "[base]") {
  test::for_all_seeds(20, [](Rng& rng) {
    ByteVector data(rng.below(20'000));
    for (std::byte& b : data) b = std::byte(rng.next());
    std::uint32_t crc = ~0u;
    for (const std::byte b : data) {
      crc ^= static_cast<std::uint32_t>(b);
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0);
    }
    CHECK(crc32c(data) == ~crc);
  });
}

TEST_CASE("checksums of parts combine to the checksum of the whole", "[base]") {
  test::for_all_seeds(200, [](Rng& rng) {
    ByteVector data(rng.below(5000));
    for (std::byte& b : data) b = std::byte(rng.next());
    const std::size_t cut = rng.below(data.size() + 1);
    const ByteSpan a = ByteSpan{data}.first(cut), b = ByteSpan{data}.subspan(cut);
    CHECK(crc32c(b, crc32c(a)) == crc32c(data));
    CHECK(crc32c_combine(crc32c(a), crc32c(b), b.size()) == crc32c(data));
    CHECK(Crc32cShift{b.size()}.combine(crc32c(a), crc32c(b)) == crc32c(data));
  });
}

TEST_CASE("SHA-256 and HMAC give their published known answers", "[base]") {
  CHECK(to_hex(sha256(as_bytes("abc"))) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Key256 key{};  // RFC 4231, case 2, whose key is padded with zeros by definition
  std::memcpy(key.data(), "Jefe", 4);
  CHECK(to_hex(hmac_sha256(key, as_bytes("what do ya want for nothing?"))) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  key = {};  // case 1
  std::memset(key.data(), 0x0b, 20);
  CHECK(to_hex(hmac_sha256(key, as_bytes("Hi There"))) == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  key = {};  // case 4
  for (std::size_t i = 0; i < 25; ++i) key[i] = std::byte(i + 1);
  CHECK(to_hex(hmac_sha256(key, as_bytes(std::string(50, '\xcd')))) == "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(equal_constant_time(as_bytes("ab"), as_bytes("ab")));
  CHECK_FALSE(equal_constant_time(as_bytes("ab"), as_bytes("abc")));
}

TEST_CASE("a bounded draw is uniform enough and below its bound", "[base]") {
  test::for_all_seeds(20, [](Rng& rng) {
    std::array<int, 7> seen{};
    for (int i = 0; i < 7000; ++i) ++seen[rng.below(7)];
    for (const int n : seen) CHECK((n > 800 && n < 1200));
  });
}

TEST_CASE("a failure names rank, generation, peer and remedy", "[base]") {
  const Failure failure{.code = Code::peer_lost,
                        .remedy = Remedy::rejoin,
                        .what = "heard nothing for 15 s",
                        .rank = Rank{3},
                        .peer = Rank{5},
                        .generation = Generation{12, {{0x89ab012345678901, 0}}},
                        .node = "node-b"};
  CHECK(message(failure) == "peer_lost: rank 3 of generation 12@89ab0123: heard nothing for 15 s [peer: rank 5] [node: node-b]; rejoin");
  CHECK(message(invalid("x")) == "invalid_argument: x; change the configuration");
}

TEST_CASE("a result passes its failure on", "[base]") {
  const auto fails = []() -> Result<int> { return invalid("no"); };
  const auto passes_on = [&]() -> Result<std::string> {
    ELRUN_TRY_ASSIGN(const int n, fails());
    return std::to_string(n);
  };
  CHECK(passes_on().failure().what == "no");
  CHECK_THROWS_AS(fails().value(), Error);
}

TEST_CASE("a reader of hostile bytes stays in bounds", "[base]") {
  ByteWriter writer;
  writer.put(std::uint32_t{7});
  writer.put_text("seven");
  const ByteVector bytes = writer.take();
  SECTION("all of it is read") {
    ByteReader reader{bytes};
    CHECK(reader.get<std::uint32_t>() == 7);
    CHECK(reader.get_text(16) == "seven");
    CHECK(reader.finish("it").ok());
  }
  SECTION("every cut is noticed") {
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      ByteReader reader{ByteSpan{bytes}.first(n)};
      (void)reader.get<std::uint32_t>();
      (void)reader.get_text(16);
      CHECK_FALSE(reader.finish("it").ok());
    }
  }
  SECTION("a length above the bound is refused") {
    ByteReader reader{bytes};
    (void)reader.get<std::uint32_t>();
    CHECK(reader.get_text(4).empty());
    CHECK_FALSE(reader.finish("it").ok());
  }
  SECTION("what is left over is noticed") {
    ByteReader reader{bytes};
    (void)reader.get<std::uint32_t>();
    CHECK_FALSE(reader.finish("it").ok());
  }
}

TEST_CASE("files are created once, linked once and read back", "[base]") {
  char name[] = "/tmp/elrun-files-XXXXXX";
  const Path root = mkdtemp(name);
  PosixFiles files;
  CHECK(files.make_directories(root / "a" / "b" / "c").ok());
  CHECK(files.make_directories(root / "a" / "b").ok());
  CHECK(files.write_durably(root / "a" / "x", as_bytes("hello")).ok());
  CHECK(files.write_durably(root / "a" / "x", as_bytes("again")).failure().code == Code::already_exists);
  CHECK(files.link(root / "a" / "x", root / "a" / "y").ok());
  CHECK(files.link(root / "a" / "x", root / "a" / "y").failure().code == Code::already_exists);
  CHECK(as_text(files.read_all(root / "a" / "y", 1_KiB).value()) == "hello");
  CHECK(files.read_all(root / "a" / "y", 4_B).failure().code == Code::corrupt);
  CHECK(files.list(root / "a").value() == std::vector<std::string>{"b", "x", "y"});
  CHECK(files.open(root / "nothing").failure().code == Code::not_found);
  auto file = files.open(root / "a" / "x").value();
  ByteVector too_long(6);
  CHECK(file->read_at(0, too_long).failure().code == Code::corrupt);
  CHECK(files.space_left(root).value() > 0_B);
  std::filesystem::remove_all(root);
}

TEST_CASE("time-outs that contradict each other are named, all at once", "[base]") {
  CHECK(Timeouts{}.problems().empty());
  Timeouts wrong;
  wrong.heartbeat_limit = wrong.heartbeat;
  wrong.drain = wrong.stop_grace;
  CHECK(wrong.problems().size() == 2);
  CHECK_FALSE(wrong.consistent());
}

TEST_CASE("a wait that is longer than the clock has time ends with the clock", "[base]") {
  const Instant now{1h};
  const Deadline never = Deadline::after(now, Duration::max());
  CHECK_FALSE(never.passed(now));
  CHECK(never.at == Instant::max());
  CHECK(never.left(now) == Duration::max() - 1h);
  CHECK(Deadline::after(now, Instant::max() - now).at == Instant::max());
  CHECK(Deadline::after(now, 2s).at == Instant{1h + 2s});
  CHECK(Deadline::after(now, -2s).passed(now));
}

TEST_CASE("lines of several logs go where their stream says, as it says", "[base]") {
  ManualClock clock;
  clock.advance(12ns);
  std::vector<std::string> lines;
  bool room = true;
  LogStream stream{clock, [](const LogLine& line) {
                     return std::to_string(line.wall_ns) + " " + std::to_string(static_cast<int>(line.level)) + " " +
                            std::string{line.who} + " " + std::string{line.text};
                   }};
  stream.set_writer([&](std::string_view line) {
    if (room) lines.emplace_back(line);
    return room;
  });
  const Log agent{stream, "elrun"}, coordinator{stream, "elrun rendezvous"};
  agent.info("a");
  coordinator.error("b");
  CHECK(lines == std::vector<std::string>{"12 1 elrun a\n", "12 3 elrun rendezvous b\n"});
  SECTION("of lines that find no room at least their number is told") {
    lines.clear();
    room = false;
    agent.info("c");
    coordinator.info("d");
    room = true;
    agent.info("e");
    agent.info("f");
    CHECK(lines == std::vector<std::string>{"12 2 elrun 2 lines before this one were not read by anybody in time\n12 1 elrun e\n",
                                            "12 1 elrun f\n"});
  }
}

TEST_CASE("a reader that stops reading holds nobody up, also while signals come", "[base]") {
  const auto before = ::signal(SIGALRM, [](int) {});
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const Fd out{ends[0]}, in{ends[1]};
  const int room = ::fcntl(in.get(), F_GETPIPE_SZ);
  const std::string filler(static_cast<std::size_t>(room) - PIPE_BUF, 'x'), line(PIPE_BUF + 1, 'y');
  REQUIRE(::write(in.get(), filler.data(), filler.size()) == static_cast<ssize_t>(filler.size()));
  const Duration limit = GENERATE(Duration{50ms}, Duration{0});  // signals come meanwhile, or there is no time for one
  std::promise<pthread_t> writer;
  auto written = std::async(std::launch::async, [&] {
    writer.set_value(::pthread_self());
    return write_within(in.get(), line, {.first = 60s, .next = limit});
  });
  const pthread_t signalled = writer.get_future().get();
  for (int i = 0; i < 1000 && written.wait_for(10ms) != std::future_status::ready; ++i) ::pthread_kill(signalled, SIGALRM);
  const bool came_back = written.wait_for(0s) == std::future_status::ready;
  std::string rest(static_cast<std::size_t>(room), ' ');
  REQUIRE(::read(out.get(), rest.data(), rest.size()) > 0);  // lets go of a writer that is stuck
  CHECK(came_back);
  CHECK_FALSE(written.get());
  ::signal(SIGALRM, before);
}

TEST_CASE("a reader that has gone away ends no process, and the program's own SIGPIPE stays", "[base]") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const Fd in{ends[1]};
  ::close(ends[0]);
  const auto is_pending = [] {
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
  };
  CHECK(write_within(in.get(), "line\n", {.first = 60s, .next = 60s}));
  CHECK_FALSE(is_pending());
  {
    const NoBrokenPipeSignal no_signal;
    CHECK(::write(in.get(), "x", 1) == -1);
    CHECK(errno == EPIPE);
  }
  CHECK_FALSE(is_pending());
  sigset_t pipe, before;
  sigemptyset(&pipe), sigaddset(&pipe, SIGPIPE);
  REQUIRE(pthread_sigmask(SIG_BLOCK, &pipe, &before) == 0);
  CHECK(sigismember(&before, SIGPIPE) == 0);
  ::raise(SIGPIPE);
  CHECK(write_within(in.get(), "line\n", {.first = 60s, .next = 60s}));
  CHECK(is_pending());
  const timespec at_once{};
  CHECK(sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE);
  REQUIRE(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
}

TEST_CASE("a log line carries who and how bad, and repeats only what changed", "[base]") {
  std::vector<std::string> lines;
  const Log log{"elrun rank 3", [&](Level, std::string_view line) { lines.emplace_back(line); }};
  LogIfChanged waiting;
  waiting(log, Level::info, "waiting for node-b");
  waiting(log, Level::info, "waiting for node-b");
  log.warning("late");
  CHECK(lines == std::vector<std::string>{"elrun rank 3: waiting for node-b", "elrun rank 3: warning: late"});
}

TEST_CASE("texts of others show what they are, and nothing else", "[base]") {
  for (const char* plain : {"", "node-a.b_c:29500", "r\xc3\xa9seau", "\xe8\x8a\x82\xe7\x82\xb9", "\xf0\x9f\x9a\x80"})
    CHECK(printable(plain) == plain);
  CHECK(printable("a\x1b[2Jb") == "a\\x1b[2Jb");
  CHECK(printable("a\nb\tc\r") == "a\\x0ab\\x09c\\x0d");
  CHECK(printable("a\nb\tc\r", Lines::many) == "a\nb\tc\\x0d");
  CHECK(printable(std::string_view{"\0\x7f", 2}) == "\\x00\\x7f");
  CHECK(printable("\xc2\x9b"
                  "2J") ==
        "\\xc2\\x9b"
        "2J");  // what a terminal takes for ESC [
  CHECK(printable("\xe2\x80\xae"
                  "x") ==
        "\\xe2\\x80\\xae"
        "x");  // from right to left
  CHECK(printable("\xff\x1b", Lines::one, Bytes8::kept) == "\xff\\x1b");
  for (const char* broken : {"\x80", "\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x80"})
    CHECK(printable(broken).find_first_not_of("\\x0123456789abcdef") == std::string::npos);
  test::for_all_seeds(200, [](Rng& rng) {
    std::string bytes(rng.below(40), '\0');
    for (char& c : bytes) c = static_cast<char>(rng.next());
    const std::string shown = printable(bytes);
    CHECK(printable(shown) == shown);
    CHECK(shown.size() <= 4 * bytes.size());
  });
}

TEST_CASE("a log line moves no cursor, and what others cause is said so often and no more", "[base]") {
  std::vector<std::string> lines;
  const Log log{"elrun", [&](Level, std::string_view line) { lines.emplace_back(line); }};
  log.info("node \x1b[1;31mred\r is lost\nsecond line");
  log.info(
      "node \xc2\x9b[2J and \xe2\x80\xae"
      "back");                           // what a terminal takes for ESC [, and what turns the line round
  log.info("r\xc3\xa9seau, r\xe9seau");  // the second as a worker prints it whose encoding is another
  CHECK(lines == std::vector<std::string>{"elrun: node \\x1b[1;31mred\\x0d is lost\nsecond line",
                                          "elrun: node \\xc2\\x9b[2J and \\xe2\\x80\\xae"
                                          "back",
                                          "elrun: r\xc3\xa9seau, r\xe9seau"});
  lines.clear();
  LogLimited refused{3, 10s};
  Instant now{};
  for (int i = 0; i < 100; ++i) refused(log, now, Level::info, "refused " + std::to_string(i));
  CHECK(lines == std::vector<std::string>{"elrun: refused 0", "elrun: refused 1", "elrun: refused 2"});
  now += 10s;
  refused(log, now, Level::info, "refused again");
  refused(log, now, Level::info, "and again");
  CHECK(lines.at(3) == "elrun: refused again (97 more like this before)");
  CHECK(lines.at(4) == "elrun: and again");
}

TEST_CASE("a thread that does not start leaves the signals of its caller as they were", "[base]") {
  struct CannotBeMoved {
    CannotBeMoved() = default;
    CannotBeMoved(const CannotBeMoved&) { throw std::runtime_error{"no"}; }
    void operator()() const {}
  };
  sigset_t usual, after;
  REQUIRE(::pthread_sigmask(SIG_SETMASK, nullptr, &usual) == 0);
  CHECK_THROWS(quiet_thread(CannotBeMoved{}));
  REQUIRE(::pthread_sigmask(SIG_SETMASK, &usual, &after) == 0);
  CHECK(::sigismember(&after, SIGTERM) == ::sigismember(&usual, SIGTERM));
  CHECK(::sigismember(&after, SIGUSR1) == ::sigismember(&usual, SIGUSR1));
}

TEST_CASE("a mount point that /etc/fstab has above a path, and that is not mounted, is found", "[base]") {
  static constexpr std::string_view fstab =
      "# what where type options\n"
      "UUID=1 / ext4 defaults 0 1\n"
      "server:/data  /data\tnfs  defaults,_netdev 0 0\n"
      "/dev/sdb /data/fast/ xfs defaults 0 0\n"
      "/dev/sdc /with\\040space ext4 defaults 0 0\n"
      "/dev/sdd /media ext4 noauto,user 0 0\n"
      "/dev/sde none swap sw 0 0\n";
  static constexpr std::string_view root = "/dev/sda / ext4 rw 0 0\n";
  const auto missing = [](const char* path, const std::string& mounted) { return missing_mount(path, fstab, std::string{root} + mounted); };
  CHECK(missing("/data/run", "") == "/data");
  CHECK(missing("/data", "") == "/data");
  CHECK(missing("/data/run", "server:/data /data nfs4 rw 0 0\n") == "");
  CHECK(missing("/data/fast/run", "server:/data /data nfs4 rw 0 0\n") == "/data/fast");
  CHECK(missing("/data/faster", "server:/data /data nfs4 rw 0 0\n") == "");
  CHECK(missing("/database", "") == "");
  CHECK(missing("/with space/run", "") == "/with space");
  CHECK(missing("/with space/run", "/dev/sdc /with\\040space ext4 rw 0 0\n") == "");
  CHECK(missing("/media/run", "") == "");
  CHECK(missing("/home/run", "") == "");
  CHECK(missing_mount("/data/run", "", root) == "");
  for (const std::string junk : {"\n\n \t\n", "x", "x /data", "/data /data\\04", "a /data/// b"})
    (void)missing_mount("/data/run", junk, junk);
  CHECK(PosixFiles{}.missing_mount("/proc/self") == "");
}

TEST_CASE("wall time before 1970 has parts of a second as a clock shows them", "[base]") {
  CHECK(wall_time(0).seconds == 0);
  CHECK(wall_time(-1).seconds == -1);
  CHECK(wall_time(-1).nanoseconds == 999'999'999);
  CHECK(wall_time(-1'000'000'000).seconds == -1);
  CHECK(wall_time(-1'000'000'000).nanoseconds == 0);
  CHECK(wall_time(1'500'000'000).nanoseconds == 500'000'000);
}

TEST_CASE("of the combinations of a case a third runs under a sanitizer, with each value of each list", "[base]") {
  for (const auto& [first, second, third] :
       {std::array{2u, 2u, 2u}, {4u, 4u, 1u}, {3u, 2u, 4u}, {9u, 2u, 13u}, {12u, 2u, 6u}, {1u, 5u, 10u}}) {
    CAPTURE(first, second, third);
    test::Selection all{false}, some{true};
    std::set<unsigned> firsts, seconds, thirds;
    unsigned taken = 0;
    for (unsigned a = 0; a < first; ++a)
      for (unsigned b = 0; b < second; ++b)
        for (unsigned c = 0; c < third; ++c) {
          CHECK(all.takes());
          if (!some.takes()) continue;
          ++taken, firsts.insert(a), seconds.insert(b), thirds.insert(c);
        }
    CHECK(firsts.size() == first);
    CHECK(seconds.size() == second);
    CHECK(thirds.size() == third);
    CHECK(3 * taken <= first * second * third + 6);
  }
}

TEST_CASE("a memory file may be sealed, and can never be executed", "[base]") {
  const Fd file = memory_file("elrun-test", 4_KiB).value();
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  CHECK((seals & F_SEAL_SEAL) == 0);
  constexpr unsigned noexec_seal = 0x0008;                                   // MFD_NOEXEC_SEAL
  constexpr int seal_exec = 0x0020;                                          // F_SEAL_EXEC
  if (!Fd{::memfd_create("elrun-test", MFD_CLOEXEC | noexec_seal)}) return;  // before Linux 6.3
  CHECK((seals & seal_exec) != 0);
}

TEST_CASE("a memory file that could not get its size is refused, with the limit", "[base]") {
  const test::FileSizeLimit limit{1_MiB};
  CHECK(memory_file("elrun-test", 1_MiB).ok());
  const auto refused = memory_file("elrun-test", Bytes{(1 << 20) + 1});
  REQUIRE(!refused.ok());
  CHECK(refused.failure().code == Code::no_space);
  CHECK_THAT(refused.failure().what, Catch::Contains("1048577 bytes") && Catch::Contains("ulimit -f"));
}
