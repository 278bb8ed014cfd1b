#include "lib/link/roll_call.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lib/base/bytes.hpp"
#include "lib/base/digest.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t listed_max = 8;  // a line stays readable in a world of thousands

Sha256 digest_of(std::string_view text) { return sha256(as_bytes(text)); }  // of one length, and no byte tells of the proof's

Failure mistaken(Code code, std::string what) { return {.code = code, .remedy = Remedy::fix_config, .what = std::move(what)}; }

}  // namespace

std::string list_ranks(std::span<const Rank> ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), listed_max); ++i) text += fmt::format("{} {}", i == 0 ? "" : ",", ranks[i].value());
  if (ranks.size() > listed_max) text += fmt::format(" and {} more", ranks.size() - listed_max);
  return text;
}

std::optional<Failure> RollCall::unfit(const Hello& hello) const {
  if (auto failure = incompatible(hello)) return failure;
  if (!equal_constant_time(digest_of(hello.proof), digest_of(proof_)))
    return mistaken(Code::refused, fmt::format("rank {} {}: give all ranks the same ELRUN_RDZV_TOKEN_FILE, or none", hello.rank,
                                               hello.proof.empty() ? "shows no token, and rank 0 has one"
                                               : proof_.empty()    ? "has a token, and rank 0 has none"
                                                                   : "has another token than rank 0"));
  if (hello.world != world_.value()) {
    return mistaken(Code::mismatch, fmt::format("rank {} has WORLD_SIZE={}, rank 0 has WORLD_SIZE={}: all workers need the same",
                                                hello.rank, hello.world, world_.value()));
  }
  if (hello.rank >= world_.value()) {
    return mistaken(Code::mismatch, fmt::format("rank {} is not below WORLD_SIZE={}", hello.rank, world_.value()));
  }
  return {};
}

std::optional<RollCall::Visitor> RollCall::earlier_of(const Hello& hello) const {
  if (complete_ || hello.session == 0 || unfit(hello)) return {};
  const auto at = members_.find(Rank{hello.rank});
  return at != members_.end() && at->second.session == hello.session ? std::optional{at->second.visitor} : std::nullopt;
}

std::optional<Failure> RollCall::arrive(Visitor visitor, const Hello& hello, std::string from) {
  if (auto failure = unfit(hello)) return failure;
  if (rank_of(visitor)) return mistaken(Code::protocol, fmt::format("rank {} said hello twice", hello.rank));
  if (const auto at = members_.find(Rank{hello.rank}); at != members_.end()) {
    return mistaken(Code::already_exists, fmt::format("two workers have RANK={}: process {} at {} is here, process {} at {} has come",
                                                      hello.rank, at->second.pid, at->second.from, hello.pid, from));
  }
  if (complete_) {
    return mistaken(
        Code::refused,
        fmt::format("rank {} comes too late: the world was complete and has lost it since; this job is not elastic, start it again",
                    hello.rank));
  }
  members_.emplace(Rank{hello.rank}, Member{visitor, hello.pid, hello.session, std::move(from)});
  ranks_.emplace(visitor, Rank{hello.rank});
  complete_ = members_.size() == world_.value();
  return {};
}

std::optional<Rank> RollCall::leave(Visitor visitor) {
  const auto rank = rank_of(visitor);
  if (!rank) return {};
  members_.erase(*rank);
  ranks_.erase(visitor);
  return complete_ ? rank : std::nullopt;
}

std::vector<Rank> RollCall::missing() const {
  std::vector<Rank> ranks;
  for (std::uint32_t rank = 0; rank < world_.value(); ++rank) {
    if (!members_.contains(Rank{rank})) ranks.push_back(Rank{rank});
  }
  return ranks;
}

std::optional<Rank> RollCall::rank_of(Visitor visitor) const {
  const auto at = ranks_.find(visitor);
  if (at == ranks_.end()) return {};
  return at->second;
}

std::optional<RollCall::Visitor> EndOfJob::release_host(const std::map<Rank, RollCall::Member>& members) {
  if (!host_ || !std::ranges::all_of(members, [&](const auto& entry) { return reported_.contains(entry.first); })) return {};
  return std::exchange(host_, std::nullopt);
}

}  // namespace elrun::inline v0
