#include "checkpoint/tools/listing.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

using State = ListedCheckpoint::State;

ListedCheckpoint listed(const Found& found, const RootFacts& facts, const std::vector<Found>& line) {
  ListedCheckpoint one{.id = found.id};
  if (const auto commit = facts.commits.find(found.id); commit != facts.commits.end()) one.commit = commit->second;
  const bool on_line = std::any_of(line.begin(), line.end(), [&](const Found& f) { return f.id == found.id; });
  const bool is_promised = std::find(facts.acknowledged.begin(), facts.acknowledged.end(), found.id) != facts.acknowledged.end();
  if (!found.unreadable.empty()) {
    one.state = State::unreadable, one.why = found.unreadable;
  } else if (found.quarantined) {
    one.state = State::quarantined;
    if (const auto why = facts.quarantined_for.find(found.id); why != facts.quarantined_for.end()) one.why = why->second;
  } else if (!found.committed) {
    one.state = State::uncommitted;
  } else {
    one.state = !on_line ? State::beside : is_promised ? State::acknowledged : State::on_timeline;
  }
  if (const auto* go = std::get_if<Resumption>(&facts.start)) {
    one.is_chosen = go->from == found.id;
    for (const LookedInto& looked : go->to_mark)
      if (looked.id == found.id && one.state != State::quarantined) one.state = State::damaged, one.why = looked.why;
  }
  return one;
}

std::string first_line(const std::string& text) { return printable(std::string_view{text}.substr(0, text.find('\n'))); }

/// What a start would do, a sentence.
std::string start_text(const WouldStart& start) {
  if (const auto* no = std::get_if<Failure>(&start)) return fmt::format("A start would stop: {}\n", printable(no->what, Lines::many));
  const Resumption& go = std::get<Resumption>(start);
  std::string text = go.from ? fmt::format("A start would go on from step {}, {}: {}.\n", go.from->step, to_string(*go.from), go.why)
                             : fmt::format("A start would begin at step 0: {}.\n", go.why);
  for (const std::string& note : go.notes) text += fmt::format("  {}\n", printable(note, Lines::many));
  return text;
}

}  // namespace

const char* to_string(State state) {
  switch (state) {
    case State::acknowledged: return "acknowledged";
    case State::on_timeline: return "on the timeline";
    case State::beside: return "beside the timeline";
    case State::uncommitted: return "uncommitted";
    case State::damaged: return "damaged";
    case State::quarantined: return "quarantined";
    case State::unreadable: return "unreadable";
    case State::missing: return "acknowledged, but missing";
    case State::given_up: return "given up";
  }
  return "";
}

std::vector<ListedCheckpoint> list_checkpoints(const RootFacts& facts) {
  const std::vector<Found> line = timeline(facts.view.found, facts.view.highest);
  std::vector<ListedCheckpoint> all;
  std::set<CheckpointId> seen;
  const auto add_lost = [&](const CheckpointId& id, State state, std::string why) {
    const auto at = std::find_if(all.begin(), all.end(), [&](const ListedCheckpoint& l) { return l.id == id; });
    if (at != all.end() && at->state == State::uncommitted) at->state = state, at->why = std::move(why);  // its COMMIT is what is gone
    else if (at == all.end()) all.push_back({.id = id, .state = state, .why = std::move(why)});
  };
  for (const Found& f : facts.view.found) all.push_back(listed(f, facts, line));
  for (const Witness& w : missing(facts.view)) add_lost(w.id, State::missing, w.says);
  // An acknowledgement is removed before its checkpoint is: one that is left alone is a loss, whether or not a start minds.
  std::vector<CheckpointId> given_up;
  if (facts.view.highest)
    for (const GivenUp& g : facts.view.highest->gives_up) given_up.push_back(g.id);
  for (const CheckpointId& id : facts.acknowledged) {
    const bool is_given_up = std::find(given_up.begin(), given_up.end(), id) != given_up.end();
    add_lost(id, is_given_up ? State::given_up : State::missing, {});
  }
  std::sort(all.begin(), all.end(), [](const ListedCheckpoint& a, const ListedCheckpoint& b) { return b.id < a.id; });
  return all;
}

