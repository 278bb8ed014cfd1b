#include "samples/gpt/options.hpp"

#include <algorithm>
#include <charconv>
#include <variant>

namespace gpt {
namespace {

using Place = std::variant<std::string Options::*, std::uint64_t Options::*, double Options::*>;

// Everything about an option, in one row: parsing, bounds and --help follow from it.
struct Option {
  const char *name, *value;
  Place place;
  std::uint64_t min, max;  // of whole numbers
  const char* help;
};

constexpr std::uint64_t unbounded = std::uint64_t{1} << 62;

const Option table[] = {
    {"data", "FILE", &Options::data, 0, 0, "the text to learn, any bytes; at least context + 1 of them"},
    {"steps", "N", &Options::steps, 1, unbounded,
     "steps of training; more can be asked of a finished job by starting it again"},
    {"global-batch", "N", &Options::global_batch, 1, 1 << 24, "samples per step, whatever the number of workers"},
    {"micro-batch", "N", &Options::micro_batch, 1, 1 << 16,
     "samples that one worker computes at a time; divides --global-batch"},
    {"layers", "N", &Options::layers, 1, 1024, "transformer blocks"},
    {"channels", "N", &Options::channels, 1, 1 << 16, "width of the model; a multiple of --heads"},
    {"heads", "N", &Options::heads, 1, 1 << 10, "attention heads per block"},
    {"context", "N", &Options::context, 1, 1 << 16, "bytes that the model looks back on; also the length of a sample"},
    {"zero", "0|1", &Options::zero, 0, 1,
     "0: every worker keeps all of the optimizer's state; 1: its share. The result is the same"},
    {"seed", "N", &Options::seed, 0, ~std::uint64_t{0}, "of initial weights and the order of samples"},
    {"lr", "X", &Options::lr, 0, 0,
     "highest learning rate: linear warm-up over a tenth of the steps, then a cosine to a tenth"},
    {"checkpoint", "DIR", &Options::checkpoint, 0, 0,
     "where to keep checkpoints; a job that finds one goes on from there"},
    {"every", "K", &Options::every, 0, unbounded, "steps between checkpoints; 0: only at the end"},
    {"keep", "N", &Options::keep, 2, 1 << 20,
     "checkpoints to keep; at least 2, for the newest may turn out to be damaged"},
    {"sample", "N", &Options::sample, 0, 1 << 20, "bytes of text to write at the end"},
};

const Option* find(std::string_view name) {
  for (const Option& option : table)
    if (name == option.name) return &option;
  return nullptr;
}

template <class T>
bool read(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

std::string range(const Option& option) {
  if (option.max >= unbounded) return "a whole number of at least " + std::to_string(option.min);
  return "a whole number from " + std::to_string(option.min) + " to " + std::to_string(option.max);
}

// Empty, or what is wrong with the value.
std::string assign(Options& options, const Option& option, const std::string& value) {
  const std::string said = "--" + std::string{option.name} + " '" + value + "'";
  if (const auto* text = std::get_if<std::string Options::*>(&option.place)) {
    options.*(*text) = value;
    return value.empty() ? "--" + std::string{option.name} + " is empty: give it a " + option.value : "";
  }
  if (const auto* real = std::get_if<double Options::*>(&option.place)) {
    double x = 0;
    if (!read(value, x) || !(x > 0 && x <= 100))
      return said + " is no number above 0 and at most 100: try --" + option.name + " 0.002";
    options.*(*real) = x;
    return "";
  }
  std::uint64_t n = 0;
  if (!read(value, n) || n < option.min || n > option.max) return said + " is not " + range(option);
  options.*(*std::get_if<std::uint64_t Options::*>(&option.place)) = n;
  return "";
}

std::vector<std::string> contradictions(const Options& o) {
  std::vector<std::string> out;
  const auto number = [](std::uint64_t n) { return std::to_string(n); };
  if (o.global_batch % o.micro_batch != 0)
    out.push_back("--micro-batch " + number(o.micro_batch) + " does not divide --global-batch " +
                  number(o.global_batch) + ": choose a divisor, so that all parts of a step are alike");
  if (o.channels % o.heads != 0)
    out.push_back("--channels " + number(o.channels) + " is no multiple of --heads " + number(o.heads) +
                  ": each head takes an equal share; try --channels " + number((o.channels / o.heads + 1) * o.heads));
  if (o.every > 0 && o.checkpoint.empty())
    out.push_back("--every " + number(o.every) + " has nowhere to go: add --checkpoint DIR");
  return out;
}

}  // namespace

Parsed parse(const std::vector<std::string>& arguments) {
  Parsed parsed;
  const auto wrong = [&](std::string problem) {
    parsed.problems.push_back(std::move(problem));
    parsed.exit_code = ExitCode::usage;
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      parsed.options.help = true;
      continue;
    }
    const std::size_t equals = argument.find('=');
    const Option* option =
        argument.starts_with("--")
            ? find(std::string_view{argument}.substr(2, equals == std::string::npos ? equals : equals - 2))
            : nullptr;
    if (option == nullptr) {
      wrong("'" + argument + "' is no option of gpt: see --help");
      // What follows an unknown `--name` is taken to be its value, and not a problem of its own.
      if (argument.starts_with("--") && equals == std::string::npos && i + 1 < arguments.size() &&
          !arguments[i + 1].starts_with("--"))
        ++i;
    } else if (equals == std::string::npos && i + 1 == arguments.size()) {
      wrong(argument + " needs a value: " + argument + " " + option->value);
    } else if (std::string problem = assign(parsed.options, *option,
                                            equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1));
               !problem.empty()) {
      wrong(std::move(problem));
    }
  }
  if (parsed.options.help) return parsed;
  const auto about_data = [](const std::string& problem) { return problem.starts_with("--data"); };
  if (parsed.options.data.empty() && std::ranges::none_of(parsed.problems, about_data))
    wrong("--data is missing: name a text to learn, --data FILE");
  for (std::string& problem : contradictions(parsed.options)) {
    parsed.problems.push_back(std::move(problem));
    if (parsed.exit_code == 0) parsed.exit_code = ExitCode::configuration;
  }
  return parsed;
}

