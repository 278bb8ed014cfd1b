/// \file One bad file stops nobody: what is no file, or no directory, under a name that a start reads is refused at once, never read and never
/// waited for. On the real file system.

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "checkpoint/storage/storage.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

/// A call that waits for a FIFO ends the program, and does not hold the whole suite.
struct Alarm {
  Alarm() { ::alarm(120); }
  ~Alarm() { ::alarm(0); }
};

enum class Odd { fifo, directory, socket, loop, dangling, endless, device, huge, empty };
constexpr Odd all_odd[] = {Odd::fifo,    Odd::directory, Odd::socket, Odd::loop, Odd::dangling,
                           Odd::endless, Odd::device,    Odd::huge,   Odd::empty};

const char* to_string(Odd odd) {
  constexpr const char* names[] = {"a FIFO",           "a directory",       "a socket",
                                   "a link to itself", "a link to nothing", "a link to /dev/zero",
                                   "a device",         "a file of 1 TiB",   "an empty file"};
  return names[static_cast<std::size_t>(odd)];
}

/// False where this user or file system cannot make it.
bool put(Odd odd, const fs::path& path) {
  fs::remove_all(path);
  switch (odd) {
    case Odd::fifo: return ::mkfifo(path.c_str(), 0666) == 0;
    case Odd::directory: return fs::create_directory(path) && fs::create_directory(path / "in it");
    case Odd::socket: {
      const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), folder = ::open(path.parent_path().c_str(), O_PATH | O_CLOEXEC);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;  // a path may be longer than an address: by way of its folder
      const std::string name = fmt::format("/proc/self/fd/{}/{}", folder, path.filename().string());
      std::strncpy(address.sun_path, name.c_str(), sizeof address.sun_path - 1);
      const bool made =
          name.size() < sizeof address.sun_path && ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
      ::close(fd), ::close(folder);
      return made;
    }
    case Odd::loop: return fs::create_symlink(path.filename(), path), true;
    case Odd::dangling: return fs::create_symlink("nowhere", path), true;
    case Odd::endless: return fs::create_symlink("/dev/zero", path), true;
    case Odd::device: return ::mknod(path.c_str(), S_IFCHR | 0666, makedev(1, 5)) == 0;
    case Odd::huge:
    case Odd::empty: {
      const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
      const bool made = ::ftruncate(fd, odd == Odd::huge ? off_t{1} << 40 : 0) == 0;
      ::close(fd);
      return made;
    }
  }
  return false;
}

constexpr const char* newest = "s000000000030.g00000001.a01";

/// Checkpoints of steps 10, 20 and 30 under fence 1, by two ranks.
void leave_three(Files& files, const Path& root) {
  TestJob job{files, 2, 1, small_model(), 1, "run", root};
  REQUIRE(said(job.start()) == "");
  for (const std::uint64_t step : {10u, 20u, 30u}) REQUIRE(said(job.save(step)) == "");
}

}  // namespace

TEST_CASE("whatever takes the place of a file under a checkpoint root costs at most the checkpoint that needs it", "[checkpoint]") {
  const Alarm alarm;
  PosixFiles files;
  struct Name {
    std::string path;
    std::uint64_t step;  // from which a start goes on
  };
  const std::string in_newest = fmt::format("ckpt/{}/", newest);
  const Name names[] = {{"RUN.json", 30},
                        {"RUN.json.damaged", 30},
                        {"gens/g00000001.claim", 30},
                        {"gens/g00000001.json", 30},
                        {"gens/g00000001.s000000000030.a01.acknowledged", 30},
                        {in_newest + "r00001-of-00002.part.json", 30},
                        {"trash", 30},
                        {in_newest + "COMMIT", 20},
                        {in_newest + "MANIFEST.json", 20},
                        {in_newest + "r00001-of-00002.safetensors", 20},
                        {in_newest + "QUARANTINE", 20}};
  for (const Name& name : names)
    for (const Odd odd : all_odd) {
      INFO(name.path << " is " << to_string(odd));
      const TemporaryDirectory directory;
      const Path root = Path{directory.path()} / "root";
      leave_three(files, root);
      if (!put(odd, root / name.path)) continue;
      REQUIRE(newest_generation(RootIn{files, root}).ok());  // the launcher asks for it
      TestJob next{files, 2, 2, small_model(), 1, "run", root};
      const auto start = next.start();
      REQUIRE(said(start) == "");
      REQUIRE(start->choice);
      CHECK(start->choice->step == name.step);
      CHECK(said(next.load(*start)) == "");
      CHECK(fs::is_regular_file(fs::symlink_status(root / "RUN.json")));
      REQUIRE(said(next.save(40)) == "");
      (void)next.ranks[0].retain(2);  // removes what it can
      TestJob last{files, 2, 3, small_model(), 1, "run", root};
      const auto again = last.start();
      REQUIRE(said(again) == "");
      CHECK(again->choice->step == 40);
      CHECK(said(last.load(*again)) == "");
    }
}

