// A program with streams of its own, and losses on its device: who waits for whom, and what is refused. The checker of the fake devices reports each wait that is missing.

#include <atomic>

#include "lib/device/current_device.hpp"
#include "tests/devices/streams_program.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr Device device{DeviceKind::cuda, 0};
const SteadyClock test_clock;

std::vector<Member> run(const Habits& habits, std::uint32_t world, bool on_device = true) {
  std::vector<std::unique_ptr<Memory>> memories;
  for (std::uint32_t r = 0; r < world; ++r) memories.push_back(make_device_memory({DeviceKind::cuda, static_cast<int>(r)}, test_clock));
  auto members = run_world({.world = world, .arrays = [&](std::uint32_t rank) { return on_device ? memories[rank].get() : nullptr; }},
                           streams_program(habits));
  for (const Member& member : members) {
    INFO((member.failure ? message(*member.failure) : std::string{}));
    CHECK(!member.failure);
  }
  return members;
}

/// What a call throws in a scope of the first member.
std::string refused(const std::function<void(Job&, Unit&, const Tensor<float>&)>& call, bool on_device = true) {
  std::string what;
  (void)run({.in_scope =
                 [&](Job& job, Unit& unit, const Tensor<float>& tensor) {
                   try {
                     call(job, unit, tensor);
                   } catch (const Error& e) {
                     what = e.what();
                   }
                 }},
            1, on_device);
  return what;
}

/// Counts how often somebody looks, and does something at the n-th look from `arm` on: a wait looks again and again, all else a few times.
class WatchedClock final : public Clock {
 public:
  [[nodiscard]] Instant now() const override {
    if (looks_ > 0 && --looks_ == 0) then_();
    return clock_.now();
  }
  [[nodiscard]] std::int64_t wall_ns() const override { return clock_.wall_ns(); }
  void arm(int looks, std::function<void()> then) { then_ = std::move(then), looks_ = looks; }

 private:
  SteadyClock clock_;
  mutable std::atomic<int> looks_ = 0;
  std::function<void()> then_;
};

}  // namespace

TEST_CASE("the wait behind the norm ends with the generation, and names rank and generation", "[devices]") {
  std::atomic<bool> released = false;
  WatchedClock clock;
  const auto memory = make_device_memory(device, test_clock, {.last_wait = 60s});
  bool still_at_work = false, decided = true;
  const auto members = run_world({.clock = &clock, .arrays = [&](std::uint32_t) { return memory.get(); }}, [&](Job& job, Member&) {
    job.configure(toy_plan(0, 2, Exchange::per_step));
    Unit unit = job.unit("all");
    (void)unit.tensor<float>("weights", {3000});
    job.seal();
    (void)job.restore();
    auto step = job.next_step();
    for (Slot& slot : step->slots()) {
      { const auto scope = unit.use_grad(); }
      slot.report(0.0f, 1);
    }
    // What the norm is behind takes as long as it is held, and the agent ends the generation while the step waits.
    auto& session = dynamic_cast<TestSession&>(JobAccess::host(job).session);
    clock.arm(200, [&] { session.end({Code::generation_over, Remedy::rejoin, "a node left"}); });
    {
      const CurrentDevice current{device};
      fakegpu::hold_stream(job.stream().handle(), [&] { return released.load(); });
    }
    decided = step->apply(toy_adamw, toy_options(0)).decided;
    still_at_work = cudaStreamQuery(native(job.stream())) == cudaErrorNotReady;
    released = true;
    (void)job.next_step();
  });
  CHECK(!decided);
  CHECK(still_at_work);
  REQUIRE(members[0].failure);
  INFO(message(*members[0].failure));
  CHECK(members[0].failure->rank == Rank{0});
  CHECK(members[0].failure->generation.has_value());
}

TEST_CASE("a scope that is open at apply() is refused on a device, for its kernels would read what is updated", "[devices]") {
  const auto memory = make_device_memory(device, test_clock);
  std::string what;
  (void)run_world({.arrays = [&](std::uint32_t) { return memory.get(); }}, [&](Job& job, Member&) {
    job.configure(toy_plan(0, 2, Exchange::per_step));
    Unit unit = job.unit("all");
    (void)unit.tensor<float>("weights", {3000});
    job.seal();
    (void)job.restore();
    auto step = job.next_step();
    for (Slot& slot : step->slots()) {
      { const auto scope = unit.use_grad(); }
      slot.report(0.0f, 1);
    }
    const auto open = unit.use();
    try {
      (void)step->apply(toy_adamw, toy_options(0));
    } catch (const Error& e) {
      what = e.what();
    }
  });
  CHECK(what.find("unit 'all' is still in a use scope at apply()") != std::string::npos);
}

