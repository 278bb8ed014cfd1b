#pragma once
/// \file Host state: the program's variables that are rolled back and saved with the step, and how far the job is. Core.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <elrun/result.hpp>

#include "checkpoint/format/model.hpp"
#include "lib/base/bytes.hpp"
#include "lib/job/commit/update_values.hpp"

namespace elrun::inline v0 {

/// The variables that the program registered. Their memory is the program's, until `detach`. Called by the job's thread.
class HostVariables {
 public:
  /// Bytes of all variables, with what goes along with each of them: they travel to a newcomer in one piece, and memory for it is asked for at once.
  static constexpr std::uint64_t bytes_max = 64'000'000;
  /// Throws Error where the name is taken, and where it would be more than `bytes_max`.
  void add(std::string_view name, std::span<std::byte> bytes);
  [[nodiscard]] bool empty() const { return variables_.empty(); }
  /// Of all variables, with what goes along with each.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  /// Remembers what the variables are now.
  void keep();
  /// Sets them to what they were at the last `keep`.
  void put_back();
  /// The program has returned, and its memory may be somebody else's: from now on the variables are this object's own, with what they were at the last `keep`.
  void detach();
  /// What they were at the last `keep`, by name.
  [[nodiscard]] std::vector<Aux> kept() const;
  /// What `kept` of the program's run before this one returned, for `take_inherited`.
  void inherit(std::vector<Aux> kept) { inherited_ = std::move(kept); }
  /// Once all are registered: sets them to what was inherited, if anything was. False: that run had other variables, and nothing was changed.
  [[nodiscard]] bool take_inherited();

  void append_to(std::vector<Aux>& aux) const;
  /// Throws Error where one is missing or has another size.
  void load(const std::vector<Aux>& aux);

 private:
  struct Variable {
    std::string name;
    std::span<std::byte> bytes;
    std::vector<std::byte> kept;
    std::vector<std::byte> own{};  // what `bytes` is of, once the program's memory is gone
  };
  std::vector<Variable> variables_;
  std::uint64_t bytes_ = 0;
  std::optional<std::vector<Aux>> inherited_;
};

/// Entries as bytes, for another member.
[[nodiscard]] ByteVector encode(const std::vector<Aux>& entries);
[[nodiscard]] Result<std::vector<Aux>> decode_host_state(ByteSpan bytes);

/// How far a job is, as a checkpoint holds it, and as a newcomer gets it from another member.
struct JobProgress {
  std::uint64_t applied = 0;
  float loss = 0;                      ///< Of the last decided step.
  std::uint64_t skipped = 0;           ///< Decided steps that updated nothing.
  UpdateValues first_update{};         ///< With which step 0 was decided,
  UpdateValues last_update{};          ///< and the last decided step; not known in checkpoints of earlier versions.
  bool stop_asked = false;             ///< A member asked for the job's end.
  std::uint64_t stopped_of_steps = 0;  ///< The end was decided, for a plan of so many steps. 0: it was not.
  friend bool operator==(const JobProgress&, const JobProgress&) = default;
};
void append_to(std::vector<Aux>& aux, const JobProgress& progress);
/// Throws Error where an entry is missing or has another size.
[[nodiscard]] JobProgress progress_of(const std::vector<Aux>& aux);

}  // namespace elrun::inline v0