TEST_CASE("a damaged RUN.json is replaced also where a directory has the name under which it is kept", "[checkpoint]") {
  const Alarm alarm;
  const TemporaryDirectory directory;
  PosixFiles files;
  leave_three(files, directory.path());
  REQUIRE(put(Odd::fifo, Path{directory.path()} / "RUN.json"));
  REQUIRE(put(Odd::directory, Path{directory.path()} / "RUN.json.damaged"));
  TestJob next{files, 2, 2, small_model(), 1, "run", directory.path()};
  CHECK(next.start().value().choice->step == 30);
  CHECK(fs::is_regular_file(fs::symlink_status(Path{directory.path()} / "RUN.json")));
}

TEST_CASE("what takes the place of a directory stops the start with what a person has to change", "[checkpoint]") {
  const Alarm alarm;
  PosixFiles files;
  for (const std::string& name : {std::string{}, std::string{"gens"}, std::string{"ckpt"}, fmt::format("ckpt/{}", newest)})
    for (const Odd odd : all_odd) {
      INFO("root/" << name << " is " << to_string(odd));
      if (odd == Odd::directory) continue;
      if (odd == Odd::dangling && name.empty()) continue;  // a directory that will be made
      const TemporaryDirectory directory;
      const Path root = Path{directory.path()} / "root", at = name.empty() ? root : root / name;
      leave_three(files, root);
      if (!put(odd, at)) continue;
      TestJob next{files, 2, 2, small_model(), 1, "run", root};
      const auto start = next.start();
      REQUIRE_FALSE(start.ok());
      INFO(message(start.failure()));
      CHECK(start.failure().remedy == Remedy::fix_config);
      CHECK((start.failure().code == Code::invalid_argument || start.failure().code == Code::not_found));
      CHECK_THAT(message(start.failure()), Contains(name.starts_with("ckpt/") ? newest : root.string()));
    }
}

TEST_CASE("a FIFO under the name of the next checkpoint costs an attempt, not the save", "[checkpoint]") {
  const Alarm alarm;
  const TemporaryDirectory directory;
  PosixFiles files;
  leave_three(files, directory.path());
  TestJob next{files, 2, 2, small_model(), 1, "run", directory.path()};
  REQUIRE(said(next.start()) == "");
  REQUIRE(put(Odd::fifo, Path{directory.path()} / "ckpt/s000000000040.g00000002.a01"));
  CHECK(said(next.save(40)) == "");
  CHECK(fs::exists(Path{directory.path()} / "ckpt/s000000000040.g00000002.a02/COMMIT"));
}

TEST_CASE("a removal follows no link out of the checkpoint root", "[checkpoint]") {
  const TemporaryDirectory directory, elsewhere;
  PosixFiles files;
  leave_three(files, directory.path());
  REQUIRE(files.write_durably(Path{elsewhere.path()} / "precious", as_bytes(std::string{"x"})).ok());
  fs::create_directory_symlink(elsewhere.path(), Path{directory.path()} / "ckpt/s000000000005.g00000001.a01");
  TestJob next{files, 2, 2, small_model(), 1, "run", directory.path()};
  REQUIRE(said(next.start()) == "");
  REQUIRE(said(next.save(40)) == "");
  REQUIRE(said(next.ranks[0].retain(2)) == "");
  CHECK_FALSE(fs::exists(fs::symlink_status(Path{directory.path()} / "ckpt/s000000000005.g00000001.a01")));
  CHECK(fs::exists(Path{elsewhere.path()} / "precious"));
}

TEST_CASE("a checkpoint that somebody keeps elsewhere behind a link stays whole when the link goes", "[checkpoint]") {
  const TemporaryDirectory directory, elsewhere;
  PosixFiles files;
  leave_three(files, directory.path());
  const Path name = "s000000000010.g00000001.a01";
  fs::rename(Path{directory.path()} / "ckpt" / name, Path{elsewhere.path()} / name);
  fs::create_directory_symlink(Path{elsewhere.path()} / name, Path{directory.path()} / "ckpt" / name);
  // And the folder in which removed ones lie for a moment leads to another root's checkpoints.
  fs::create_directory(Path{elsewhere.path()} / "s000000000007.g00000001.a01");
  fs::create_directory_symlink(elsewhere.path(), Path{directory.path()} / "trash");
  TestJob next{files, 2, 2, small_model(), 1, "run", directory.path()};
  REQUIRE(said(next.start()) == "");
  REQUIRE(said(next.save(40)) == "");
  REQUIRE(said(next.ranks[0].retain(2)) == "");
  CHECK_FALSE(fs::exists(fs::symlink_status(Path{directory.path()} / "ckpt" / name)));
  CHECK(fs::exists(Path{elsewhere.path()} / name / "COMMIT"));
  CHECK(fs::exists(Path{elsewhere.path()} / "s000000000007.g00000001.a01"));
}

