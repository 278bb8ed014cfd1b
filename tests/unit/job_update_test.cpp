// Optimizers as the job sees them, and schedules.

#include <elrun/schedule.hpp>

#include <cmath>
#include <limits>

#include "lib/job/state/update.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {

TEST_CASE("each optimizer names its moments, and the options say which one it is", "[job]") {
  const AnyOptimizer all[] = {AdamW{}, Sgd{}, Lion{}};
  const Optimizer kinds[] = {Optimizer::adamw, Optimizer::sgd, Optimizer::lion};
  const std::size_t moments[] = {2, 1, 1};
  for (std::size_t i = 0; i < std::size(all); ++i) {
    CHECK(kind_of(all[i]) == kinds[i]);
    CHECK(moments_of(kinds[i]).size() == moments[i]);
    CHECK(problems(all[i], {.lr = 0.1f}).empty());
  }
}

TEST_CASE("all wrong options of an optimizer are told at once", "[job]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(problems(AdamW{.beta1 = 1, .beta2 = nan, .epsilon = 0, .weight_decay = nan}, {.lr = nan, .clip_norm = -1}).size() == 6);
  CHECK(problems(Sgd{.momentum = -0.1f, .weight_decay = nan}, {.lr = nan}).size() == 3);
  CHECK(problems(Lion{.beta1 = 1, .beta2 = 1, .weight_decay = nan}, {.clip_norm = nan}).size() == 4);
}

TEST_CASE("weight decay is only for the elements that are declared with it", "[job]") {
  for (const AnyOptimizer& optimizer :
       {AnyOptimizer{AdamW{.weight_decay = 0.5f}}, AnyOptimizer{Sgd{.weight_decay = 0.5f}}, AnyOptimizer{Lion{.weight_decay = 0.5f}}})
    for (const bool decay : {false, true}) {
      float parameter = 2, first = 0, second = 0;
      const float gradient = 0;
      const UpdateRun run{.size = 1, .decays = decay ? 1u : 0u};
      update({&parameter, {&first, &second}, &gradient}, {&run, 1, 1}, step_of(optimizer, 0.1f, 1.0f, 1));
      CHECK(parameter == (decay ? Approx(1.9f) : Approx(2.0f)));
    }
}

TEST_CASE("a schedule warms up, follows its shape, and stays where it ends", "[job]") {
  const Schedule cosine{.shape = Schedule::Shape::cosine, .highest = 1, .last = 0.1, .warm_up = 10, .steps = 100};
  CHECK(cosine.at(0) == 0.1f);
  CHECK(cosine.at(9) == 1.0f);
  CHECK(cosine.at(10) == Approx(1.0));
  CHECK(cosine.at(25) == Approx(0.55 + 0.45 * 0.8660254));
  CHECK(cosine.at(55) == Approx(0.55));
  CHECK(cosine.at(99) == Approx(0.1).margin(1e-3));
  for (std::uint64_t s = 10; s < 99; ++s) CHECK(cosine.at(s + 1) < cosine.at(s));
  for (const std::uint64_t s : {std::uint64_t{100}, std::uint64_t{5000}, ~std::uint64_t{0}}) CHECK(cosine.at(s) == 0.1f);

  const Schedule linear{.shape = Schedule::Shape::linear, .highest = 2, .last = 0, .warm_up = 4, .steps = 12};
  CHECK(linear.at(1) == 1.0f);
  CHECK(linear.at(4) == 2.0f);
  CHECK(linear.at(8) == 1.0f);
  CHECK(linear.at(12) == 0.0f);

  const Schedule constant{.highest = 0.25, .warm_up = 2};
  CHECK(constant.at(0) == 0.125f);
  CHECK(constant.at(1) == 0.25f);
  CHECK(constant.at(1'000'000) == 0.25f);
}

TEST_CASE("the cosine is that of the mathematics, to the last bits of a double", "[job]") {
  for (std::uint64_t s = 0; s <= 1000; ++s) {
    const double t = static_cast<double>(s) / 1000;
    const float is = Schedule{.shape = Schedule::Shape::cosine, .highest = 1, .steps = 1000}.at(s);
    CHECK(static_cast<double>(is) == Approx(0.5 + 0.5 * std::cos(3.14159265358979323846 * t)).margin(1e-8));
  }
}

TEST_CASE("a schedule's contradictions are told at once", "[job]") {
  using Shape = Schedule::Shape;
  CHECK(Schedule{.highest = 0.1}.problems().empty());
  CHECK(Schedule{.shape = Shape::cosine, .highest = 0.1, .warm_up = 2, .steps = 3}.problems().empty());
  CHECK(Schedule{.shape = Shape::linear, .highest = -1, .last = 2, .warm_up = 3, .steps = 2}.problems().size() == 3);
  CHECK(Schedule{.shape = Shape::cosine, .highest = 0.1, .warm_up = 1, .steps = 1}.problems().empty());  // a job of one step
  CHECK(Schedule{.shape = Shape::cosine, .highest = 0.1}.problems().size() == 1);                        // steps was forgotten
  CHECK(Rate{Schedule{.shape = Shape::cosine, .highest = 0.1}}.problems().size() == 1);
  CHECK(Rate{Schedule{.highest = 0.1}}.problems().empty());
  CHECK(Rate{0.1f}.problems().empty());
}

}  // namespace elrun::test
