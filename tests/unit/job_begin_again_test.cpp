// Where the state is lost without a checkpoint, the program is left by an exception that goes through its own code.

#include <array>
#include <exception>
#include <filesystem>

#include "tests/unit/elastic_world.hpp"

namespace elrun::test {

TEST_CASE("a program that catches what leaves it where the state was lost runs again all the same", "[job][elastic]") {
  struct Catching {
    const char* what;
    std::function<void(Job&, const std::function<void()>& loop)> around;
    bool ends_otherwise = true;  // than by what it was to let out
  };
  const std::vector<Catching> all{{"returns",
                                   [](Job&, const std::function<void()>& loop) {
                                     try {
                                       loop();
                                     } catch (const std::exception&) {
                                     }
                                   }},
                                  {"throws something else",
                                   [](Job&, const std::function<void()>& loop) {
                                     try {
                                       loop();
                                     } catch (const std::exception&) {
                                       std::throw_with_nested(std::runtime_error{"training failed"});
                                     }
                                   }},
                                  {"throws what is no std::exception",
                                   [](Job&, const std::function<void()>& loop) {
                                     try {
                                       loop();
                                     } catch (const std::exception&) {
                                       throw 7;
                                     }
                                   }},
                                  {"skips what fails",
                                   [](Job&, const std::function<void()>& loop) {
                                     for (;;) try {
                                         return loop();
                                       } catch (const std::exception&) {
                                       }
                                   }},
                                  {"tries again, and asks for the outcome",
                                   [](Job& job, const std::function<void()>& loop) {
                                     for (int tries = 0; tries < 3; ++tries) try {
                                         return loop();
                                       } catch (const std::exception& e) {
                                         must(contains(e.what(), "the state was lost with a worker"), e.what());
                                       }
                                     (void)job.outcome();
                                   },
                                   false}};
  const std::uint64_t undisturbed = run_world({}, toy({.plan = toy_plan(1)}))[0].outcome.value().state_hash;
  for (const Catching& how : all) {
    CAPTURE(how.what);
    const Program plain = toy({.plan = toy_plan(1)});
    ElasticWorld world{
        3, {{Fate::Kind::dies, 2, 18, true}}, [&](Job& job, Member& me) { how.around(job, [&] { plain(job, me); }); }, {}, {}, {}, true};
    auto& results = world.wait();
    REQUIRE(results.size() == 4);
    for (const std::size_t i : {0u, 1u, 3u}) {
      INFO((results[i].failure ? message(*results[i].failure) : ""));
      REQUIRE(results[i].outcome.has_value());
      CHECK(results[i].outcome->state_hash == undisturbed);
    }
    const bool caught = std::ranges::any_of(world.lines(), [](const std::string& l) { return contains(l, "It runs again all the same"); });
    CHECK(caught == how.ends_otherwise);
  }
}

TEST_CASE("an exception that a run of the program before kept, and that is thrown again, ends the program as any other", "[job][elastic]") {
  // Thread pools keep the first error of their work.
  std::array<std::exception_ptr, 2> kept;
  const Program plain = toy({.plan = toy_plan(1)});
  ElasticWorld world{3,
                     {{Fate::Kind::dies, 2, 18, false}},
                     [&](Job& job, Member& me) {
                       const std::uint32_t rank = JobAccess::rank(job);
                       if (rank < kept.size() && kept[rank]) std::rethrow_exception(kept[rank]);
                       try {
                         plain(job, me);
                       } catch (...) {
                         if (rank < kept.size()) kept[rank] = std::current_exception();
                         throw;
                       }
                     },
                     {},
                     {},
                     {},
                     true};
  auto& results = world.wait();
  for (const std::size_t i : {0u, 1u}) {
    REQUIRE(results[i].failure.has_value());
    CHECK(contains(message(*results[i].failure), "the state was lost with a worker"));
  }
}

TEST_CASE("a relative checkpoint directory stays where it was, also where the program runs again in another working directory",
          "[job][elastic]") {
  struct InDirectory {  // the process's, while it lives
    explicit InDirectory(const std::filesystem::path& directory) { std::filesystem::current_path(directory); }
    ~InDirectory() { std::filesystem::current_path(before); }
    const std::filesystem::path before = std::filesystem::current_path();
  };
  std::ptrdiff_t ran_again = 0;
  const auto stays = [&](const Fate& fate, int stage, bool throws, std::string_view line) {
    CAPTURE(stage, fate.at);
    const TemporaryDirectory home, elsewhere;
    ToyOptions options{.plan = toy_plan(stage), .checkpoint = {.directory = "checkpoints"}};
    options.before_slots = [&](Job&) { std::filesystem::current_path(elsewhere.path()); };  // all have configured
    options.throws = throws;
    const InDirectory here{home.path()};
    ElasticWorld world{3, {fate}, toy(options), {}, {}, {}, true};
    for (std::size_t i = 0; const Member& m : world.wait()) {
      INFO((m.failure ? message(*m.failure) : ""));
      CHECK((world.was_killed(i++) || m.outcome.has_value()));
    }
    ran_again += std::ranges::count_if(world.lines(), [&](const std::string& l) { return contains(l, line); });
    CHECK(std::filesystem::exists(Path{home.path()} / "checkpoints" / "ckpt"));
    CHECK_FALSE(std::filesystem::exists(Path{elsewhere.path()} / "checkpoints"));
  };
  SECTION("for the state was lost before the first checkpoint") {
    stays({Fate::Kind::dies, 2, 18, false}, 1, false, "was lost with");
    CHECK(ran_again > 0);
  }
  SECTION("for an exception came out of a revoked slot") {
    for (std::uint64_t at = 20; at < 60; at += 4)
      stays({Fate::Kind::breaks, 1, at, false}, 2, true, "the program runs again in this process");
    CHECK(ran_again > 0);
  }
}

}  // namespace elrun::test
