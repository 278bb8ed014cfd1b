#include "checkpoint/commit/resume.hpp"

#include <algorithm>
#include <ctime>

#include <fmt/format.h>

#include "checkpoint/format/names.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/wall_time.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t told_max = 4;  // witnesses in one message

bool same_root(const std::string& a, const std::string& b) { return a.empty() || b.empty() || a == b; }

bool is_foreign(const Witness& w, const RootView& view) { return w.is_outside && !same_root(w.root, view.root); }

/// A later start has looked at it already, and published what it goes on from.
bool is_settled(const Witness& w, const RootView& view) {
  if (!view.highest) return false;
  const FenceRecord& fence = *view.highest;
  for (const GivenUp& g : fence.gives_up)
    if (g.id == w.id && same_root(g.root, w.root)) return true;
  if (std::binary_search(fence.inherits.begin(), fence.inherits.end(), w.id)) return false;
  // Fences of two roots do not compare: the number of one outside counts only where it is known to be of this root.
  if (w.is_outside && (w.root.empty() || w.root != view.root)) return false;
  return w.id.fence < fence.number;
}

bool is_there(const Witness& w, const RootView& view, const std::vector<Found>& line) {
  if (is_foreign(w, view)) return false;
  if (!line.empty() && w.id < line.back().id) return true;  // retention may have removed it since
  return std::any_of(view.found.begin(), view.found.end(),
                     [&](const Found& f) { return f.id == w.id && (f.committed || f.quarantined || !f.unreadable.empty()); });
}

std::string holds(const RootView& view, const std::vector<Found>& line, const std::vector<Witness>& lost) {
  if (std::any_of(lost.begin(), lost.end(), [&](const Witness& w) { return is_foreign(w, view); }))
    return fmt::format("checkpoint root {} is another one, {}", view.where, view.root);
  if (line.empty()) return fmt::format("checkpoint root {} holds no checkpoint of this job", view.where);
  return fmt::format("checkpoint root {} holds nothing newer than {}", view.where, to_string(line.back().id));
}

std::string told(const std::vector<Witness>& lost) {
  std::string text;
  for (std::size_t i = 0; i < std::min(lost.size(), told_max); ++i) text += "\n  " + lost[i].says;
  if (lost.size() > told_max) text += fmt::format("\n  and {} more", lost.size() - told_max);
  return text;
}

std::string consequence(std::optional<CheckpointId> usable) {
  return usable ? fmt::format("goes on from step {}", usable->step) : std::string{"begins at step 0"};
}

std::string lines(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& line : all) text += "\n  " + line;
  return text;
}

std::vector<GivenUp> given_up_before(const RootView& view) { return view.highest ? view.highest->gives_up : std::vector<GivenUp>{}; }

bool names(const LossName& name, const CheckpointId& id) { return name.step == id.step && name.fence.value_or(id.fence) == id.fence; }
LossName name_of(const CheckpointId& id) { return {id.step, id.fence}; }

/// The newest that is lost: what a person has to name. Nobody knows a step of a root that lost its fences, so that one is step 0.
CheckpointId newest_loss(const RootView& view, const std::vector<Found>& line, const std::vector<Witness>& lost, bool none_usable) {
  CheckpointId newest{0, view.newest_fence, 1};
  if (!lost.empty()) newest = std::max(newest, lost.front().id);
  if (none_usable) newest = std::max(newest, line.back().id);
  return newest;
}

/// Also what lies there without a COMMIT: of roots without acknowledgements nobody knows whether it had one, so retention must not
/// take it for a leftover. `unusable`: what is there, and is given up, too.
std::vector<GivenUp> giving_up(const RootView& view, const std::vector<Witness>& lost, const std::vector<CheckpointId>& unusable = {}) {
  std::vector<GivenUp> all = given_up_before(view);
  const auto add = [&](GivenUp g) {
    if (std::find(all.begin(), all.end(), g) == all.end()) all.push_back(std::move(g));
  };
  for (const Found& f : view.found)
    if (!f.committed) add({f.id, view.root});
  for (auto w = lost.rbegin(); w != lost.rend(); ++w) add({w->id, w->root.empty() && !w->is_outside ? view.root : w->root});
  for (const CheckpointId& id : unusable) add({id, view.root});
  if (all.size() > given_up_max) all.erase(all.begin(), all.end() - given_up_max);
  return all;
}

Failure must_change(Code code, std::string what) { return {.code = code, .remedy = Remedy::fix_config, .what = std::move(what)}; }

