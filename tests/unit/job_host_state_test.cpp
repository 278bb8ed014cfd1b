// Host state without a job: variables that are put back, and how far a job is as a checkpoint holds it.

#include "lib/job/state/host_state.hpp"

#include <array>

#include <elrun/failure.hpp>
#include <elrun/result.hpp>

#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span{&value, 1});
}

}  // namespace

TEST_CASE("variables are put back to what they were when they were kept", "[host_state]") {
  HostVariables variables;
  int patience = 3;
  double best = 0.5;
  variables.add("patience", bytes_of(patience));
  variables.add("best", bytes_of(best));
  CHECK_THROWS_AS(variables.add("best", bytes_of(best)), Error);
  variables.keep();
  patience = 1, best = 7;
  variables.put_back();
  CHECK(patience == 3);
  CHECK(best == 0.5);
}

TEST_CASE("once the program has returned, its memory is neither read nor written", "[host_state]") {
  HostVariables variables;
  int value = 42;
  variables.add("value", bytes_of(value));
  variables.keep();
  variables.detach();
  value = 7;  // what has the memory now
  const auto now = [&] {
    std::vector<Aux> aux;
    variables.append_to(aux);
    return aux;
  };
  std::vector<Aux> aux = now();
  CHECK(ByteReader{aux[0].bytes}.get<int>() == 42);
  aux[0].bytes[0] = std::byte{43};
  variables.load(aux);
  CHECK(now() == aux);
  variables.put_back();
  CHECK(ByteReader{now()[0].bytes}.get<int>() == 42);
  variables.load(aux);
  variables.keep();
  variables.put_back();
  CHECK(now() == aux);
  CHECK(value == 7);
}

TEST_CASE("a name that no checkpoint could hold is refused when it is registered, and so is one variable too many", "[host_state]") {
  int value = 0;
  HostVariables variables;
  for (const std::string& name : {std::string{"a\nb"}, std::string{"\xfc"}, std::string(251, 'x')})
    CHECK_THROWS_WITH(variables.add(name, bytes_of(value)), Catch::Contains("use up to 250 bytes of printable UTF-8"));
  for (int i = 0; i < 1000; ++i)
    variables.add((i == 0 ? std::string(250, 'x') : "\xc3\xbc") + std::to_string(i).substr(i == 0), bytes_of(value));
  CHECK_THROWS_WITH(variables.add("last", bytes_of(value)), Catch::Contains("one more than the 1000 variables"));
}

TEST_CASE("host state is at most what goes to a worker that joins, and more is told with its size", "[host_state]") {
  static std::array<std::byte, HostVariables::bytes_max> many;
  std::byte one{};
  HostVariables variables;
  variables.add("most", std::span{many}.first(many.size() - 1000));
  CHECK_THROWS_WITH(variables.add("more", std::span{many}.first(2000)),
                    Catch::Contains("state 'more' of 2000 B") && Catch::Contains("at most 64.0 MB"));
  variables.add("one", {&one, 1});
}

TEST_CASE("another run of the program takes what was kept, if its variables are the same", "[host_state]") {
  HostVariables before, after, other;
  int old_value = 5, new_value = 0;
  double wider = 1.5;
  before.add("count", bytes_of(old_value));
  before.keep();
  old_value = 9;  // the step that was under way does not count
  after.add("count", bytes_of(new_value));
  CHECK(after.take_inherited());  // there is nothing to take
  after.inherit(before.kept());
  CHECK(after.take_inherited());
  CHECK(new_value == 5);
  other.add("count", bytes_of(wider));
  other.inherit(before.kept());
  CHECK_FALSE(other.take_inherited());
  CHECK(wider == 1.5);
  CHECK(other.take_inherited());  // once
}

TEST_CASE("progress and variables come out of a checkpoint as they went in", "[host_state]") {
  const UpdateValues first{.kind = 1, .bits = {1, 2}}, last{.kind = 1, .bits = {3, 4}};
  const JobProgress in{
      .applied = 7, .loss = 0.25f, .skipped = 2, .first_update = first, .last_update = last, .stop_asked = true, .stopped_of_steps = 9};
  HostVariables variables;
  int value = 11;
  variables.add("value", bytes_of(value));
  std::vector<Aux> aux;
  append_to(aux, in);
  variables.append_to(aux);
  value = 0;
  variables.load(aux);
  CHECK(value == 11);
  CHECK(progress_of(aux) == in);

  SECTION("entries that a checkpoint of an earlier version lacks are optional") {
    std::erase_if(aux, [](const Aux& a) { return a.name == "elrun.update" || a.name == "elrun.stop"; });
    const JobProgress out = progress_of(aux);
    CHECK(out.applied == 7);
    CHECK_FALSE(out.last_update.known());
    CHECK_FALSE(out.stop_asked);
  }
  SECTION("a variable of another size is refused, with its name") {
    HostVariables others;
    double wide = 0;
    others.add("value", bytes_of(wide));
    CHECK_THROWS_WITH(others.load(aux), Catch::Contains("'state.value'"));
  }
  SECTION("a missing entry is refused") {
    std::erase_if(aux, [](const Aux& a) { return a.name == "elrun.loss"; });
    CHECK_THROWS_AS(progress_of(aux), Error);
  }
}

}  // namespace elrun::test
