#include "launcher/chaos/fault_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <elrun/philox.hpp>

#include "launcher/options/option_values.hpp"
#include "lib/base/printable.hpp"

namespace elrun::inline v0::launcher {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr std::size_t problems_max = 32, line_shown_max = 80;
constexpr std::array<std::string_view, all_fault_kinds.size()> kind_words{"kill",       "stop",        "slow", "cut",
                                                                          "kill-agent", "coordinator", "fill"};

struct TimeUnit {
  std::string_view name;
  Duration length;
};
constexpr TimeUnit time_units[] = {{"ms", 1ms}, {"s", 1s}, {"m", 1min}, {"h", 1h}};

std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  constexpr std::string_view blanks = " \t\r";
  for (std::size_t begin = 0; (begin = line.find_first_not_of(blanks, begin)) != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(blanks, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

/// The words of one line, taken one after the other; what is wrong with them ends it.
class PlanLine {
 public:
  PlanLine(std::vector<std::string_view> words, const FaultWorld& world) : words_{std::move(words)}, world_{world} {}

  /// The fault, or nothing; then `problem()` has a text.
  std::optional<Fault> read() {
    Fault fault;
    if (!read_when(fault) || !read_kind(fault) || !read_target(fault) || !read_rest(fault)) return std::nullopt;
    return fault;
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  bool wrong(std::string text) { return problem_ = std::move(text), false; }
  std::string_view next() { return at_ < words_.size() ? words_[at_++] : std::string_view{}; }
  /// A word of others, as it may stand in a message.
  static std::string shown(std::string_view word) { return printable(word.substr(0, line_shown_max)); }

  bool read_when(Fault& fault) {
    const std::string_view word = next();
    if (word == "step") {
      const std::string_view number = next();
      const auto step = to_integer(number);
      if (!step || *step < 1) return wrong(fmt::format("`step {}`: needs the number of a step, 1 or more", shown(number)));
      fault.step = static_cast<std::uint64_t>(*step);
      return true;
    }
    const auto time = parse_time(word);
    if (!time) return wrong(fmt::format("`{}` is no time: a line begins with a time as 12.5s, 300ms or 2m, or with `step N`", shown(word)));
    fault.at = *time;
    return true;
  }

  bool read_kind(Fault& fault) {
    const std::string_view word = next();
    const auto kind = fault_kind_of(word);
    if (!kind) {
      const std::string_view near = nearest(word, kind_words);
      return wrong(fmt::format("`{}` is none of {}{}", shown(word), fmt::join(kind_words, ", "),
                               near.empty() ? std::string{} : fmt::format("; is {} meant?", near)));
    }
    fault.kind = *kind;
    return true;
  }

  bool read_target(Fault& fault) {
    const FaultTarget target = target_of(fault.kind);
    if (target == FaultTarget::job) return true;
    const std::string_view what = target == FaultTarget::rank ? "rank" : "node";
    const std::uint64_t count = target == FaultTarget::rank ? std::uint64_t{world_.nodes} * world_.workers : world_.nodes;
    const std::string_view word = next(), number = next();
    if (word != what) return wrong(fmt::format("`{}` hits a {}: `{} {} N`", word_of(fault.kind), what, word_of(fault.kind), what));
    const auto n = to_integer(number);
    if (!n || *n < 0 || static_cast<std::uint64_t>(*n) >= count)
      return wrong(fmt::format("`{} {}`: there are {} 0 to {}", what, shown(number), what, count - 1));
    fault.target = static_cast<std::uint32_t>(*n);
    return true;
  }

  bool read_rest(Fault& fault) {
    while (at_ < words_.size()) {
      const std::string_view word = next();
      if (word == "for" && fault.kind != FaultKind::kill) {
        const std::string_view text = next();
        const auto time = parse_time(text);
        if (!time || *time < 1ms) return wrong(fmt::format("`for {}`: needs a time as 1.5s, 1 ms or more", shown(text)));
        fault.lasts = *time;
      } else if (word == "to" && fault.kind == FaultKind::slow) {
        const std::string_view text = next();
        const auto percent = text.ends_with('%') ? to_integer(text.substr(0, text.size() - 1)) : std::nullopt;
        if (!percent || *percent < 1 || *percent > 99) return wrong(fmt::format("`to {}`: needs a share from 1% to 99%", shown(text)));
        fault.percent = static_cast<std::uint32_t>(*percent);
      } else {
        return wrong(fmt::format("`{}` does not belong to `{}`, which is written `{}`", shown(word), word_of(fault.kind),
                                 plan_line(example(fault.kind))));
      }
    }
    if (fault.kind != FaultKind::kill && fault.lasts == Duration{0})
      return wrong(fmt::format("`{}` needs how long it lasts: add `for 2s`", word_of(fault.kind)));
    if (fault.kind == FaultKind::slow && fault.percent == 0) return wrong("`slow` needs what share of its time is left: add `to 25%`");
    return true;
  }

  static Fault example(FaultKind kind) {
    return {.kind = kind,
            .at = 5s,
            .lasts = kind == FaultKind::kill ? Duration{0} : Duration{2s},
            .percent = kind == FaultKind::slow ? 25u : 0u};
  }

  std::vector<std::string_view> words_;
  const FaultWorld& world_;
  std::size_t at_ = 0;
  std::string problem_;
};

/// In whole milliseconds, from `least` up to `most`, both included.
Duration drawn_time(Rng& rng, Milliseconds least, Milliseconds most) {
  return least + Milliseconds{static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>((most - least).count()) + 1))};
}

void draw_how_long(Rng& rng, Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kill: break;
    case FaultKind::stop: fault.lasts = drawn_time(rng, 200ms, 2000ms); break;
    case FaultKind::slow:
      fault.lasts = drawn_time(rng, 1000ms, 4000ms);
      fault.percent = 20 + static_cast<std::uint32_t>(rng.below(60));
      break;
    case FaultKind::cut: fault.lasts = drawn_time(rng, 500ms, 8000ms); break;
    case FaultKind::kill_agent:
    case FaultKind::coordinator: fault.lasts = drawn_time(rng, 500ms, 3000ms); break;
    case FaultKind::fill: fault.lasts = drawn_time(rng, 1000ms, 5000ms); break;
  }
}

}  // namespace