std::string utc(std::int64_t wall_ns) {
  const std::time_t seconds = static_cast<std::time_t>(wall_time(wall_ns).seconds);
  std::tm parts{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "an unknown time";
  char text[40];
  return std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts) > 0 ? text : "an unknown time";
}

}  // namespace

Witness witness(const Acknowledgement& record, const std::string& who, bool is_outside) {
  return {record.id, record.root,
          fmt::format("{} says that {} was acknowledged at {} by {}", who, to_string(record.id), utc(record.author.wall_ns),
                      to_string(record.author)),
          is_outside, record.author.generation};
}

std::vector<Witness> missing(const RootView& view) {
  const std::vector<Found> line = timeline(view.found, view.highest);
  std::vector<Witness> lost;
  for (const Witness& w : view.witnesses)
    if (!is_settled(w, view) && !is_there(w, view, line)) lost.push_back(w);
  std::stable_sort(lost.begin(), lost.end(), [](const Witness& a, const Witness& b) { return b.id < a.id; });
  return lost;
}

std::variant<GoOn, Failure> resume(const RootView& view, std::optional<CheckpointId> usable, const std::vector<std::string>& passed_over,
                                   std::optional<LossName> begin_anew) {
  const std::vector<Witness> lost = missing(view);
  const std::vector<Found> line = timeline(view.found, view.highest);
  const bool none_usable = !line.empty() && !usable;
  const std::vector<GivenUp> before = given_up_before(view);
  const bool used_up = begin_anew && std::any_of(before.begin(), before.end(), [&](const GivenUp& g) { return names(*begin_anew, g.id); });
  const std::string option = begin_anew ? "--begin_anew " + to_string(*begin_anew) : std::string{};

  if (lost.empty() && !none_usable && view.hollow.empty()) {
    if (used_up) return GoOn{before, {fmt::format("{} has done its work before, and does nothing now: leave it out", option)}};
    if (!begin_anew) return GoOn{before, {}};
    return must_change(
        Code::invalid_argument,
        fmt::format("{} gives up a checkpoint that cannot be found, but nothing is missed under {}: {}; leave the option out", option,
                    view.where,
                    usable ? fmt::format("the newest checkpoint is {}", to_string(*usable)) : std::string{"nobody knows of a checkpoint"}));
  }

  const CheckpointId newest = newest_loss(view, line, lost, none_usable);
  std::string why;
  if (!lost.empty())
    why = fmt::format("the checkpoint of step {} was acknowledged and cannot be found; {}:{}", lost.front().id.step,
                      holds(view, line, lost), told(lost));
  if (!view.hollow.empty())
    why +=
        fmt::format("{}checkpoint root {} {}: nobody can tell which checkpoints were acknowledged there, and whether newer ones are gone",
                    why.empty() ? "" : "\n", view.where, view.hollow);
  if (none_usable) {
    if (!why.empty()) why += "\n";
    why += fmt::format("none of the {} checkpoints under {} can be used:{}", line.size(), view.where, lines(passed_over));
  }
  // A step alone could be left over from an earlier loss. Only a fence can tell that nothing was given up at that step before.
  const bool is_exact = begin_anew && begin_anew->fence.has_value();
  const bool is_named = begin_anew && names(*begin_anew, newest);
  if (is_named && !used_up && (is_exact || view.highest)) {
    std::vector<CheckpointId> unusable;
    if (lost.empty() && !none_usable) unusable.push_back(newest);
    if (none_usable)
      for (const Found& f : line) unusable.push_back(f.id);
    GoOn go{giving_up(view, lost, unusable), {}};
    go.notes.push_back(fmt::format("{} is given up, as {} says; the job {}; nothing is deleted. {}",
                                   newest.step > 0 ? fmt::format("step {}", newest.step) : std::string{"what cannot be found"}, option,
                                   consequence(usable), why));
    return go;
  }
  const std::string exact = to_string(name_of(newest));
  if (used_up) why += fmt::format("\n{} was already used for an earlier loss of that step. It does not cover this one", option);
  else if (begin_anew && begin_anew->step == newest.step && !is_named)
    why += fmt::format("\n{} names another checkpoint of that step than the one that is lost, {}", option, exact);
  else if (is_named)
    why += fmt::format(
        "\n{} may be left over from an earlier loss: nothing under {} says what was given up before. The name of this loss is {}", option,
        view.where, exact);
  else if (begin_anew)
    why += fmt::format("\n{} names another step than the newest that is known, {} (its name is {})", option, newest.step, exact);
  return must_change(
      lost.empty() && none_usable ? Code::corrupt : Code::not_found,
      fmt::format(
          "{}\nA job never starts over or goes back silently. Restore the missing files (is the storage mounted on every node?), or "
          "run with --begin_anew {} (ELRUN_BEGIN_ANEW={} without elrun). The job then {}, and nothing is deleted",
          why, exact, exact, consequence(usable)));
}

