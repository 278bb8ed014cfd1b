// A call of NCCL that does not return: who waits for its owner goes on by the deadline, and nothing is begun in their name later.

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string_view>

#include "tests/devices/nccl_world.hpp"
#include "tests/fakegpu/runtime/external.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

/// Holds the owner inside of NCCL, and notes which calls it makes.
class Gate {
 public:
  static void on_call(void* data, std::uint64_t, const char* name) { static_cast<Gate*>(data)->pass(name); }
  void shut() {
    const std::lock_guard lock{mutex_};
    shut_ = true;
  }
  void open() {
    {
      const std::lock_guard lock{mutex_};
      shut_ = false;
    }
    changed_.notify_all();
  }
  /// The owner stands inside of NCCL.
  bool wait_until_held() {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, 60s, [&] { return held_; });
  }
  [[nodiscard]] int broadcasts() {
    const std::lock_guard lock{mutex_};
    return broadcasts_;
  }

 private:
  void pass(std::string_view name) {
    std::unique_lock lock{mutex_};
    if (name == "ncclBroadcast") ++broadcasts_;
    if (!shut_ || name != "ncclCommGetAsyncError") return;
    held_ = true;
    changed_.notify_all();
    (void)changed_.wait_for(lock, 60s, [&] { return !shut_; });
    held_ = false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool shut_ = false, held_ = false;
  int broadcasts_ = 0;
};

}  // namespace

TEST_CASE("a call that its caller gave up waiting for is not begun when NCCL returns at last", "[nccl]") {
  Gate gate;
  std::atomic<bool> may_end{false};
  CHECK(run_devices(1, [&](DeviceRank& mine) {
          const OnDevice<std::uint32_t> data{mine.stream.view(), {1, 2, 3}};
          const auto set_hook = in_fake_nccl<void (*)(FakeNcclHook, void*)>("fakenccl_set_hook");
          set_hook(Gate::on_call, &gate);
          mine.complain(fakegpu::enqueue(static_cast<cudaStream_t>(mine.stream.view().handle()),
                                         {.name = "work before the call", .ready = [&] { return may_end.load(); }}, nullptr) == cudaSuccess,
                        "the stream takes no work");
          const Work first = mine.calls().all_reduce(data.span());  // in its stream, so the owner looks after it
          gate.shut();
          mine.complain(gate.wait_until_held(), "the owner was not held");
          mine.group.set_deadline(50ms);
          const auto late = mine.calls().broadcast(data.bytes(), Rank{0}).wait(deadline_in(60s));
          mine.complain(!late.ok() && late.failure().code == Code::deadline_passed && late.failure().remedy == Remedy::exit_process,
                        late.ok() ? "it succeeded" : message(late.failure()));
          gate.open();
          may_end = true;
          fakegpu::wake();
          mine.must(first, "the call before");
          set_hook(nullptr, nullptr);
        }) == "");
  CHECK(gate.broadcasts() == 0);
  CHECK(fakegpu::take_reports().empty());
}
