// What all ranks have to have alike before they train: the job, and the initial values.

#include <atomic>
#include <chrono>
#include <thread>

#include "lib/job/declare/device_class.hpp"
#include "lib/job/declare/same_job.hpp"
#include "lib/job/revoked.hpp"
#include "lib/job/state/initial_values.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {
namespace {

/// By rank, what the call said, if it threw.
std::vector<std::string> said_by_rank(std::uint32_t size, const std::function<void(JobWorld&, std::uint32_t)>& call, bool elastic = false) {
  std::vector<std::string> said(size);
  in_world(
      size,
      [&](JobWorld& world, std::uint32_t rank) {
        try {
          call(world, rank);
        } catch (const Error& e) {
          said[rank] = e.failure().what;
        }
      },
      elastic);
  return said;
}

}  // namespace

TEST_CASE("ranks with the same job go on", "[agreement]") {
  const std::vector<Agreement> same{{"plan", "seed: 1\nsteps: 2"}, {"model", "a: 3"}};
  CHECK(said_by_rank(3, [&](JobWorld& world, std::uint32_t) { same_job_everywhere(world, same, false); }) == std::vector<std::string>(3));
}

TEST_CASE("all ranks say alike whose declarations differ, and in which lines", "[agreement]") {
  const bool all_have_state = GENERATE(false, true);
  const auto said = said_by_rank(3, [&](JobWorld& world, std::uint32_t rank) {
    same_job_everywhere(world, {{"plan", "seed: 1"}, {"model", rank == 2 ? "a: 4" : "a: 3"}}, all_have_state);
  });
  CHECK(said[0] == said[1]);
  CHECK(said[0] == said[2]);
  CHECK_THAT(said[0],
             Catch::Contains("rank 2 has another model than rank 0") && Catch::Contains("rank 0: a: 3") && Catch::Contains("rank 2: a: 4"));
}

TEST_CASE("a newcomer that differs from those with state ends alone, and one of those says why", "[agreement]") {
  std::vector<char> goes_on(4, 0);
  std::vector<std::string> told(4);
  const auto said = said_by_rank(
      4,
      [&](JobWorld& world, std::uint32_t rank) {
        try {
          same_job_everywhere(world, {{"plan", "seed: 1"}, {"model", rank == 0 ? "a: 4" : "a: 3"}}, rank == 1 || rank == 3,
                              [&](const std::string& what) { told[rank] = what; });
        } catch (const Revoked&) {
          goes_on[rank] = 1;
        }
      },
      true);
  CHECK(goes_on == std::vector<char>{0, 1, 1, 1});  // rank 2 is a newcomer, too, and has what the others have
  CHECK_THAT(said[0],
             Catch::Contains("rank 0 has another model than rank 1") && Catch::Contains("rank 1: a: 3") && Catch::Contains("rank 0: a: 4"));
  CHECK(told == std::vector<std::string>{"", said[0], "", ""});
}

TEST_CASE("a newcomer that differs ends after it was told, for its end ends the generation", "[agreement]") {
  std::atomic<bool> has_ended{false}, ended_before{false};
  const auto said = said_by_rank(
      2,
      [&](JobWorld& world, std::uint32_t rank) {
        try {
          same_job_everywhere(world, {{"model", rank == 1 ? "a: 4" : "a: 3"}}, rank == 0, [&](const std::string&) {
            // Long enough for a newcomer that waits for nobody.
            for (int i = 0; i < 100 && !has_ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds{1});
            ended_before = has_ended.load();
          });
        } catch (const Revoked&) {
        } catch (const Error&) {
          has_ended = true;
          throw;
        }
      },
      true);
  CHECK_FALSE(ended_before);
  CHECK_FALSE(said[1].empty());
}

TEST_CASE("initial values are compared where ranks hold or wrote them", "[initial_values]") {
  const auto compare = [](std::uint64_t replicated_of_1, std::uint64_t written_by_1) {
    return said_by_rank(3, [&](JobWorld& world, std::uint32_t rank) {
      InitialValues values{2};
      values.allow(true);
      values.wrote(0, 5);
      if (rank == 1) values.wrote(1, written_by_1);  // rank 2 had no scope of unit 1
      if (rank == 0) values.wrote(1, 6);
      values.compare(world, rank == 1 ? replicated_of_1 : 9, 0);
      must(!values.is_due(), "it was compared");
    })[2];
  };
  CHECK(compare(9, 6).empty());
  CHECK_THAT(compare(8, 6), Catch::Contains("the parameters of rank 1 differ from those of rank 0 before step 0"));
  CHECK_THAT(compare(9, 7), Catch::Contains("the parameters of rank 1 differ from those of rank 0 before step 0"));
}

TEST_CASE("only a program that restored nothing writes initial values, until its first step", "[initial_values]") {
  // Whether a world of this rank and one that wrote 7 differs.
  const auto differs = [](InitialValues values) {
    const auto said = said_by_rank(2, [&](JobWorld& world, std::uint32_t rank) {
      InitialValues other{1};
      other.allow(true);
      other.wrote(0, 7);
      (rank == 0 ? values : other).compare(world, 0, 0);
    });
    return !said[0].empty();
  };
  InitialValues values{1};
  CHECK(values.is_due());
  values.wrote(0, 8);
  CHECK_FALSE(differs(values));  // not allowed: it is no initial value
  values.allow(true);
  CHECK(values.may_write());
  values.wrote(0, 8);
  CHECK(differs(values));
  SECTION("a checkpoint is loaded") {
    values.forget();
    CHECK_FALSE(differs(values));
  }
  SECTION("a step is handed out") {
    values.begin_step();
    CHECK_FALSE(values.may_write());
    CHECK_FALSE(differs(values));
  }
  SECTION("the comparison is due again in the next generation") {
    values.begin_generation();
    CHECK(values.is_due());
  }
}

TEST_CASE("who goes on with a checkpoint of another kind or model of device is told", "[agreement]") {
  const Device cpu, gpu{DeviceKind::cuda, 3};
  const std::string h100 = "compute capability 9.0, 132 multiprocessors", a100 = "compute capability 8.0, 108 multiprocessors";
  const auto doubt = [](Device then, const std::string& of_then, Device now, const std::string& of_now) {
    std::vector<Aux> aux;
    append_device(aux, then, of_then);
    return device_doubt(aux, now, of_now).value_or("");
  };
  CHECK(doubt(cpu, "", cpu, "").empty());
  CHECK(doubt(gpu, h100, {DeviceKind::cuda, 0}, h100).empty());
  CHECK(doubt(gpu, "", gpu, h100).empty());  // an early version's, or of a program whose bits do not depend on it
  CHECK(doubt(gpu, h100, gpu, "").empty());
  CHECK_THAT(doubt(gpu, a100, gpu, h100), Catch::Contains("were computed on cuda, " + a100 + "; the job now runs on cuda, " + h100 + "."));
  CHECK_THAT(doubt(gpu, h100, cpu, ""), Catch::Contains("were computed on cuda, " + h100 + "; the job now runs on cpu."));
  CHECK_THAT(doubt(cpu, "", gpu, h100), Catch::Contains("were computed on cpu; the job now runs on cuda, " + h100));
  CHECK_FALSE(device_doubt({}, cpu, ""));  // of a version that said nothing
  CHECK(device_doubt({}, gpu, h100));
}

}  // namespace elrun::test
