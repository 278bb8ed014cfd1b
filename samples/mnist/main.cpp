// A convolutional network on MNIST: a whole program around elrun::Job. Nothing in it knows how many processes there are.

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <elrun/elrun.hpp>
#include "samples/format.hpp"
#include "samples/mnist/digits.hpp"
#include "samples/mnist/model.hpp"
#include "samples/mnist/options.hpp"
#include "samples/mnist/step_log.hpp"
#include "samples/placement.hpp"

namespace {

using samples::format;

/// `E`: what layers compute with, on the host or on a device.
template <class E>
class Training {
 public:
  Training(elrun::Job& job, E& engine, const mnist::Options& options, const mnist::Digits& digits)
      : job_{job},
        options_{options},
        digits_{digits},
        model_{job, engine, static_cast<std::size_t>(options.micro_batch)},
        log_{options.log_path} {}

  void run() {
    if (options_.plan > 0) return job_.print(job_.plan_table(static_cast<std::uint32_t>(options_.plan)));
    job_.seal();
    if (!job_.restore()) model_.initialise(job_.rng("init"));
    if (digits_.split())
      job_.print(format("no train-* images: trains on the first %llu of t10k-*, is tested on the other %llu", number(digits_.train()),
                        number(digits_.test())));
    elrun::Loader<mnist::Digit> loader{job_, [this](std::uint64_t id, mnist::Digit& digit) { digits_.read_train(id, digit); }};
    const elrun::Schedule rate = mnist::schedule(options_, job_.plan().steps);
    const elrun::AdamW adamw{.weight_decay = 0.01f};
    std::optional<std::uint64_t> correct;  // of the newest decided step
    while (auto step = job_.next_step()) {
      for (elrun::Slot& slot : step->slots()) {
        const auto digits = loader.get(slot.samples());
        const auto loss = model_.forward(digits, slot.rng());
        model_.backward();
        slot.report(loss, digits.size());
      }
      const elrun::StepResult r = step->apply(adamw, {.lr = rate, .clip_norm = 1.0f});
      if (!r.decided) continue;  // the world has changed, and the same step comes again
      correct = is_due(r.step) ? test() : std::nullopt;
      report(r, rate.at(step->number()), correct);
    }
    if (!correct.has_value()) correct = test();  // the job was over before, or the world changed under the last test
    const elrun::Outcome& end = job_.outcome();
    const std::string accuracy = correct.has_value() ? accuracy_of(*correct) : "unknown: a worker was lost, start again";
    job_.print(format("done step=%llu loss=%.6f accuracy=%s state=%016llx", number(end.step), static_cast<double>(end.loss),
                      accuracy.c_str(), number(end.state_hash)));
  }

 private:
  static unsigned long long number(std::uint64_t n) { return n; }
  [[nodiscard]] std::uint64_t steps_per_epoch() const { return (digits_.train() + options_.global_batch - 1) / options_.global_batch; }
  [[nodiscard]] bool is_due(std::uint64_t step) const {
    return step == job_.plan().steps || step % (options_.test_every > 0 ? options_.test_every : steps_per_epoch()) == 0;
  }
  [[nodiscard]] std::string accuracy_of(std::uint64_t correct) const {
    return format("%.4f (%llu of %llu)", static_cast<double>(correct) / static_cast<double>(digits_.test()), number(correct),
                  number(digits_.test()));
  }

  /// How many of the test images the model tells right; nothing when the world changed under it.
  std::optional<std::uint64_t> test() {
    const elrun::Evaluation evaluation = job_.evaluate(digits_.test(), [this](elrun::Slot& slot) {
      test_batch_.resize(slot.samples().size());
      for (std::size_t i = 0; i < test_batch_.size(); ++i) digits_.read_test(slot.samples()[i], test_batch_[i]);
      const auto score = model_.test(test_batch_);
      slot.report(score.loss, test_batch_.size());
      slot.add("correct", static_cast<double>(score.correct));
    });
    return evaluation.decided ? std::optional{static_cast<std::uint64_t>(evaluation.sum("correct"))} : std::nullopt;
  }

  void report(const elrun::StepResult& r, float lr, std::optional<std::uint64_t> correct) {
    const double epoch = static_cast<double>(r.step * options_.global_batch) / static_cast<double>(digits_.train());
    std::vector<mnist::LogField> fields{{"epoch", epoch},
                                        {"loss", r.loss},
                                        {"norm", r.norm},
                                        {"lr", lr},
                                        {"steps_skipped", static_cast<double>(r.steps_skipped)},
                                        {"world", static_cast<double>(r.world)},
                                        {"generation", static_cast<double>(r.generation)},
                                        {"images_per_s", r.tokens_per_s}};
    if (correct.has_value()) fields.push_back({"accuracy", static_cast<double>(*correct) / static_cast<double>(digits_.test())});
    if (!job_.prints()) return log_.note(r.step, fields);
    std::string line = format("step=%llu loss=%.6f norm=%.5f world=%u generation=%llu images_per_s=%.0f", number(r.step),
                              static_cast<double>(r.loss), static_cast<double>(r.norm), r.world, number(r.generation), r.tokens_per_s);
    if (correct.has_value()) line += " accuracy=" + accuracy_of(*correct);
    job_.print(line);
    if (const auto logged = log_.write(r.step, fields); !logged.ok()) throw elrun::Error{logged.failure()};
  }

  elrun::Job& job_;
  const mnist::Options& options_;
  const mnist::Digits& digits_;
  mnist::Model<E> model_;
  mnist::StepLog log_;
  std::vector<mnist::Digit> test_batch_;
};

void train(elrun::Job& job, const mnist::Options& options, const mnist::Digits& digits) {
  job.configure({.global_batch = options.global_batch,
                 .micro_batch = options.micro_batch,
                 .samples = digits.train(),
                 .data_hash = digits.hash(),
                 .steps = mnist::steps_of(options, digits.train()),
                 .seed = options.seed,
                 .placement = samples::placement_of(options.zero),
                 .overlap = options.overlap == "on",
                 .numeric = "mnist 1"},
                {.directory = options.checkpoint_path, .every = options.every});
#ifdef MNIST_ON_DEVICES
  if (job.device().kind == elrun::DeviceKind::cuda) {
    nn::DeviceEngine engine{job.stream()};
    return Training{job, engine, options, digits}.run();
  }
#endif
  nn::Engine engine{job.compute_threads()};
  Training{job, engine, options, digits}.run();
}

}  // namespace

int main(int argc, char** argv) {
  mnist::Parsed parsed = mnist::parse({argv + 1, argv + argc});
  if (parsed.options.help) return std::fputs(mnist::help().c_str(), stdout) < 0 ? 1 : 0;
  if (parsed.options.data_path.empty()) return flags::refuse("mnist", parsed);
  const auto digits = mnist::Digits::open(parsed.options.data_path);
  if (!digits.ok()) {
    parsed.problems.push_back("--data_path: " + digits.failure().what);
    if (parsed.exit_code == 0) parsed.exit_code = flags::no_input;
  }
  if (!parsed.problems.empty()) return flags::refuse("mnist", parsed);
#ifdef MNIST_ON_DEVICES
  constexpr bool on_devices = true;
#else
  constexpr bool on_devices = false;  // built without CUDA
#endif
  return elrun::run(argc, argv, [&](elrun::Job& job) { train(job, parsed.options, *digits); },
                    {.devices = on_devices, .any_device_model = true});
}
