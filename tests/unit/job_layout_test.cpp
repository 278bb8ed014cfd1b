#include "lib/job/declare/layout.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

TensorSpec tensor(std::string name, Shape shape, TensorOptions options = {}) {
  return {std::move(name), DType::f32, std::move(shape), options};
}

}  // namespace

TEST_CASE("tensors that train come first, on borders of 256 bytes, units on granules", "[job]") {
  const Layout layout =
      lay_out({{"a", {tensor("frozen", {10}, {.frozen = true}), tensor("w", {30, 3}), tensor("b", {5}, {.decay = false})}},
               {"b", {tensor("w", {2000}, {.uses = 2})}}});
  const UnitLayout& a = layout.units[0];
  CHECK(a.offsets == std::vector<std::uint64_t>{1024, 0, 128});
  CHECK(a.trainable == 1024);
  CHECK(a.used == 1034);
  CHECK(a.size == 2048);
  CHECK(a.uses == 1);
  CHECK(a.decay_runs == std::vector<UnitLayout::DecayRun>{{0, 128, true}, {128, 1024, false}});
  const UnitLayout& b = layout.units[1];
  CHECK(b.begin == 2048);
  CHECK(b.gradient_begin == 1024);
  CHECK(b.uses == 2);
  CHECK(layout.parameters == 4096);
  CHECK(layout.gradients == 3072);
}

TEST_CASE("a tensor that is used several times in a slot may be frozen", "[job]") {
  const Layout layout = lay_out({{"tied", {tensor("w", {10}, {.frozen = true, .uses = 2}), tensor("b", {5})}},
                                 {"frozen", {tensor("w", {10}, {.frozen = true, .uses = 3})}}});
  CHECK(layout.units[0].uses == 2);
  CHECK(layout.units[1].uses == 3);
}

TEST_CASE("shards cover every unit's granules exactly once, in any world", "[job]") {
  const Layout layout = lay_out({{"a", {tensor("w", {5000})}}, {"b", {tensor("w", {10}, {.frozen = true})}}, {"c", {tensor("w", {1})}}});
  for (std::uint32_t world = 1; world <= 9; ++world) {
    std::vector<int> owners(layout.gradients, 0);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const auto shard = pieces(layout, {world, rank});
      std::uint64_t place = 0;
      for (const Piece& p : shard) {
        CHECK(p.begin % granule == 0);
        CHECK(p.place == place);
        CHECK(p.parameter - p.begin == layout.units[p.unit].begin);
        place += p.size();
        for (std::uint64_t i = 0; i < p.size(); ++i) ++owners[p.gradient + i];
      }
      CHECK(elements(shard) == place);
    }
    CHECK(std::count(owners.begin(), owners.end(), 1) == static_cast<std::ptrdiff_t>(layout.gradients));
  }
}

TEST_CASE("all problems of the declarations are told at once", "[job]") {
  CHECK(problems(std::vector<UnitSpec>{}).size() == 1);
  const auto all = problems(
      std::vector<UnitSpec>{{"a", {tensor("w", {4}), tensor("w", {4}), tensor("e", {0}), tensor("u", {1}, {.uses = 0})}},
                            {"a", {}},
                            {"c", {{"h", DType::bf16, {4}, {}}, tensor("huge", {std::uint64_t{1} << 40, std::uint64_t{1} << 40})}}});
  CHECK(all.size() == 7);  // w twice, e empty, u unused, a twice, a without tensor, bf16, huge
}

TEST_CASE("a checkpoint is told tensors in the order of their offsets", "[job]") {
  const std::vector<UnitSpec> units{{"a", {tensor("frozen", {10}, {.frozen = true}), tensor("w", {30})}}};
  const ModelTable table = model_table(units, lay_out(units), Optimizer::adamw);
  REQUIRE(table.units.size() == 1);
  CHECK(table.units[0].elements == 1034);
  CHECK(table.units[0].tensors[0].name == "w");
  CHECK(table.units[0].tensors[1].offset == 1024);
}

TEST_CASE("the kinds of a checkpoint are the parameter and the moments of the plan's optimizer", "[job]") {
  const std::vector<UnitSpec> units{{"a", {tensor("w", {30})}}};
  const auto kinds = [&](Optimizer optimizer) {
    std::vector<std::string> names;
    for (const KindInfo& kind : model_table(units, lay_out(units), optimizer).kinds) names.push_back(kind.name);
    return names;
  };
  CHECK(kinds(Optimizer::adamw) == std::vector<std::string>{"param", "exp_avg", "exp_avg_sq"});
  CHECK(kinds(Optimizer::sgd) == std::vector<std::string>{"param", "momentum"});
  CHECK(kinds(Optimizer::lion) == std::vector<std::string>{"param", "exp_avg"});
}

}  // namespace elrun::test