namespace {

void add_ignored(const RootView& view, std::vector<std::string>& notes) {
  if (!timeline(view.found, view.highest).empty() ||
      std::none_of(view.found.begin(), view.found.end(), [](const Found& f) { return f.committed; }))
    return;
  notes.push_back(fmt::format(
      "checkpoints under {} were committed by jobs that had lost the root, or were given up; they are ignored, and kept", view.where));
}

/// A start that passes over a checkpoint has said so, once, in its own log. All later ones say it, too: nothing is gone back in silence.
void add_newer_beside(const RootView& view, const CheckpointId& from, const std::vector<GivenUp>& given_up,
                      std::vector<std::string>& notes) {
  const std::vector<Found> line = timeline(view.found, view.highest);
  for (const Found& f : view.found) {
    const auto is_same = [&](const auto& other) { return other == f.id; };
    if (!f.committed || f.quarantined || !f.unreadable.empty() || f.id.step <= from.step) continue;
    if (std::ranges::any_of(line, is_same, &Found::id) || std::ranges::any_of(given_up, is_same, &GivenUp::id)) continue;
    notes.push_back(fmt::format(
        "checkpoint {} is newer but is not used: an earlier start skipped it, or a job saved it after losing the root. It is kept",
        to_string(f.id)));
  }
}

/// What a walk back from the newest came to.
struct Walk {
  std::optional<LookedInto> choice{};
  std::vector<std::string> passed_over{}, suspects{};
  std::vector<LookedInto> to_mark{};
  bool is_suspect = false;  // the choice
};

/// One that has not been looked into, or the whole walk; or one of which nobody knows yet whether it is whole.
std::variant<LookInto, Walk, Failure> walk_back(const Findings& findings) {
  const std::vector<Found> line = timeline(findings.view.found, findings.view.highest);
  Walk walk;
  std::optional<LookedInto> newest_suspect;
  std::string of_newest_suspect;
  for (auto f = line.rbegin(); f != line.rend() && !walk.choice; ++f) {
    const std::string name = to_string(f->id);
    const bool is_marked = f->quarantined && !ELRUN_PLANTED(quarantine_ignored);
    const auto rejected = std::ranges::find(findings.rejected, f->id, &Rejected::id);
    if (is_marked || rejected != findings.rejected.end()) {
      const std::string& seen = rejected != findings.rejected.end() ? rejected->why : f->damage;
      walk.passed_over.push_back(
          fmt::format("checkpoint {} is passed over: it was found damaged before{}", name, seen.empty() ? "" : " (" + seen + ")"));
      continue;
    }
    const auto at = std::find_if(findings.looked.begin(), findings.looked.end(), [&](const LookedInto& l) { return l.id == f->id; });
    if (at == findings.looked.end()) return LookInto{f->id};
    const auto suspect = std::find_if(findings.suspects.begin(), findings.suspects.end(), [&](const Suspect& s) { return s.id == f->id; });
    switch (at->as) {
      case LookedInto::As::removed: break;
      case LookedInto::As::damaged:
        walk.to_mark.push_back(*at);
        walk.passed_over.push_back(fmt::format("checkpoint {} cannot be used, going back to the one before it: {}", name, at->why));
        break;
      case LookedInto::As::unreadable:
        if (ELRUN_PLANTED(unreadable_passed_over)) break;
        return cannot_be_read(findings.view.where, f->id, at->why);
      case LookedInto::As::whole:
        if (suspect == findings.suspects.end()) {
          walk.choice = *at;
          break;
        }
        if (!newest_suspect) newest_suspect = *at, of_newest_suspect = suspect->says;
        walk.suspects.push_back(
            fmt::format("checkpoint {} is whole, but passed over: {}. It is kept, beside the timeline", name, suspect->says));
    }
  }
  if (walk.choice || !newest_suspect) return walk;
  walk.choice = newest_suspect;
  walk.is_suspect = true;
  walk.suspects = {fmt::format("checkpoint {} is suspect, but no older one is whole, so the job goes on from it once more: {}",
                               to_string(newest_suspect->id), of_newest_suspect)};
  return walk;
}

std::string reason(const Walk& walk) {
  if (!walk.choice) return "there is no checkpoint";
  if (walk.is_suspect) return "it is suspect, but no older one is whole";
  const std::size_t newer = walk.passed_over.size() + walk.suspects.size();
  if (newer == 0) return "the newest checkpoint";
  return fmt::format("{} passed over", newer == 1 ? std::string{"a newer one is"} : fmt::format("{} newer ones are", newer));
}

}  // namespace

