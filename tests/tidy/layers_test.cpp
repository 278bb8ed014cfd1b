#include "tests/tidy/layers.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/catch.hpp"

using elrun::test::against_the_arrows;
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

TEST_CASE("no include of this tree runs against the arrows", "[tidy]") {
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
      ++files;
    }
  }
  CHECK(files > 50);
  for (const std::string& problem : problems) FAIL_CHECK(problem);
}
