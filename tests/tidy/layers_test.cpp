#include "tests/tidy/layers.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "tests/support/catch.hpp"

using elrun::test::against_the_arrows;
using elrun::test::missing_includes;
using elrun::test::not_a_core;
namespace fs = std::filesystem;

TEST_CASE("an include against the arrows is named, with its line", "[tidy]") {
  CHECK(against_the_arrows("lib/base/files.cpp", "#include \"lib/base/files.hpp\"\n#include <vector>\n#include <elrun/ids.hpp>\n").empty());
  CHECK(against_the_arrows("lib/base/files.cpp", "\n#include \"lib/comm/tcp/frame.hpp\"\n") ==
        std::vector<std::string>{"lib/base/files.cpp:2: lib/comm/tcp/frame.hpp runs against the arrows"});
  CHECK(against_the_arrows("lib/job/job.cpp", " # include <grpcpp/grpcpp.h>\n").size() == 1);
  CHECK(against_the_arrows("lib/job/job.cpp", "#include \"rendezvous/round/round.hpp\"").size() == 1);
  CHECK(against_the_arrows("rendezvous/round/round.cpp", "#include <grpcpp/grpcpp.h>\n#include \"rendezvous/net/stream.hpp\"\n").size() ==
        2);
  CHECK(against_the_arrows("rendezvous/round/round.cpp", "#include \"rendezvous/messages.hpp\"\n").empty());
  CHECK(against_the_arrows("launcher/main.cpp", "#include <cuda_runtime_api.h>\n#include \"kernels/fold.hpp\"\n").size() == 2);
  CHECK(against_the_arrows("include/elrun/job.hpp", "#include <fmt/format.h>\n#include \"lib/base/fd.hpp\"\n").size() == 2);
  CHECK(against_the_arrows("include/elrun/job.hpp", "#include <vector>\n#include <elrun/ids.hpp>\n").empty());
  for (const char* header :
       {"<unistd.h>", "<sys/socket.h>", "<boost/asio.hpp>", "<cuda_runtime_api.h>", "\"include/elrun/ids.hpp\"", "\"ids.hpp\""}) {
    CAPTURE(header);
    CHECK(against_the_arrows("include/elrun/job.hpp", std::string{"#include "} + header + "\n").size() == 1);
  }
  CHECK(against_the_arrows("rendezvous/net/wire.cpp", "#include \"rendezvous.pb.h\"\n").empty());
  CHECK(against_the_arrows("lib/job/job.cpp", "#include \"job.hpp\"\n").size() == 1);
  CHECK(against_the_arrows("elsewhere/x.cpp", "").size() == 1);
}

TEST_CASE("an include that is missing for other releases of a library is named", "[tidy]") {
  const std::string use = std::string{"auto text = fmt::join"} + "(list, \", \");\n";
  CHECK(missing_includes("a.cpp", "#include <fmt/ranges.h>\n" + use).empty());
  CHECK(missing_includes("a.cpp", "#include <fmt/format.h>\n").empty());
  CHECK(missing_includes("a.cpp", "#include <fmt/format.h>\n" + use) == std::vector<std::string>{"a.cpp: fmt::join needs <fmt/ranges.h>"});
}

TEST_CASE("a core reaches no event loop, network, device or clock, through no header", "[tidy]") {
  std::map<std::string, std::string> tree{{"a/core.cpp", "#include \"a/core.hpp\"\n#include <vector>\n"},
                                          {"a/core.hpp", "#include <elrun/ids.hpp>\n#include \"b/value.hpp\"\n"},
                                          {"b/value.hpp", "#include \"a/core.hpp\"\n"},
                                          {"include/elrun/ids.hpp", "#include <string>\n"}};
  const auto read = [&](const std::string& path) { return tree.contains(path) ? tree.at(path) : std::string{}; };
  CHECK(not_a_core("a/core.cpp", read).empty());
  for (const char* header : {"<boost/asio/post.hpp>", "<boost/beast/http/parser.hpp>", "<grpcpp/grpcpp.h>", "\"rendezvous.pb.h\"",
                             "<cuda.h>", "<cuda_runtime_api.h>", "<nccl.h>", "\"lib/base/clock.hpp\""}) {
    CAPTURE(header);
    tree["b/value.hpp"] = std::string{"#include "} + header + "\n";
    const auto problems = not_a_core("a/core.cpp", read);
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].starts_with("a/core.cpp > a/core.hpp > b/value.hpp: "));
  }
  tree["b/value.hpp"] = "#include \"lib/base/log.hpp\"\n";  // no header is let off for its name
  tree["lib/base/log.hpp"] = "#include \"lib/base/clock.hpp\"\n";
  CHECK(not_a_core("a/core.cpp", read).size() == 1);
  tree["b/value.hpp"] = "inline auto now() { return std::chrono::steady_clock::now(); }\n";
  CHECK(not_a_core("a/core.cpp", read).size() == 1);
}

