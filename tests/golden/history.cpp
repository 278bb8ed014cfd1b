#include "tests/golden/history.hpp"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <elrun/philox.hpp>

namespace elrun::golden {
namespace {

// Of a program's options, those whose value must not show in the state; and leaves, of which each kind has one state.
constexpr const char* varied[] = {"zero", "hybrid", "exchange", "overlap", "recompute", "leaves"};

constexpr unsigned slots = 8;  // of a step: no more workers take part

template <class T>
const T& any_of(Rng& rng, const std::vector<T>& values) {
  return values[rng.below(values.size())];
}

Kind any_kind(Rng& rng, const Setting& setting) {
  struct Weight {
    Kind kind;
    unsigned alone, several;
  };
  static constexpr Weight weights[] = {{Kind::worker_killed, 45, 25},     {Kind::workers_killed, 20, 12}, {Kind::worker_paused, 15, 8},
                                       {Kind::agent_killed, 10, 17},      {Kind::agent_drained, 0, 14},   {Kind::agent_joins, 0, 10},
                                       {Kind::coordinator_killed, 10, 14}};
  unsigned sum = 0;
  const auto of = [&](const Weight& w) { return setting.agents > 1 ? w.several : w.alone; };
  for (const Weight& w : weights) sum += of(w);
  std::uint64_t at = rng.below(sum);
  for (const Weight& w : weights) {
    if (at < of(w)) return w.kind;
    at -= of(w);
  }
  return Kind::worker_killed;
}

}  // namespace

std::vector<Dimension> dimensions_in(const std::string& help) {
  std::vector<Dimension> found;
  std::istringstream lines{help};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words{line};
    std::string option, choices;
    words >> option >> choices;
    if (std::ranges::none_of(varied, [&](const char* name) { return option == std::string{"--"} + name; })) continue;
    Dimension dimension;
    std::istringstream values{choices};
    unsigned first = 0, last = 0;
    if (std::sscanf(choices.c_str(), "%u..%u", &first, &last) == 2)
      for (unsigned value = first; value <= last; ++value) dimension.push_back({option, std::to_string(value)});
    else if (choices.find('|') != std::string::npos)
      for (std::string value; std::getline(values, value, '|');) {
        if (value != "auto") dimension.push_back({option, value});  // it is one of the others
      }
    else dimension = {{}, {option}};
    found.push_back(std::move(dimension));
  }
  return found;
}

std::vector<Setting> matrix(const std::vector<Dimension>& dimensions) {
  std::vector<Setting> cells{{}};
  const auto times = [&](const auto& values, const auto& put) {
    std::vector<Setting> more;
    for (const Setting& cell : cells)
      for (const auto& value : values) put(more.emplace_back(cell), value);
    cells = std::move(more);
  };
  for (const Dimension& d : dimensions) times(d, [](Setting& s, const Choice& choice) { s.options.push_back(choice); });
  times(std::vector<const char*>{"shm", "tcp"}, [](Setting& s, const char* v) { s.transport = v; });
  times(std::vector{1u, 2u}, [](Setting& s, unsigned v) { s.threads = v; });
  times(std::vector{1u, 2u, 3u, 5u, 6u, 7u, 8u}, [](Setting& s, unsigned v) {
    const bool by_node = std::ranges::any_of(
        s.options, [](const Choice& c) { return c.size() == 2 && (c[1].starts_with("hybrid") || c[1].starts_with("mirrored")); });
    s.agents = by_node && v > 1 ? 2 : 1;  // on one node the first would be the stage alone
    s.workers = (v + s.agents - 1) / s.agents;
    s.fewer = s.agents * s.workers - v;
  });
  return cells;
}

History draw(std::uint64_t seed, const std::vector<Dimension>& dimensions, unsigned steps) {
  Rng rng{seed};
  History h{.seed = seed, .setting = {}, .events = {}};
  Setting& s = h.setting;
  s.agents = 1 + static_cast<unsigned>(rng.below(2));
  s.workers = 1 + static_cast<unsigned>(rng.below(slots / s.agents));
  s.threads = 1 + static_cast<unsigned>(rng.below(2));
  s.transport = any_of(rng, std::vector<std::string>{"auto", "shm", "tcp"});
  if (rng.chance(0.6)) s.checkpoint_every = 10 + static_cast<unsigned>(rng.below(steps / 10));
  s.coordinator_apart = rng.chance(0.5);

  std::vector<unsigned> at(1 + rng.below(4));
  for (unsigned& step : at) step = 1 + static_cast<unsigned>(rng.below(steps / 2));
  std::sort(at.begin(), at.end());
  for (const unsigned step : at) {
    Event e{.kind = any_kind(rng, s), .step = step};
    // Soon after the one before it as often as not: then it meets what that one has begun.
    const bool follows = !h.events.empty() && rng.chance(0.4);
    if (follows) e.step = 0;
    e.after = Wait{rng.below(follows ? 300 : 60)};
    e.whom = rng.next64();
    e.comes_back = rng.chance(0.7);
    e.away = Wait{rng.below(rng.chance(0.5) ? 100 : 1200)};
    h.events.push_back(e);
  }
  for (const Dimension& d : dimensions) s.options.push_back(any_of(rng, d));  // last: a new one changes nothing else in a history
  return h;
}

std::string to_string(Kind kind) {
  switch (kind) {
    case Kind::worker_killed: return "worker killed";
    case Kind::workers_killed: return "workers killed";
    case Kind::worker_paused: return "worker paused";
    case Kind::agent_killed: return "agent killed";
    case Kind::agent_drained: return "agent drained";
    case Kind::agent_joins: return "agent joins";
    case Kind::coordinator_killed: return "coordinator killed";
  }
  return {};
}

std::string describe(const Setting& s) {
  std::string text = fmt::format("{} x {} workers{}, {} thread{}, {}", s.agents, s.workers,
                                 s.fewer > 0 ? fmt::format(" less {}", s.fewer) : "", s.threads, s.threads == 1 ? "" : "s", s.transport);
  for (const Choice& choice : s.options)
    if (!choice.empty()) text += fmt::format(", {}", fmt::join(choice, " "));
  if (s.checkpoint_every > 0) text += fmt::format(", a checkpoint every {} steps", s.checkpoint_every);
  if (s.coordinator_apart) text += ", coordinator apart";
  return text;
}

std::string describe(const Event& e) {
  const bool goes =
      e.kind == Kind::worker_paused || e.kind == Kind::coordinator_killed || e.kind == Kind::agent_killed || e.kind == Kind::agent_drained;
  const bool returns = e.comes_back || e.kind == Kind::worker_paused || e.kind == Kind::coordinator_killed;
  return fmt::format("{} {} ms after {}{}", to_string(e.kind), e.after.count(), e.step > 0 ? fmt::format("step {}", e.step) : "that",
                     !goes     ? ""
                     : returns ? fmt::format(", back after {} ms", e.away.count())
                               : ", for good");
}

}  // namespace elrun::golden