std::string_view word_of(FaultKind kind) { return kind_words[static_cast<std::size_t>(kind)]; }

std::optional<FaultKind> fault_kind_of(std::string_view word) {
  for (const FaultKind kind : all_fault_kinds)
    if (word == word_of(kind) || (kind == FaultKind::kill_agent && word == "kill_agent")) return kind;
  return std::nullopt;
}

std::optional<Duration> parse_time(std::string_view text) {
  Duration unit = 1s;
  const std::size_t end = text.find_first_not_of("0123456789.");
  if (end != std::string_view::npos) {
    const auto* const found = std::ranges::find(time_units, text.substr(end), &TimeUnit::name);
    if (found == std::end(time_units)) return std::nullopt;
    unit = found->length;
  }
  const auto number = to_seconds(text.substr(0, end));  // so far a number, whatever its unit
  if (!number || text.empty() || end == 0) return std::nullopt;
  const double time = std::chrono::duration<double>(*number).count() * std::chrono::duration<double>(unit).count();
  if (!(time <= std::chrono::duration<double>(fault_time_max).count())) return std::nullopt;
  return Milliseconds{std::llround(time * 1000)};
}

std::string time_text(Duration time) {
  const auto ms = std::chrono::duration_cast<Milliseconds>(time).count();
  if (ms < 1000) return fmt::format("{}ms", ms);
  if (ms % 1000 == 0) return fmt::format("{}s", ms / 1000);
  std::string text = fmt::format("{}.{:03}", ms / 1000, ms % 1000);
  while (text.ends_with('0')) text.pop_back();
  return text + "s";
}

ParsedPlan parse_plan(std::string_view text, const FaultWorld& world) {
  ParsedPlan parsed;
  std::size_t more = 0;
  const auto problem = [&](std::string what) {
    if (parsed.problems.size() < problems_max) parsed.problems.push_back(std::move(what));
    else ++more;
  };
  if (text.size() > plan_bytes_max) {
    parsed.problems.push_back(fmt::format("{} bytes are more than the {} that a plan may have", text.size(), plan_bytes_max));
    return parsed;
  }
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (words.empty()) continue;
    PlanLine line{std::move(words), world};
    if (auto fault = line.read(); !fault) problem(fmt::format("line {}: {}", number, line.problem()));
    else if (parsed.faults.size() == faults_max) {
      problem(fmt::format("line {}: a plan has at most {} failures", number, faults_max));
      break;
    } else parsed.faults.push_back(*fault);
  }
  if (more > 0) parsed.problems.push_back(fmt::format("and {} more", more));
  return parsed;
}

std::string plan_line(const Fault& fault) {
  std::string text = fault.step ? fmt::format("step {} {}", *fault.step, word_of(fault.kind))
                                : fmt::format("{} {}", time_text(fault.at), word_of(fault.kind));
  if (const FaultTarget target = target_of(fault.kind); target != FaultTarget::job)
    text += fmt::format(" {} {}", target == FaultTarget::rank ? "rank" : "node", fault.target);
  if (fault.kind == FaultKind::slow) text += fmt::format(" to {}%", fault.percent);
  if (fault.kind != FaultKind::kill) text += fmt::format(" for {}", time_text(fault.lasts));
  return text;
}

std::string text_of(std::span<const Fault> faults) {
  std::string text;
  for (const Fault& fault : faults) text += plan_line(fault) + "\n";
  return text;
}

std::vector<Fault> draw_plan(const DrawOptions& options, std::span<const FaultKind> kinds, const FaultWorld& world) {
  std::vector<Fault> faults;
  Rng rng{options.seed};
  const double mean_ms = std::chrono::duration<double, std::milli>(options.mtbf).count();
  Duration at{0};
  while (faults.size() <= faults_max) {
    // From (0, 1], so that its logarithm is a number.
    const double uniform = (static_cast<double>(rng.next64() >> 11) + 1) * 0x1.0p-53;
    at += Milliseconds{std::llround(-std::log(uniform) * mean_ms)};
    if (at > std::min(options.time, fault_time_max)) break;
    Fault fault{.kind = kinds[rng.below(kinds.size())], .at = at};
    const FaultTarget target = target_of(fault.kind);
    if (target == FaultTarget::rank) fault.target = static_cast<std::uint32_t>(rng.below(std::uint64_t{world.nodes} * world.workers));
    if (target == FaultTarget::node) fault.target = static_cast<std::uint32_t>(rng.below(world.nodes));
    draw_how_long(rng, fault);
    faults.push_back(fault);
  }
  return faults;
}

}  // namespace elrun::inline v0::launcher
