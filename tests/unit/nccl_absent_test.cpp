// A build without NCCL's header, or without CUDA: a group on device memory is refused, and says why.

#include <elrun/process_group.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/process_groups.hpp"

using namespace elrun;
using namespace elrun::test;

TEST_CASE("a group that names a device is refused on every rank where elrun was built without NCCL", "[nccl]") {
  LocalWorld local{2};
  Complaints complaints;
  local.run([&](std::uint32_t rank, Session& session) {
    GroupOptions options = patient;
    options.device = {DeviceKind::cuda, static_cast<int>(rank)};
    const auto group = ProcessGroup::join(session, options);
    complaints(!group.ok() && group.failure().code == Code::invalid_argument && group.failure().remedy == Remedy::fix_config &&
                   group.failure().rank == Rank{rank} && group.failure().what.find("built without NCCL") != std::string::npos,
               group.ok() ? "it joined" : message(group.failure()));
  });
  CHECK(complaints.all() == "");
}