std::string listing_text(const RootFacts& facts, std::int64_t now_wall_ns) {
  const std::vector<ListedCheckpoint> all = list_checkpoints(facts);
  std::string text = fmt::format("{}: {}", printable(facts.view.where), count_of(all.size(), "checkpoint"));
  if (facts.run) text += fmt::format(", of {}", printable(to_string(facts.run->author)));
  text += "\n";
  std::vector<std::vector<std::string>> rows{{" ", "step", "fence", "attempt", "age", "size", "world", "state"}};
  for (const ListedCheckpoint& one : all) {
    const auto& commit = one.commit;
    rows.push_back({one.is_chosen ? "*" : " ", fmt::to_string(one.id.step), fmt::to_string(one.id.fence), fmt::to_string(one.id.attempt),
                    commit ? age_text(now_wall_ns - commit->author.wall_ns) : "-", commit ? size_text(commit->total_bytes) : "-",
                    commit ? fmt::to_string(commit->files) : "-",
                    one.why.empty() ? to_string(one.state) : fmt::format("{}: {}", to_string(one.state), first_line(one.why))});
  }
  if (!all.empty()) text += table_text(rows);
  for (const std::string& note : facts.notes) text += fmt::format("{}\n", printable(note, Lines::many));
  text += start_text(facts.start);
  return text;
}

Json listing_json(const RootFacts& facts) {
  Json checkpoints = Json::array();
  for (const ListedCheckpoint& one : list_checkpoints(facts)) {
    Json row{{"checkpoint", to_string(one.id)}, {"step", one.id.step},           {"fence", one.id.fence},
             {"attempt", one.id.attempt},       {"state", to_string(one.state)}, {"chosen", one.is_chosen}};
    if (!one.why.empty()) row["why"] = one.why;
    if (one.commit) {
      row["bytes"] = one.commit->total_bytes, row["world"] = one.commit->files, row["run"] = one.commit->author.run_id;
      row["generation"] = one.commit->author.generation.number, row["saved_ns"] = one.commit->author.wall_ns;
    }
    checkpoints.push_back(std::move(row));
  }
  Json start;
  if (const auto* no = std::get_if<Failure>(&facts.start)) start = {{"stops", no->what}};
  else {
    const Resumption& go = std::get<Resumption>(facts.start);
    start = {{"from", go.from ? Json(to_string(*go.from)) : Json(nullptr)},
             {"step", go.from ? go.from->step : 0},
             {"why", go.why},
             {"notes", go.notes}};
  }
  return {{"root", facts.view.where}, {"checkpoints", std::move(checkpoints)}, {"start", std::move(start)}, {"notes", facts.notes}};
}

std::string size_text(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  constexpr const char* units[] = {"kB", "MB", "GB", "TB", "PB"};
  double size = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  for (; size >= 999.95 && unit + 1 < std::size(units); ++unit) size /= 1000;
  return fmt::format("{:.1f} {}", size, units[unit]);
}

std::string age_text(std::int64_t age_ns) {
  if (age_ns < 0) return "-";
  const std::int64_t s = age_ns / 1'000'000'000;
  if (s < 120) return fmt::format("{} s", s);
  if (s < 7200) return fmt::format("{} min", s / 60);
  if (s < 172'800) return fmt::format("{} h", s / 3600);
  return fmt::format("{} d", s / 86'400);
}

std::string table_text(const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  std::vector<std::size_t> width;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (width.size() <= i) width.push_back(0);
      width[i] = std::max(width[i], row[i].size());
    }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i + 1 == row.size()) text += row[i];
      else text += i < left ? fmt::format("{:<{}}  ", row[i], width[i]) : fmt::format("{:>{}}  ", row[i], width[i]);
    }
    text += "\n";
  }
  return text;
}

std::string document(const Json& value) { return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace elrun::inline v0
