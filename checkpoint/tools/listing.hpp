#pragma once
/// \file Core: the checkpoints of a root as a person reads them, and what a start would do with them.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/commit/resume.hpp"
#include "checkpoint/format/json.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {

/// What a start would come to, as far as the storage alone tells: a choice, or why it would stop.
using WouldStart = std::variant<Resumption, Failure>;

/// All that is known of a root, nothing of it decided here.
struct RootFacts {
  RootView view;
  std::vector<CheckpointId> acknowledged{};
  std::map<CheckpointId, CommitRecord> commits{};         ///< Of those whose COMMIT can be read.
  std::map<CheckpointId, std::string> quarantined_for{};  ///< Why, as the mark says.
  std::optional<RunRecord> run{};                         ///< RUN.json, or what stands in for it.
  WouldStart start{Resumption{}};
  std::vector<std::string> notes{};  ///< About files that were passed over on the way.
};

/// One checkpoint of the list.
struct ListedCheckpoint {
  enum class State : std::uint8_t {
    acknowledged,  ///< On the timeline, and promised to the job.
    on_timeline,   ///< Committed; the crash came before the acknowledgement.
    beside,        ///< Committed, and not on the timeline: by a job that had lost the root, or passed over by a later start.
    uncommitted,
    damaged,  ///< A start would mark it.
    quarantined,
    unreadable,
    missing,   ///< Acknowledged, and not there.
    given_up,  ///< The same, and a person has given it up.
  };
  CheckpointId id;
  State state = State::uncommitted;
  std::string why{};  ///< Damaged, quarantined, unreadable, missing.
  std::optional<CommitRecord> commit{};
  bool is_chosen = false;  ///< A start would go on from it.
};
[[nodiscard]] const char* to_string(ListedCheckpoint::State state);

/// Newest first.
[[nodiscard]] std::vector<ListedCheckpoint> list_checkpoints(const RootFacts& facts);

[[nodiscard]] std::string listing_text(const RootFacts& facts, std::int64_t now_wall_ns);
[[nodiscard]] Json listing_json(const RootFacts& facts);

// --- words that all texts about checkpoints use ---

/// `1.5 GB`, in powers of 1000.
[[nodiscard]] std::string size_text(std::uint64_t bytes);
/// `3 min`, `2 h`, `5 d`; `-` for what lies in the future.
[[nodiscard]] std::string age_text(std::int64_t age_ns);
/// Columns as wide as their widest cell; the first `left` are aligned to the left, and so is the last.
[[nodiscard]] std::string table_text(const std::vector<std::vector<std::string>>& rows, std::size_t left = 0);
/// Text of a JSON document; what is no UTF-8 is replaced.
[[nodiscard]] std::string document(const Json& value);

}  // namespace elrun::inline v0