TEST_CASE("a program may work in streams of its own, and leave its losses on the device", "[devices]") {
  const Member host = std::move(run({}, 1, false).front());
  REQUIRE(host.outcome);
  for (const std::uint32_t world : {1u, 2u})
    for (const auto& [own, losses_on_host] : {std::pair{false, false}, {true, false}, {true, true}})
      for (const Member& member : run({.own_streams = own, .losses_on_host = losses_on_host}, world)) {
        INFO(world << " ranks, " << (own ? "own streams" : "the job's stream") << (losses_on_host ? ", losses on the host" : ""));
        REQUIRE(member.outcome);
        CHECK(member.outcome->state_hash == host.outcome->state_hash);
        CHECK(member.lines.back() == host.lines.back());
        REQUIRE(member.steps.size() == host.steps.size());
        for (std::size_t s = 0; s < host.steps.size(); ++s)
          CHECK(std::bit_cast<std::uint32_t>(member.steps[s].loss) == std::bit_cast<std::uint32_t>(host.steps[s].loss));
      }
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a slot that is audited has its loss on the device, too", "[devices]") {
  const Member host = std::move(run({}, 1, false).front());
  for (const Member& member : run({.own_streams = true, .audit = 1}, 2)) {
    REQUIRE(member.outcome);
    CHECK(member.outcome->state_hash == host.outcome->state_hash);
    CHECK(std::ranges::all_of(member.steps, &StepResult::audited));
  }
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a stream of another device is refused, and CUDA's default stream", "[devices]") {
  const OwnedStream other{{DeviceKind::cuda, 1}};
  CHECK(refused([&](Job&, Unit& unit, const auto&) { (void)unit.use(other.view()); }).find("a stream of cuda:1") != std::string::npos);
  for (const auto& [handle, name] : {std::pair<void*, const char*>{nullptr, "default stream"},
                                     {cudaStreamLegacy, "cudaStreamLegacy"},
                                     {cudaStreamPerThread, "cudaStreamPerThread"}})
    CHECK(refused([&](Job&, Unit& unit, const auto&) { (void)unit.use(Stream{device, handle}); }).find(name) != std::string::npos);
  CHECK(refused([&](Job&, Unit& unit, const auto&) { (void)unit.use(other.view()); }, false).find("the host's program order") !=
        std::string::npos);
}

TEST_CASE("a view of the wrong kind says which one is right", "[devices]") {
  CHECK(refused([](Job&, Unit&, const auto& tensor) { (void)tensor.span(); }).find("device_span()") != std::string::npos);
  CHECK(refused([](Job&, Unit&, const auto& tensor) { (void)tensor.grad_span(); }).find("grad_device_span()") != std::string::npos);
  CHECK(refused([](Job&, Unit&, const auto& tensor) { (void)tensor.device_span(); }, false).find("span()") != std::string::npos);
  CHECK(refused([](Job&, Unit&, const auto& tensor) { tensor.set(std::vector<float>(7)); }).find("3000 elements") != std::string::npos);
}

TEST_CASE("set and read are in the order of a scope's stream", "[devices]") {
  const OwnedStream own{device};
  std::vector<float> before(3000), back(3000);
  bool same = true;
  (void)run({.in_scope =
                 [&](Job&, Unit& unit, const Tensor<float>& tensor) {
                   tensor.read(before);
                   const auto scope = unit.use(own.view());
                   must(cudaMemsetAsync(tensor.device_span().data, 0, 3000 * sizeof(float), native(own.view())) == cudaSuccess, "a fill");
                   tensor.read(back);
                   same = same && std::ranges::all_of(back, [](float x) { return x == 0; });
                   tensor.set(before);
                   must(cudaMemcpyAsync(back.data(), tensor.device_span().data, 3000 * sizeof(float), cudaMemcpyDeviceToHost,
                                        native(own.view())) == cudaSuccess,
                        "a copy");
                   must(cudaStreamSynchronize(native(own.view())) == cudaSuccess, "the end of a stream");
                   same = same && back == before;
                 }},
            1);
  CHECK(same);
  CHECK(fakegpu::take_reports().empty());
}
