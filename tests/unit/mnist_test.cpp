// The mnist sample from inside: data, log, options, and a network whose bits nothing moves and whose gradients are right.

#include <cmath>
#include <filesystem>
#include <fstream>

#include "samples/mnist/digits.hpp"
#include "samples/mnist/model.hpp"
#include "samples/mnist/options.hpp"
#include "samples/mnist/step_log.hpp"
#include "tests/support/digits.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

using Catch::Matchers::Contains;

std::vector<mnist::Digit> digits_of(const mnist::Digits& all, std::span<const std::uint64_t> ids) {
  std::vector<mnist::Digit> out(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) all.read_train(ids[i], out[i]);
  return out;
}

std::string content_of(const std::string& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

Plan plan_for(const mnist::Digits& digits) {
  Plan plan;
  plan.global_batch = 12, plan.micro_batch = 6, plan.samples = digits.train(), plan.steps = 2, plan.seed = 5;
  return plan;
}

}  // namespace

TEST_CASE("without training files, the last fifth of the others is what is tested", "[mnist]") {
  const TemporaryDirectory folder;
  write_digits(folder.path(), "t10k", 50, 1);
  const mnist::Digits split = mnist::Digits::open(folder.path()).value();
  CHECK(split.split());
  CHECK(split.train() == 40);
  CHECK(split.test() == 10);
  mnist::Digit first{}, last{}, tested{};
  split.read_train(0, first);
  split.read_train(39, last);
  split.read_test(0, tested);
  CHECK(first.image[0] != last.image[0]);
  CHECK(first.label >= 0);

  write_digits(folder.path(), "train", 30, 2);
  const mnist::Digits whole = mnist::Digits::open(folder.path()).value();
  CHECK_FALSE(whole.split());
  CHECK(whole.train() == 30);
  CHECK(whole.test() == 50);
  CHECK(whole.hash() != split.hash());
  mnist::Digit same{};
  whole.read_test(40, same);  // what was the first to be tested with
  CHECK(std::ranges::equal(same.image, tested.image));
}

TEST_CASE("one training file without the other is a data set that did not arrive whole", "[mnist]") {
  const TemporaryDirectory folder;
  write_digits(folder.path(), "t10k", 50, 1);
  write_digits(folder.path(), "train", 30, 2);
  const std::string missing = folder.path() + GENERATE("/train-images-idx3-ubyte", "/train-labels-idx1-ubyte");
  std::filesystem::remove(missing);
  const auto digits = mnist::Digits::open(folder.path());
  REQUIRE_FALSE(digits.ok());
  CHECK_THAT(digits.failure().what, Contains(missing));
}

TEST_CASE("a directory that is no data set is refused, and the file that is wrong is named", "[mnist]") {
  const TemporaryDirectory folder;
  const auto why = [&] {
    const auto digits = mnist::Digits::open(folder.path());
    REQUIRE_FALSE(digits.ok());
    return digits.failure().what;
  };
  CHECK_THAT(why(), Contains("t10k-images-idx3-ubyte"));
  write_digits(folder.path(), "t10k", 20, 1);
  const std::string labels = folder.path() + "/t10k-labels-idx1-ubyte";
  const std::string good = content_of(labels);
  std::string bad = good;
  bad.back() = 10;
  std::ofstream{labels, std::ios::binary} << bad;
  CHECK_THAT(why(), Contains(labels) && Contains("label 10 at 19"));
  bad = good;
  bad[7] = 19;
  bad.pop_back();
  std::ofstream{labels, std::ios::binary} << bad;
  CHECK_THAT(why(), Contains("19 labels for 20 images"));
  write_digits(folder.path(), "t10k", 4, 1);
  CHECK_THAT(why(), Contains("fewer than five"));
}

