#include "launcher/commands/ckpt_options.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "launcher/options/option_values.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::string_view ckpt_usage =
    "usage: elrun ckpt ls ROOT [--json]\n"
    "       elrun ckpt inspect ROOT [STEP[@FENCE]] [--plan W [--zero Z] [--per-node N]] [--json]\n"
    "       elrun ckpt verify ROOT [STEP[@FENCE]] [--readers N] [--json]\n"
    "       elrun ckpt diff A B [--json]\n"
    "\n"
    "Reads the checkpoints that a Job of libelrun saves (not those that a script writes itself), and never writes: a read-only\n"
    "root will do, and a job that runs there is not disturbed.\n"
    "ROOT is the directory that the job was given. In place of ROOT and STEP stands also ROOT:STEP[@FENCE], or the\n"
    "checkpoint's own directory, ROOT/ckpt/s000000000040.g00000001.a01. FENCE is the number of the start that saved it, which\n"
    "`ls` shows: two starts may have saved the same step.\n"
    "\n"
    "  ls       what is there, newest first: step, fence, attempt (of a save that was tried again), age, size, the world that\n"
    "           saved it, and its state. A * marks the one from which a start would go on. The timeline is the row of those\n"
    "           that starts go on from. ls looks at the storage alone. Agents remember more, which ls does not know: a start\n"
    "           stops where a checkpoint that they remember is gone, and passes over one after which the job failed twice.\n"
    "             acknowledged         committed, and the job was told so. Whether all bytes are whole, verify says\n"
    "             on the timeline      committed; a crash came before the job was told\n"
    "             beside the timeline  committed, and no start goes on from it: one had taken over from the job that saved it,\n"
    "                                  or had passed over it\n"
    "             uncommitted          what an interrupted save left, or what one saves just now\n"
    "             damaged              a start would pass over it, and mark it quarantined\n"
    "             quarantined          a start found it damaged, and marked it\n"
    "             unreadable           the storage did not give it\n"
    "             acknowledged, but missing   removed, or on a storage that is not mounted: a start stops\n"
    "             given up             missing as well, and --begin_anew told a start to go on without it\n"
    "  inspect  plan, tensors (name, type, elements, bytes, shape) and shards of one checkpoint; without STEP of the one from\n"
    "           which a start would go on\n"
    "    --plan W           what each rank of a world of W would read: bytes, files, ranges\n"
    "    --zero Z           for a job with that placement: 0, 1, 2, 3, hybrid2, hybrid3 or mirrored1 to\n"
    "                       mirrored3 (0: all is on every rank)\n"
    "    --per-node N       ranks of a node, for hybrid (all)\n"
    "  verify   reads every byte, and checks every checksum. Names the file and block of all that is damaged. Without STEP it\n"
    "           takes all committed checkpoints that are not quarantined\n"
    "    --readers N        that many at once (4)\n"
    "  diff     compares two checkpoints tensor by tensor and bit by bit, whatever worlds saved them: how many elements differ,\n"
    "           the first of them, and the largest difference. Without STEP the one from which a start would go on\n"
    "  --json   one JSON object in place of the text\n"
    "\n"
    "Exit codes: 0 it was done, and verify found no damage, diff no difference; 1 it found some; 64 usage; 65 damaged, so it\n"
    "cannot be inspected or compared; 66 no such root or checkpoint; 70 the storage did not answer.\n"
    "\n"
    "  elrun ckpt ls /shared/run7\n"
    "  elrun ckpt verify /shared/run7 4000\n"
    "  elrun ckpt diff /shared/run7:4000 /shared/run8:4000\n";

constexpr std::string_view verbs[] = {"ls", "inspect", "verify", "diff"};

Usage wrong(const std::string& problem) {
  return Usage{exit_code::usage, fmt::format("elrun: ckpt: {}\nSee `elrun ckpt --help`.\n", problem)};
}

/// An option that takes a value.
struct Values {
  std::optional<std::string> plan, zero, per_node, readers;
  std::optional<std::string>* find(std::string_view name) {
    if (name == "--plan") return &plan;
    if (name == "--zero") return &zero;
    if (name == "--per-node" || name == "--per_node") return &per_node;
    return name == "--readers" ? &readers : nullptr;
  }
};

std::optional<std::uint32_t> positive(const std::string& text, std::int64_t most) {
  const auto number = to_integer(text);
  if (!number || *number < 1 || *number > most) return std::nullopt;
  return static_cast<std::uint32_t>(*number);
}

