// The NCCL that this machine has, if any: it is found, and has every function that elrun calls. Without a device nothing more can be asked of it.

#include <cstdio>

#include "lib/comm/nccl/library.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;

TEST_CASE("an installed NCCL is found with all its functions, or refused with a remedy", "[nccl]") {
  const auto nccl = NcclLibrary::load();
  if (!nccl.ok() && nccl.failure().code == Code::not_found) {
    std::printf("SKIPPED: no libnccl.so.2 on this machine\n");
    return;
  }
  if (!nccl.ok()) {
    CHECK(nccl.failure().remedy == Remedy::fix_config);
    return;
  }
  std::printf("NCCL %s (%s)\n", to_string(nccl->version()).c_str(), nccl->path().c_str());
  CHECK(nccl->version() >= nccl_oldest);
  CHECK((nccl->all_to_all != nullptr) == (nccl->version() >= NcclVersion{22800}));
}
