#pragma once
/// \file RollCall and EndOfJob: which ranks of an operator's job have come, which are missing, and which have said that it is over. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/ids.hpp>

#include "lib/link/message.hpp"

namespace elrun::inline v0 {

/// `rank 3`, `ranks 1, 4, 5`, `ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more`.
[[nodiscard]] std::string list_ranks(std::span<const Rank> ranks);

/// Once complete it stays so: a member that leaves then is a loss, before that it may come again.
class RollCall {
 public:
  using Visitor = std::uint64_t;  ///< Numbers a connection.
  /// `proof`: what each worker has to show in `Hello::proof`; empty: none has a token.
  explicit RollCall(WorldSize world, std::string proof = {}) : world_{world}, proof_{std::move(proof)} {}
  /// The connection of a member that comes again, before the world is complete, on this new one: the other end has closed the earlier one, and this
  /// end has not seen it yet. It has to `leave` before the new one arrives.
  [[nodiscard]] std::optional<Visitor> earlier_of(const Hello& hello) const;
  /// Why this worker cannot be a member; nothing when it is one now.
  /// `from`: its address, for people.
  [[nodiscard]] std::optional<Failure> arrive(Visitor visitor, const Hello& hello, std::string from = {});
  /// The visitor is gone. Its rank, when that is a loss.
  std::optional<Rank> leave(Visitor visitor);
  [[nodiscard]] bool complete() const { return complete_; }
  [[nodiscard]] std::vector<Rank> missing() const;
  [[nodiscard]] std::optional<Rank> rank_of(Visitor visitor) const;
  struct Member {
    Visitor visitor;
    std::uint64_t pid;
    std::uint64_t session;
    std::string from;
  };
  [[nodiscard]] const std::map<Rank, Member>& members() const { return members_; }

 private:
  /// Why no such worker can be a member, whoever is here.
  [[nodiscard]] std::optional<Failure> unfit(const Hello& hello) const;

  WorldSize world_;
  std::string proof_;
  std::map<Rank, Member> members_;
  std::map<Visitor, Rank> ranks_;
  bool complete_ = false;
};

/// Who of an operator's job has said that it is over. Rank 0 takes the store with it when it exits, so it is told last.
class EndOfJob {
 public:
  /// Once one rank has said that all decided the end, the job has succeeded, whatever dies.
  void say(Rank rank, RollCall::Visitor visitor) {
    reported_.insert(rank);
    if (rank == Rank{0}) host_ = visitor;
  }
  [[nodiscard]] bool has_begun() const { return !reported_.empty(); }
  /// Rank 0's visitor, when it and all `members` that are there have said so. Once; then nothing.
  [[nodiscard]] std::optional<RollCall::Visitor> release_host(const std::map<Rank, RollCall::Member>& members);

 private:
  std::set<Rank> reported_;
  std::optional<RollCall::Visitor> host_;  // waits to be told
};

}  // namespace elrun::inline v0