TEST_CASE("a checkpoint is not condemned for a RUN.json that is damaged after the start", "[checkpoint]") {
  const Alarm alarm;
  const TemporaryDirectory directory;
  PosixFiles files;
  leave_three(files, directory.path());
  TestJob next{files, 2, 2, small_model(), 1, "run", directory.path()};
  const Start start = next.start().value();
  REQUIRE(put(Odd::fifo, Path{directory.path()} / "RUN.json"));
  const auto rejected = next.ranks[0].reject(start, Failure{Code::corrupt, Remedy::retry, "another node's cable"});
  REQUIRE_FALSE(rejected.ok());
  CHECK_THAT(message(rejected.failure()), Contains("do all nodes see the same"));
  CHECK_FALSE(fs::exists(Path{directory.path()} / "ckpt" / newest / "QUARANTINE"));
}

TEST_CASE("a root that cannot be written is gone on from, and saved to once it can be", "[checkpoint]") {
  const TemporaryDirectory directory;
  PosixFiles files;
  const Path root = Path{directory.path()} / "root";
  leave_three(files, root);
  if (::mount(root.c_str(), root.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    WARN("SKIPPED: nothing can be mounted here: " << std::strerror(errno));
    return;
  }
  struct Mounted {
    Path root;
    ~Mounted() { (void)::umount2(root.c_str(), MNT_DETACH); }
  } const mounted{root};
  const auto writable = [&](bool yes) {
    return ::mount(nullptr, root.c_str(), nullptr, MS_REMOUNT | MS_BIND | (yes ? 0ul : static_cast<unsigned long>(MS_RDONLY)), nullptr);
  };
  const bool damaged = GENERATE(false, true), run_gone = GENERATE(false, true);
  if (damaged) REQUIRE(put(Odd::fifo, root / "ckpt" / newest / "COMMIT"));
  if (run_gone) fs::remove(root / "RUN.json");
  REQUIRE(writable(false) == 0);
  const std::uint64_t step = damaged ? 20 : 30;
  TestJob reader{files, 2, 2, small_model(), 1, "run", root};
  const auto start = reader.start();
  REQUIRE(said(start) == "");
  CHECK(start->fence == 0);
  REQUIRE(start->choice);
  CHECK(start->choice->step == step);
  CHECK_THAT(start->notes.back(), Contains("cannot be written") && Contains("Read-only file system"));
  CHECK(said(reader.load(*start)) == "");
  CHECK(reader.save(40).failure().code == Code::refused);  // without a fence
  CHECK(reader.ranks[0].start_with_state(40).failure().code == Code::not_permitted);
  TestJob other_plan{files, 2, 2, small_model(), 1, "run", root, {"another", "seed: 8"}};
  CHECK(other_plan.start().failure().code == Code::mismatch);
  TestJob gives_up{files, 2, 2, small_model(), 1, "run", root};
  CHECK(gives_up.begin_anew(LossName{30, 1}).failure().remedy == Remedy::fix_config);

  REQUIRE(writable(true) == 0);
  SECTION("it is free") {
    REQUIRE(said(reader.ranks[0].start_with_state(40)) == "");
    REQUIRE(said(reader.save(40)) == "");
    TestJob last{files, 2, 3, small_model(), 1, "run", root};
    CHECK(last.start().value().choice->step == 40);
  }
  SECTION("another job has saved there meanwhile") {
    TestJob other{files, 2, 7, small_model(), 1, "other", root};
    REQUIRE(said(other.start()) == "");
    REQUIRE(said(other.save(50)) == "");
    const auto refused = reader.ranks[0].start_with_state(40);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.failure().code == Code::refused);
    CHECK_THAT(message(refused.failure()), Contains("run other") || Contains("other"));
  }
}

TEST_CASE("an empty root that cannot be written is refused at once", "[checkpoint]") {
  FaultyFiles files;
  files.broken = [](const Path&) { return 0; };
  REQUIRE(files.make_directories("/ckpts").ok());
  files.arm(FaultyFiles::Fault{.at = 0, .error = EROFS, .sticky = true});
  TestJob job{files, 1, 1};
  const auto start = job.start();
  REQUIRE_FALSE(start.ok());
  CHECK(start.failure().code == Code::not_permitted);
}
