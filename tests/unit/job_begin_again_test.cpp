// Where the state is lost without a checkpoint, the program is left by an exception that goes through its own code.

#include <exception>

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

}  // namespace elrun::test
