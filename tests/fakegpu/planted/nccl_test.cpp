// Bugs where calls of NCCL are made and given up (nccl_bugs.cmake): each is found with each seed, by a report of the fakes, by a wrong failure or by what stays behind. Without one there is none of
// these.

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/devices/nccl_world.hpp"
#include "tests/support/catch.hpp"

namespace {

std::atomic<int> planted{0};

}  // namespace

/// The planted copies ask for it.
extern "C" __attribute__((visibility("default"))) int elrun_planted_bug() { return planted; }

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr int devices = 2;  // as nccl_bugs.cmake says
constexpr std::size_t count = 1000;
const Failure killed{.code = Code::peer_lost, .remedy = Remedy::rejoin, .what = "rank 9 was killed"};

std::uint64_t communicators() {
  const auto number = in_fake_nccl<std::uint64_t (*)()>("fakenccl_communicators");
  return number == nullptr ? 0 : number();
}
void set_abort(long milliseconds) { in_fake_nccl<void (*)(long)>("fakenccl_set_abort")(milliseconds); }

/// What `data` holds, read in another stream than that of the call: only a Work that is over says that it is there.
std::vector<std::uint32_t> read_beside(const OnDevice<std::uint32_t>& data, Device device) {
  const OwnedStream other{device};
  const auto native = static_cast<cudaStream_t>(other.view().handle());
  std::vector<std::uint32_t> values(count);
  (void)cudaMemcpyAsync(values.data(), data.span().data, count * sizeof(std::uint32_t), cudaMemcpyDeviceToHost, native);
  (void)cudaStreamSynchronize(native);
  return values;
}

/// A call that would wait for good fails so late, and where a bug has it fail so late it is found. Without one nothing gets there, however slow the machine is.
Duration too_late() { return planted == 0 ? 60s : 2500ms; }

/// Calls that succeed, each behind a fill in its stream, and the orderly end.
std::string calls() {
  const std::uint64_t before = communicators();
  std::string told = run_devices(2, [](DeviceRank& mine) {
    const OnDevice<std::uint32_t> data{mine.stream.view(), std::vector<std::uint32_t>(count, 0)};
    for (int i = 1; i <= 4; ++i) {
      (void)cudaMemsetAsync(data.span().data, i, count * sizeof(std::uint32_t), static_cast<cudaStream_t>(mine.stream.view().handle()));
      mine.must(mine.calls().all_reduce(data.span()), "all_reduce");
      const auto sum = static_cast<std::uint32_t>(i) * 0x0202'0202u;
      mine.complain(read_beside(data, cuda(mine.rank)) == std::vector<std::uint32_t>(count, sum), "the sum is wrong");
    }
    mine.complain.must(mine.group.finish(), "finish");
  });
  return communicators() == before ? told : told + "a communicator stayed behind";
}

/// A call that waits for a peer when the generation ends. Its abort takes a while.
std::string generation_over() {
  LocalWorld local{2};
  Complaints complaints;
  std::atomic<bool> waits{false};
  set_abort(20);
  run_devices(local, complaints, [&](DeviceRank& mine) {
    if (mine.rank == 1) {
      while (!waits) std::this_thread::yield();
      return local.end_generation(killed);
    }
    const OnDevice<std::uint32_t> data{mine.stream.view(), std::vector<std::uint32_t>(count, 0)};
    mine.group.set_deadline(too_late());
    const Work work = mine.calls().all_reduce(data.span());
    waits = true;
    const auto result = work.wait(deadline_in(60s));
    mine.complain(!result.ok() && result.failure().code == Code::generation_over, result.ok() ? "alone" : message(result.failure()));
  });
  set_abort(0);
  return complaints.all();
}

/// A call that waits for a peer which leaves.
std::string peer_left() {
  return run_devices(2, [](DeviceRank& mine) {
    if (mine.rank == 1) return;
    const OnDevice<std::uint32_t> data{mine.stream.view(), std::vector<std::uint32_t>(count, 0)};
    mine.group.set_deadline(too_late());
    const auto result = mine.calls().all_reduce(data.span()).wait(deadline_in(60s));
    mine.complain(!result.ok() && result.failure().code == Code::peer_lost && result.failure().peer == Rank{1},
                  result.ok() ? "alone" : message(result.failure()));
  });
}

/// A call whose peer never comes, and that peer, which waits in a call on the host and hears of it.
std::string late() {
  std::atomic<bool> heard{false};
  return run_devices(2, [&](DeviceRank& mine) {
    if (mine.rank == 1) {
      mine.group.set_deadline(too_late());
      const auto result = mine.group.barrier();
      mine.complain(!result.ok() && result.failure().code != Code::deadline_passed, result.ok() ? "alone" : message(result.failure()));
      heard = true;
      return;
    }
    const OnDevice<std::uint32_t> data{mine.stream.view(), std::vector<std::uint32_t>(count, 0)};
    mine.group.set_deadline(200ms);
    const auto result = mine.calls().all_reduce(data.span()).wait(deadline_in(too_late()));
    mine.complain(!result.ok() && result.failure().remedy == Remedy::abort_group, result.ok() ? "alone" : message(result.failure()));
    while (!heard) std::this_thread::sleep_for(1ms);  // its group's end would tell, too
  });
}

struct Bug {
  int number;
  std::string_view what;
  std::string (*told)();
};

constexpr Bug bugs[] = {
    {1, "a call whose end is recorded before NCCL has put it into its stream", calls},
    {2, "a call behind which no event is recorded", calls},
    {3, "a call that is over as soon as it is looked at", calls},
    {4, "a call in another stream than the program's", calls},
    {5, "an abort on a thread while the owner goes on with the communicator", generation_over},
    {6, "an owner whose current device is another", calls},
    {7, "an abort of which the other ranks do not hear", late},
    {8, "a communicator that is not destroyed", calls},
    {9, "a communicator that does not hear of its generation's end", generation_over},
    {10, "a communicator that is used before it is made, and before NCCL has taken the call before", calls},
    {11, "a call that was aborted and counts as good", generation_over},
    {12, "a peer that left and is waited for", peer_left},
    {13, "a call without a deadline", late},
};

/// Whether anything tells of a bug. The devices are fresh afterwards.
std::string report_of(const Bug& bug, int number, std::uint64_t seed) {
  fakegpu::set_seed(seed);
  planted = number;
  std::string told;
  try {
    told = bug.told();
  } catch (const std::exception& e) {
    told = e.what();
  }
  planted = 0;
  for (const std::string& report : fakegpu::take_reports()) told += report + '\n';
  for (int device = 0; device < devices; ++device) {
    (void)cudaSetDevice(device);  // which may say that it is lost, until it is reset
    if (cudaDeviceReset() != cudaSuccess) told += "a device cannot be used any more";
  }
  return told;
}

}  // namespace

TEST_CASE("a bug where calls of NCCL are made and given up is found with every seed, and none is where there is none", "[nccl]") {
  const std::uint64_t seeds = std::getenv("ELRUN_FULL") != nullptr ? 20 : 2;
  for (const auto scenario : {calls, generation_over, peer_left, late})
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) CHECK(report_of({0, "", scenario}, 0, seed) == "");
  for (const Bug& bug : bugs)
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      INFO(bug.number << ", " << bug.what << ", seed " << seed);
      // Which thread comes first is the machine's choice. To the fake devices all are one host: the wait of one may hide that another one's is missing.
      std::string told;
      for (int tries = 0; tries < 10 && told.empty(); ++tries) told = report_of(bug, bug.number, seed);
      CHECK(told != "");
    }
}