TEST_CASE("a log has each step once, whoever wrote it before", "[mnist]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/log.json";
  const auto write = [&](mnist::StepLog& log, std::uint64_t step, double loss) {
    const mnist::LogField fields[] = {{"loss", loss}};
    return log.write(step, fields);
  };
  mnist::StepLog first{path};
  for (std::uint64_t s = 1; s <= 5; ++s) REQUIRE(write(first, s, 0.5).ok());
  std::ofstream{path, std::ios::app} << "{\"step\":6,\"lo";  // a writer that died here
  mnist::StepLog second{path};
  REQUIRE(write(second, 4, 0.25).ok());
  REQUIRE(write(second, 5, std::nan("")).ok());
  CHECK(content_of(path) ==
        "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.5}\n{\"step\":3,\"loss\":0.5}\n"
        "{\"step\":4,\"loss\":0.25}\n{\"step\":5,\"loss\":null}\n");
  REQUIRE(write(first, 6, 1).ok());  // it wrote 5 last, and goes on after the other's 5
  CHECK_THAT(content_of(path), Contains("{\"step\":5,\"loss\":null}\n{\"step\":6,\"loss\":1}\n"));

  mnist::StepLog heir{path};  // of a writer that is gone, and did not live to write step 7
  const mnist::LogField noted{"loss", 2};
  heir.note(7, {&noted, 1});
  REQUIRE(write(heir, 8, 3).ok());
  CHECK_THAT(content_of(path), Contains("{\"step\":6,\"loss\":1}\n{\"step\":7,\"loss\":2}\n{\"step\":8,\"loss\":3}\n"));
  mnist::StepLog late{path};  // but it did
  late.note(8, {&noted, 1});
  REQUIRE(write(late, 9, 4).ok());
  CHECK_THAT(content_of(path), Contains("{\"step\":8,\"loss\":3}\n{\"step\":9,\"loss\":4}\n"));

  std::ofstream{path} << "dear diary\n";
  mnist::StepLog third{path};
  CHECK_THAT(write(third, 1, 1).failure().what, Contains(path) && Contains("something else"));
  CHECK(content_of(path) == "dear diary\n");
  mnist::StepLog nowhere{folder.path() + "/missing/log.json"};
  CHECK_THAT(write(nowhere, 1, 1).failure().what, Contains("missing/log.json") && Contains("No such file"));
  mnist::StepLog none{""};
  CHECK(write(none, 1, 1).ok());
}

TEST_CASE("options: epochs are steps, contradictions are told at once", "[mnist]") {
  mnist::Options options;
  options.epochs = 2, options.global_batch = 64;
  CHECK(mnist::steps_of(options, 8000) == 250);
  CHECK(mnist::steps_of(options, 8001) == 251);
  options.steps = 7;
  CHECK(mnist::steps_of(options, 8000) == 7);
  const auto parsed = mnist::parse({"--data_path", "d", "--micro_batch", "7", "--every", "3"});
  CHECK(parsed.problems.size() == 2);
  CHECK(parsed.exit_code == flags::configuration);
  CHECK(mnist::parse({"--data-path", "d", "--micro-batch=32"}).problems.empty());
  CHECK(mnist::parse({}).exit_code == flags::usage);
  CHECK_THAT(mnist::help(), Contains("--checkpoint_path DIR") && Contains("(0.001)"));
}

