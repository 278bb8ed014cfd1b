#include "samples/mnist/options.hpp"

#include <algorithm>
#include <utility>

#include "samples/placement.hpp"

namespace mnist {
namespace {

using flags::unbounded;

const flags::Flag<Options> table[] = {
    {"data_path", "DIR", &Options::data_path, 0, 0,
     "idx files of MNIST or Fashion-MNIST, plain or .gz; without train-* the last fifth of t10k-* is what it is tested on"},
    {"checkpoint_path", "DIR", &Options::checkpoint_path, 0, 0, "where to keep checkpoints; a job that finds one goes on from there"},
    {"log_path", "FILE", &Options::log_path, 0, 0, "one line of JSON per step; a job that goes on goes on in it"},
    {"epochs", "N", &Options::epochs, 1, 1 << 20, "passes over the training images"},
    {"steps", "N", &Options::steps, 0, unbounded, "steps of training instead of epochs; 0: epochs count"},
    {"global_batch", "N", &Options::global_batch, 1, 1 << 20, "images per step, whatever the number of workers"},
    {"micro_batch", "N", &Options::micro_batch, 1, 1 << 12, "images that one worker computes at a time; divides --global_batch"},
    {"zero", SAMPLES_STAGES, &Options::zero, 0, 0,
     "what every worker keeps only its share of: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too; hybrid, mirrored: as gpt --help says. "
     "The result is the same"},
    {"overlap", "on|off", &Options::overlap, 0, 0, "on: workers exchange weights and gradients while they compute. The result is the same"},
    {"every", "K", &Options::every, 0, unbounded, "steps between checkpoints; 0: only at the end"},
    {"test_every", "K", &Options::test_every, 0, unbounded, "steps between tests; 0: an epoch. The end is always tested"},
    {"seed", "N", &Options::seed, 0, ~std::uint64_t{0}, "of initial weights, dropout and the order of images"},
    {"lr", "X", &Options::lr, 0, 0, "highest learning rate: a short linear warm-up, then a cosine to a twentieth"},
    {"plan", "W", &Options::plan, 1, 1 << 16, "print what W workers would each hold and do, for every placement, and end"},
};

std::vector<std::string> contradictions(const Options& o) {
  std::vector<std::string> out;
  if (o.global_batch % o.micro_batch != 0)
    out.push_back("--micro_batch " + std::to_string(o.micro_batch) + " does not divide --global_batch " + std::to_string(o.global_batch) +
                  ": choose a divisor, so that all parts of a step are alike");
  if (std::string problem = samples::problem_of_zero(o.zero); !problem.empty()) out.push_back(std::move(problem));
  if (o.overlap != "on" && o.overlap != "off") out.push_back("--overlap " + o.overlap + " is neither on nor off");
  if (o.every > 0 && o.checkpoint_path.empty())
    out.push_back("--every " + std::to_string(o.every) + " has nowhere to go: add --checkpoint_path DIR");
  return out;
}

}  // namespace

Parsed parse(const std::vector<std::string>& arguments) {
  Parsed parsed = flags::parse(table, "mnist", arguments);
  if (parsed.options.help) return parsed;
  const auto about_data = [](const std::string& problem) { return problem.starts_with("--data"); };
  if (parsed.options.data_path.empty() && std::ranges::none_of(parsed.problems, about_data)) {
    parsed.problems.emplace_back("--data_path is missing: name a directory with idx files, --data_path DIR");
    parsed.exit_code = flags::usage;
  }
  flags::add_contradictions(parsed, contradictions(parsed.options));
  return parsed;
}

std::string help() {
  return "mnist: trains a small convolutional network to tell images apart.\n\n"
         "  mnist --data_path DIR [options]                                        one process\n"
         "  elrun --nproc_per_node 4 --no_python mnist --data_path DIR [options]   four, which may come and go\n\n"
         "The result depends on the data and the options from --epochs on, but for --zero, --overlap, --every and --test_every:\n"
         "neither the number of workers nor their loss changes a bit of it. ELRUN_DEVICE=cuda trains on a GPU, cpu on the host.\n\n" +
         flags::help(table) +
         "\nExit codes: 0 done; 1 a failure, which is named; 64 an option that does not exist or cannot be read;\n"
         "66 no readable images; 78 options, or options and a checkpoint, that contradict each other, or a log that\n"
         "cannot be written.\n";
}

std::uint64_t steps_of(const Options& options, std::uint64_t samples) {
  if (options.steps > 0) return options.steps;
  return (options.epochs * samples + options.global_batch - 1) / options.global_batch;
}

elrun::Schedule schedule(const Options& options, std::uint64_t steps) {
  return {.shape = elrun::Schedule::Shape::cosine,
          .highest = options.lr,
          .last = 0.05,
          .warm_up = std::max<std::uint64_t>(steps / 20, 1),
          .steps = steps};
}

}  // namespace mnist
