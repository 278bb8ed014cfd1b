// Finding NCCL at run time. The cases run in this order: what is loaded stays loaded.

#include "lib/comm/nccl/library.hpp"

#include <dlfcn.h>

#include <fstream>
#include <string>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace elrun;
using namespace elrun::test;

TEST_CASE("without a library the failure names it and says where to put one", "[nccl]") {
  const auto nccl = NcclLibrary::load("libnccl-that-is-not-there.so.2");
  REQUIRE(!nccl.ok());
  CHECK((nccl.failure().code == Code::not_found && nccl.failure().remedy == Remedy::fix_config));
  CHECK_THAT(nccl.failure().what,
             Catch::StartsWith("libnccl-that-is-not-there.so.2 was not found: install NCCL") && Catch::Contains("LD_LIBRARY_PATH"));
}

TEST_CASE("a library that is there and cannot be loaded is not one that was not found", "[nccl]") {
  const TemporaryDirectory folder;
  const std::string file = folder.path() + "/libnccl-damaged.so.2";
  std::ofstream{file} << "no library";
  const auto nccl = NcclLibrary::load(file);
  REQUIRE(!nccl.ok());
  CHECK((nccl.failure().code == Code::mismatch && nccl.failure().remedy == Remedy::fix_config));
  CHECK_THAT(nccl.failure().what, Catch::Contains(file + " cannot be loaded: ") && Catch::Contains("too short"));
}

TEST_CASE("a library that says no version is too old", "[nccl]") {
  const auto nccl = NcclLibrary::load("libcudart.so.13");
  REQUIRE(!nccl.ok());
  CHECK_THAT(nccl.failure().what, Catch::Contains("too old"));
}

TEST_CASE("a library that lacks a function is named with it", "[nccl]") {
  const auto nccl = NcclLibrary::load(test_program_path("fakegpu/libversion_alone.so"));
  REQUIRE(!nccl.ok());
  CHECK(nccl.failure().remedy == Remedy::fix_config);
  CHECK_THAT(nccl.failure().what, Catch::Contains("libversion_alone.so) has no ncclGetUniqueId"));
}

TEST_CASE("a library of 2.26 is taken, without the functions of newer ones", "[nccl]") {
  const auto nccl = NcclLibrary::load(test_program_path("fakegpu/nccl-2.26/libnccl.so.2"));
  REQUIRE(nccl.ok());
  CHECK(nccl->version() == NcclVersion{22602});
  CHECK(nccl->all_to_all == nullptr);
  CHECK_THAT(nccl->path(), Catch::Contains("nccl-2.26"));
}

TEST_CASE("what is loaded already comes before what the system would find", "[nccl]") {
  const auto nccl = NcclLibrary::load("libnccl.so.2");  // the program's own search path leads to the newer one
  REQUIRE(nccl.ok());
  CHECK(nccl->version() == NcclVersion{22602});
}

TEST_CASE("two versions in one process are refused, with both paths", "[nccl]") {
  REQUIRE(dlopen(test_program_path("fakegpu/libnccl.so.2").c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);
  const auto nccl = NcclLibrary::load("libnccl.so.2");
  REQUIRE(!nccl.ok());
  CHECK(nccl.failure().remedy == Remedy::fix_config);
  CHECK_THAT(nccl.failure().what, Catch::Contains("two versions of NCCL") && Catch::Contains("2.26.2") && Catch::Contains("2.28.9") &&
                                      Catch::Contains("fakegpu/nccl-2.26/libnccl.so.2") && Catch::Contains("fakegpu/libnccl.so.2"));
}
