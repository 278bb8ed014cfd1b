#include "checkpoint/staging/save_keys.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/commit/messages.hpp"
#include "checkpoint/commit/store_change.hpp"
#include "lib/base/crc32c.hpp"

namespace elrun::inline v0 {
namespace {

// A save stays in the list for so many more: a writer that was frozen may put a key there although its save is over.
constexpr std::size_t noted_for = 8;

/// What cannot be read was put there by another release, which has its own way to remove keys.
std::vector<NotedSave> noted_in(ByteSpan held) {
  auto saves = decode_noted_saves(held);
  return saves.ok() ? std::move(saves).value() : std::vector<NotedSave>{};
}

bool has(const std::vector<NotedSave>& saves, const NotedSave& save) { return std::find(saves.begin(), saves.end(), save) != saves.end(); }

/// Those that `mine` has replaced. A leader that was frozen has not replaced what was noted after it.
std::vector<NotedSave> replaced_by(const NotedSave& mine, const std::vector<NotedSave>& saves) {
  std::vector<NotedSave> replaced;
  const auto place = std::find(saves.begin(), saves.end(), mine);
  for (auto save = saves.begin(); save != saves.end(); ++save) {
    const bool is_older = std::pair{save->fence, save->step} < std::pair{mine.fence, mine.step};
    const bool is_before = place != saves.end() && save < place;
    if (save->root == mine.root ? is_older : is_before) replaced.push_back(*save);
  }
  return replaced;
}

/// The newest ones, if there are too many: a store that removes nothing for so long has other troubles.
ByteVector within_bounds(std::vector<NotedSave> saves) {
  if (saves.size() > noted_saves_max) saves.erase(saves.begin(), saves.end() - static_cast<std::ptrdiff_t>(noted_saves_max));
  return encode(saves);
}

/// Until the store has no key of it.
Result<void> sweep(Store& store, const NotedSave& save, const std::function<Deadline()>& soon) {
  const SaveKeys keys{save};
  const auto remove_each = [&](const std::string& below, const auto& names) -> Result<void> {
    ELRUN_TRY_ASSIGN(std::uint64_t left, store.num_keys(below, soon()));
    for (std::size_t i = 0; left > 0 && i < names.size(); ++i) {
      ELRUN_TRY_ASSIGN(const bool was_there, store.remove(names[i], soon()));
      left -= was_there && left > 0;
    }
    return {};
  };
  ELRUN_TRY_ASSIGN(const std::uint64_t all, store.num_keys(keys.all(), soon()));
  if (all == 0) return {};
  for (unsigned attempt = 1; attempt <= save_tries_max; ++attempt) {
    std::vector<std::string> names{keys.ticket(attempt), keys.outcome(attempt)};
    for (std::uint32_t rank = 1; rank < save.world; ++rank) names.push_back(keys.vote(attempt, rank));
    ELRUN_TRY(remove_each(keys.all_of(attempt), names));
  }
  std::vector<std::string> names;
  for (std::uint32_t rank = 0; rank < save.world; ++rank) names.push_back(keys.gone(rank));
  return remove_each(keys.all_gone(), names);
}

}  // namespace

NotedSave noted_save(const SlotRecord& record) {
  return {crc32c(as_bytes(record.directory)), record.ownership.fence, record.step, record.world};
}

Result<void> tell_gone(Store& store, const NotedSave& save, std::uint32_t rank, const Failure& why, Deadline deadline) {
  Failure named = why;
  named.rank = Rank{rank};
  const SaveKeys keys{save};
  ELRUN_TRY(store.set(keys.gone(rank), encode(PartVote{.rank = rank, .refusal = std::move(named)}), deadline));
  return note_save(store, save, deadline);
}

Result<void> tell_broken_promise(Store& store, const SlotOwner& owner, Deadline deadline) {
  const BrokenPromise mine{owner.generation, owner.rank,
                           Failure{.code = Code::peer_lost,
                                   .remedy = Remedy::retry,
                                   .what = "this worker ended when all were about to begin a checkpoint, before it had begun its part",
                                   .rank = Rank{owner.rank}}};
  const auto next = [&](ByteSpan held) -> std::optional<ByteVector> {
    const auto before = decode_broken_promise(held);
    // One of a later generation: those who wait for this part have theirs behind them. One of the same: it says enough.
    if (before.ok() && (before->generation == owner.generation || before->generation.number > owner.generation.number)) return {};
    return encode(mine);
  };
  return change_key(store, broken_promise_key, next, deadline);
}

std::optional<Failure> broken_promise(Store& store, const Generation& generation, Deadline deadline) {
  const auto count = store.num_keys(broken_promise_key, deadline);
  if (!count.ok() || *count == 0) return {};
  const auto held = store.get(broken_promise_key, deadline);
  if (!held.ok()) return {};
  auto broken = decode_broken_promise(*held);
  if (!broken.ok() || broken->generation != generation) return {};
  return std::move(broken->why);
}

std::optional<SaveOutcome> told_outcome(Store& store, const NotedSave& save, const std::function<Deadline()>& deadline) {
  const SaveKeys keys{save};
  for (unsigned attempt = save_tries_max; attempt >= 1; --attempt) {
    const auto bytes = store.get(keys.outcome(attempt), deadline());
    if (!bytes.ok()) continue;
    const auto said = decode_said(*bytes);
    if (!said.ok() || (said->failure && said->again)) continue;
    return SaveOutcome{save.fence, save.step, said->failure ? std::string{} : std::string{as_text(said->value)}, said->failure};
  }
  return {};
}

Result<void> note_save(Store& store, const NotedSave& save, Deadline deadline) {
  const auto next = [&](ByteSpan held) -> std::optional<ByteVector> {
    std::vector<NotedSave> saves = noted_in(held);
    if (has(saves, save)) return {};
    saves.push_back(save);
    return within_bounds(std::move(saves));
  };
  return change_key(store, noted_saves_key, next, deadline);
}

void sweep_saves(Store& store, const NotedSave& mine, const std::function<Deadline()>& soon) {
  const auto held = store.get(noted_saves_key, soon());
  if (!held.ok()) return;
  std::vector<NotedSave> swept;
  for (const NotedSave& save : replaced_by(mine, noted_in(*held))) {
    if (!sweep(store, save, soon).ok()) break;  // and no other one: each would wait as long
    swept.push_back(save);
  }
  const auto next = [&](ByteSpan now) -> std::optional<ByteVector> {
    std::vector<NotedSave> saves = noted_in(now);
    if (!has(saves, mine)) saves.push_back(mine);  // it may have put a key there after another leader had swept it
    for (auto save = saves.begin(); save != saves.end() && saves.size() > noted_for;)
      save = has(swept, *save) ? saves.erase(save) : save + 1;
    return within_bounds(std::move(saves));
  };
  (void)change_key(store, noted_saves_key, next, soon());
}

}  // namespace elrun::inline v0