TEST_CASE("types of one namespace have a name each", "[tidy]") {
  using elrun::test::types_defined_in;
  const std::string text =
      "namespace elrun::inline v0 {\nnamespace {\nstruct Hidden {\n};\n}  // namespace\nstruct Seen {\n};\nclass ELRUN_API Later;\n"
      "template <class T>\nclass ELRUN_API Box final : public Seen {\n  struct Inner {};\n};\nnamespace detail {\nstruct Own {\n};\n}  // namespace detail\nenum class Kind : int { a };\n}\n";
  CHECK(types_defined_in(text) == std::vector<std::string>{"elrun::inline v0::Seen", "elrun::inline v0::Box",
                                                           "elrun::inline v0::detail::Own", "elrun::inline v0::Kind"});

  // Two definitions under one name are two types to the reader and one to the linker, which takes the functions of either. A test's own
  // source is in one program alone; what tests share is checked.
  const char* root = std::getenv("ELRUN_SOURCE");
  if (root == nullptr) {
    WARN("ELRUN_SOURCE is not set: start this test with ctest");
    return;
  }
  std::map<std::string, std::string> first;
  for (const char* folder : {"include", "lib", "kernels", "checkpoint", "rendezvous", "launcher", "tests"})
    for (const auto& entry : fs::recursive_directory_iterator{fs::path{root} / folder}) {
      if (entry.path().extension() != ".hpp" && entry.path().extension() != ".cpp") continue;
      const std::string path = fs::relative(entry.path(), root).string();
      if (path.starts_with("tests/") && !path.starts_with("tests/support/") && entry.path().extension() == ".cpp") continue;
      std::ifstream in{entry.path()};
      for (const std::string& name : types_defined_in(std::string{std::istreambuf_iterator<char>{in}, {}})) {
        const auto [other, fresh] = first.try_emplace(name, path);
        INFO(name << " is defined in " << other->second << " and in " << path);
        CHECK((fresh || other->second == path));
      }
    }
  CHECK(first.size() > 300);
}

TEST_CASE("no source of a core's target reaches a shell", "[tidy]") {
  const char *root = std::getenv("ELRUN_SOURCE"), *list = std::getenv("ELRUN_CORE_SOURCES");
  if (root == nullptr || list == nullptr) {
    WARN("ELRUN_SOURCE or ELRUN_CORE_SOURCES is not set: start this test with ctest");
    return;
  }
  const auto read = [&](const std::string& path) {
    std::ifstream in{fs::path{root} / path};
    return std::string{std::istreambuf_iterator<char>{in}, {}};
  };
  std::ifstream lines{list};
  std::set<std::string> targets;
  for (std::string target, source; lines >> target >> source;) {
    targets.insert(target);
    CAPTURE(target, source);
    CHECK_FALSE(read(source).empty());
    for (const std::string& problem : not_a_core(source, read)) FAIL_CHECK(target << ": " << problem);
  }
  for (const char* core :
       {"elrun_launcher_core", "elrun_rendezvous_core", "elrun_link_core", "elrun_comm_core", "elrun_job_core", "elrun_checkpoint_core"})
    CHECK(targets.contains(core));
}

TEST_CASE("no include of this tree runs against the arrows, and none is missing", "[tidy]") {
  const char* root_name = std::getenv("ELRUN_SOURCE");
  if (root_name == nullptr) {
    WARN("ELRUN_SOURCE is not set: start this test with ctest");
    return;
  }
  const fs::path root = root_name;
  std::vector<std::string> problems;
  std::size_t files = 0;
  for (const char* top : {"include", "lib", "kernels", "rendezvous", "checkpoint", "launcher", "samples", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator{root / top}) {
      const std::string extension = entry.path().extension();
      if (extension != ".hpp" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      const std::string path = fs::relative(entry.path(), root);
      if (path.starts_with("tests/install/")) continue;  // a project of its own
      std::ifstream in{entry.path()};
      const std::string text{std::istreambuf_iterator<char>{in}, {}};
      for (std::string& problem : against_the_arrows(path, text)) problems.push_back(std::move(problem));
      for (std::string& problem : missing_includes(path, text)) problems.push_back(std::move(problem));
      ++files;
    }
  }
  CHECK(files > 50);
  for (const std::string& problem : problems) FAIL_CHECK(problem);
}