Failure cannot_be_read(const std::string& root, const CheckpointId& id, std::string_view why) {
  const std::string name = to_string(id);
  return {
      Code::io, Remedy::retry,
      fmt::format(
          "checkpoint {} under {} cannot be read: {}. It may be whole, so the job goes back to no older one: bring the storage back (its server, "
          "the network to it, its disks, its mount on every node). Only where it can never be read again, pass it over by hand: touch {}/{}/{}/{}",
          name, root, why, root, checkpoints_directory, name, quarantine_file)};
}

std::vector<CheckpointId> inheritance(const RootView& view, std::optional<CheckpointId> newest) {
  std::vector<Found> line = timeline(view.found, view.highest);
  std::erase_if(line, [&](const Found& f) { return (f.quarantined && !ELRUN_PLANTED(quarantine_ignored)) || !newest || *newest < f.id; });
  const auto is_known = [&](const CheckpointId& id) {
    return std::any_of(view.witnesses.begin(), view.witnesses.end(), [&](const Witness& w) { return w.id == id; });
  };
  while (!line.empty() && !line.back().unreadable.empty() && !is_known(line.back().id)) line.pop_back();
  std::vector<CheckpointId> ids;
  for (const Found& f : line) ids.push_back(f.id);
  return ids;
}

std::variant<LookInto, Resumption, Failure> decide(const Findings& findings) {
  auto walked = walk_back(findings);
  if (const auto* next = std::get_if<LookInto>(&walked)) return *next;
  if (auto* no = std::get_if<Failure>(&walked)) return std::move(*no);
  Walk& walk = std::get<Walk>(walked);
  const std::optional<CheckpointId> from = walk.choice ? std::optional{walk.choice->id} : std::nullopt;
  auto allowed = resume(findings.view, from, walk.passed_over, findings.begin_anew);
  if (auto* no = std::get_if<Failure>(&allowed)) return std::move(*no);
  GoOn& go = std::get<GoOn>(allowed);

  Resumption result{.from = from, .why = reason(walk), .to_mark = std::move(walk.to_mark), .gives_up = std::move(go.gives_up)};
  result.manifest_crc = walk.choice ? walk.choice->manifest_crc : 0;
  result.inherits = inheritance(findings.view, from);
  result.notes = std::move(walk.passed_over);
  for (std::vector<std::string>* more : {&walk.suspects, &go.notes})
    for (std::string& note : *more) result.notes.push_back(std::move(note));
  const std::uint64_t step = from ? from->step : 0;
  if (findings.decided > step) {
    result.steps_again = findings.decided - step;
    result.notes.push_back(
        result.notes.empty()
            ? fmt::format(
                  "the job was at step {} and goes on from step {}: no checkpoint holds the {} steps between, and they are done again",
                  findings.decided, step, result.steps_again)
            : fmt::format("the job was at step {} and goes on from step {}: the {} steps between are done again", findings.decided, step,
                          result.steps_again));
  }
  add_ignored(findings.view, result.notes);
  if (from) add_newer_beside(findings.view, *from, result.gives_up, result.notes);
  return result;
}

std::variant<GoOn, Failure> save_on(const RootView& view) {
  const std::vector<Witness> lost = missing(view);
  std::vector<std::string> notes;
  if (!view.hollow.empty())
    notes.push_back(
        fmt::format("checkpoint root {} {}, but the job has its state and saves on; nothing is deleted", view.where, view.hollow));
  const bool is_bare = view.found.empty() && !view.highest && view.root.empty();
  if (lost.empty() && is_bare && !view.hollow.empty())
    return must_change(Code::not_found, fmt::format("checkpoint root {} {}: mount it", view.where, view.hollow));
  add_ignored(view, notes);
  if (lost.empty()) return GoOn{given_up_before(view), std::move(notes)};
  if (is_bare || std::any_of(lost.begin(), lost.end(), [&](const Witness& w) { return is_foreign(w, view); }))
    return must_change(
        Code::not_found,
        fmt::format(
            "the checkpoint of step {} was acknowledged and cannot be found; {}: was the checkpoint root removed or unmounted while "
            "the job runs? Put it back:{}",
            lost.front().id.step, holds(view, timeline(view.found, view.highest), lost), told(lost)));
  notes.push_back(fmt::format(
      "the checkpoint of step {} was acknowledged and cannot be found, but the job has its state and saves on; nothing is deleted:{}",
      lost.front().id.step, told(lost)));
  return GoOn{giving_up(view, lost), std::move(notes)};
}

}  // namespace elrun::inline v0