TEST_CASE("neither threads nor the instruction set move a bit of the network", "[mnist]") {
  const TemporaryDirectory folder;
  write_digits(folder.path(), "t10k", 50, 1);
  const mnist::Digits digits = mnist::Digits::open(folder.path()).value();
  std::optional<std::uint64_t> hash, correct;
  for (const nn::Isa isa : nn::available())
    for (const std::size_t threads : {std::size_t{1}, std::size_t{3}}) {
      INFO(nn::to_string(isa) << ", " << threads << " threads");
      const auto members = run_world({}, [&](Job& job, Member& me) {
        job.configure(plan_for(digits));
        nn::Engine engine{threads, isa};
        mnist::Model model{job, engine, 6};
        job.seal();
        if (!job.restore()) model.initialise(job.rng("init"));
        while (auto step = job.next_step()) {
          for (Slot& slot : step->slots()) {
            const auto batch = digits_of(digits, slot.samples());
            const float loss = model.forward(batch, slot.rng());
            model.backward();
            slot.report(loss, batch.size());
          }
          me.steps.push_back(step->apply(AdamW{}, {.lr = 1e-3f}));
        }
        const std::uint64_t ids[] = {1, 2, 3, 4, 5};
        me.host_state = model.test(digits_of(digits, ids)).correct;
        me.outcome = job.outcome();
      });
      REQUIRE(members[0].outcome.has_value());
      CHECK(members[0].steps[0].norm > 0);
      if (!hash.has_value()) hash = members[0].outcome->state_hash, correct = members[0].host_state;
      CHECK(members[0].outcome->state_hash == *hash);
      CHECK(members[0].host_state == *correct);
    }
}

TEST_CASE("the network's backward pass is the slope of its forward pass, dropout included", "[mnist]") {
  const TemporaryDirectory folder;
  write_digits(folder.path(), "t10k", 50, 1);
  const mnist::Digits digits = mnist::Digits::open(folder.path()).value();
  struct Slope {
    std::string tensor;
    double is, should_be;
  };
  std::vector<Slope> slopes;
  const auto members = run_world({}, [&](Job& job, Member&) {
    Plan plan = plan_for(digits);
    plan.global_batch = plan.micro_batch, plan.optimizer = Optimizer::sgd;
    job.configure(plan);
    nn::Engine engine{2};
    mnist::Model model{job, engine, 6};
    job.seal();
    if (!job.restore()) model.initialise(job.rng("init"));
    const auto weights = [&] {
      std::vector<std::vector<float>> all;
      for (const Tensor<float>& t : model.tensors()) all.emplace_back(t.span().begin(), t.span().end());
      return all;
    };
    const auto before = weights();
    std::vector<mnist::Digit> batch;
    RandomStream rng;
    auto step = job.next_step();
    for (Slot& slot : step->slots()) {
      batch = digits_of(digits, slot.samples());
      rng = slot.rng();
      slot.report(model.forward(batch, rng), 1);
      model.backward();
    }
    // So large a step that what is left of the weights is the gradient, but for its sign and scale.
    constexpr float lr = 0x1p20f;
    (void)step->apply(Sgd{.momentum = 0}, {.lr = lr});
    const auto after = weights();
    for (std::size_t n = 0; n < before.size(); ++n) std::ranges::copy(before[n], model.tensors()[n].data());
    for (std::size_t n = 0; n < before.size(); ++n) {
      std::vector<double> gradient;
      for (std::size_t i = 0; i < before[n].size(); ++i)
        gradient.push_back((static_cast<double>(before[n][i]) - static_cast<double>(after[n][i])) / static_cast<double>(lr));
      double squares = 0;
      for (const double g : gradient) squares += g * g;
      const double length = std::sqrt(squares);
      // Along the gradient itself, where a step of fixed length changes the loss the most.
      const auto loss = [&](double by) {
        for (std::size_t i = 0; i < gradient.size(); ++i)
          model.tensors()[n].data()[i] = static_cast<float>(static_cast<double>(before[n][i]) + by * gradient[i] / length);
        return static_cast<double>(model.forward(batch, rng));
      };
      constexpr double by = 2e-3;
      slopes.push_back({fmt::format("tensor {}", n), (loss(by) - loss(-by)) / (2 * by), length});
      std::ranges::copy(before[n], model.tensors()[n].data());
    }
  });
  INFO((members[0].failure ? message(*members[0].failure) : ""));
  REQUIRE(slopes.size() == 8);
  for (const Slope& s : slopes) {
    INFO(s.tensor);
    CHECK(s.should_be > 0);
    CHECK(s.is == Approx(s.should_be).epsilon(0.02));
  }
}

}  // namespace elrun::test