/// What --plan, --zero and --per-node come to; a problem, or nothing.
std::string parse_plan_value(const Values& values, CkptOptions& options) {
  const bool is_inspect = options.verb == CkptOptions::Verb::inspect;
  if (!is_inspect && (values.plan || values.zero || values.per_node)) return "--plan, --zero and --per-node belong to inspect";
  if (!values.plan) return values.zero || values.per_node ? "--zero and --per-node belong to --plan W: add it" : "";
  const auto world = positive(*values.plan, world_max);
  if (!world) return fmt::format("--plan {}: must be a number of ranks from 1 to {}", *values.plan, world_max);
  const auto per_node = positive(values.per_node.value_or(fmt::to_string(*world)), world_max);
  if (!per_node) return fmt::format("--per-node {}: must be a number of ranks from 1 to {}", *values.per_node, world_max);
  options.reads_as = reading_world(*world, values.zero.value_or("0"), *per_node);
  return options.reads_as ? "" : fmt::format("--zero {}: is none of 0, 1, 2, 3, hybrid2, hybrid3 and mirrored1 to mirrored3", *values.zero);
}

/// What stands for checkpoints; a problem, or nothing.
std::string parse_names(const std::vector<std::string>& words, CkptOptions& options) {
  const std::size_t most = options.verb == CkptOptions::Verb::ls ? 1 : 2;
  if (words.empty())
    return options.verb == CkptOptions::Verb::diff ? "A and B are not given, the checkpoints to compare: each ROOT:STEP[@FENCE]"
                                                   : "ROOT is not given, the directory with the checkpoints";
  if (words.size() > most) return fmt::format("`{}` is one too many", words[most]);
  for (const std::string& word : words)
    if (word.empty()) return "a checkpoint root is empty text";
  if (options.verb == CkptOptions::Verb::diff) {
    if (words.size() < 2) return "B is not given, the checkpoint to compare with: diff A B";
    options.names = {parse_checkpoint_name(words[0]), parse_checkpoint_name(words[1])};
    return "";
  }
  options.names = {parse_checkpoint_name(words[0])};
  CheckpointName& name = options.names[0];
  // A root whose own name ends like ROOT:STEP is meant where nothing but a root can be.
  if ((options.verb == CkptOptions::Verb::ls || words.size() > 1) && !name.word.empty()) name = {.root = words[0]};
  if (options.verb == CkptOptions::Verb::ls && name.id) return fmt::format("`{}` names one checkpoint, and ls wants a root", words[0]);
  if (words.size() == 1) return "";
  if (name.step || name.id) return fmt::format("`{}` names a checkpoint already, so `{}` is one too many", words[0], words[1]);
  const auto named = parse_checkpoint_name(words[0], words[1]);
  if (!named)
    return fmt::format("`{}` names no checkpoint: give a STEP, or STEP@FENCE as `elrun ckpt ls {}` shows them", words[1], words[0]);
  name = *named;
  return "";
}

}  // namespace

std::variant<CkptOptions, Usage> parse_ckpt(std::span<const std::string> words) {
  if (std::any_of(words.begin(), words.end(), [](const std::string& w) { return w == "-h" || w == "--help"; }))
    return Usage{0, std::string{ckpt_usage}};
  if (words.empty()) return wrong("say what to do: ls, inspect, verify or diff");
  const auto verb = std::find(std::begin(verbs), std::end(verbs), words[0]);
  if (verb == std::end(verbs)) {
    const std::string_view near = nearest(words[0], verbs);
    return wrong(
        fmt::format("`{}` is none of ls, inspect, verify, diff{}", words[0], near.empty() ? "" : fmt::format("; is {} meant?", near)));
  }
  CkptOptions options{.verb = static_cast<CkptOptions::Verb>(verb - std::begin(verbs)), .names = {}};
  Values values;
  std::vector<std::string> names;
  for (std::size_t i = 1; i < words.size(); ++i) {
    std::string name = words[i];
    if (name == "--json") options.as_json = true;
    else if (!name.starts_with("--")) names.push_back(std::move(name));
    else {
      std::optional<std::string> value;
      if (const auto equals = name.find('='); equals != std::string::npos) value = name.substr(equals + 1), name.resize(equals);
      auto* const place = values.find(name);
      if (place == nullptr) return wrong(fmt::format("{} {}: no such option", words[0], name));
      if (!value && i + 1 < words.size()) value = words[++i];
      if (!value) return wrong(fmt::format("{} needs a value", name));
      *place = std::move(value);
    }
  }
  if (const std::string problem = parse_names(names, options); !problem.empty()) return wrong(problem);
  if (const std::string problem = parse_plan_value(values, options); !problem.empty()) return wrong(problem);
  if (values.readers) {
    const auto readers = positive(*values.readers, 64);
    if (!readers || options.verb != CkptOptions::Verb::verify)
      return wrong(fmt::format("--readers {}: belongs to verify, and is from 1 to 64", *values.readers));
    options.readers = *readers;
  }
  return options;
}

}  // namespace elrun::inline v0::launcher