std::string help() {
  std::string text =
      "gpt: trains a small transformer to predict the next byte of a text, then writes some.\n\n"
      "  gpt --data FILE [options]                                        one process\n"
      "  elrun --nproc_per_node 4 --no_python gpt --data FILE [options]   four, which may come and go\n\n"
      "The result depends on the options below and on nothing else: neither the number of workers nor their loss\n"
      "changes a bit of it. One process prints a line per step; the last line has a hash of all weights and "
      "moments.\n\n";
  const Options defaults;
  for (const Option& option : table) {
    std::string head = "  --" + std::string{option.name} + " " + option.value;
    head.resize(22, ' ');
    std::string tail;
    if (const auto* n = std::get_if<std::uint64_t Options::*>(&option.place))
      tail = " (" + std::to_string(defaults.*(*n)) + ")";
    if (std::holds_alternative<double Options::*>(option.place)) tail = " (0.002)";
    text += head + option.help + tail + "\n";
  }
  return text +
         "  --help              this text\n\n"
         "Exit codes: 0 done; 1 a failure, which is named; 64 an option that does not exist or cannot be read;\n"
         "66 no readable text of sufficient length; 78 options, or options and a checkpoint, that contradict each "
         "other.\n";
}

elrun::Schedule schedule(const Options& options) {
  return {.shape = elrun::Schedule::Shape::cosine,
          .highest = options.lr,
          .last = 0.1,
          .warm_up = std::max<std::uint64_t>(options.steps / 10, 1),
          .steps = options.steps};
}

}  // namespace gpt
