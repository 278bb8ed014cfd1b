#include "checkpoint/commit/own_fence.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/storage/storage.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr int claim_tries_max = 64;

Result<ClaimRecord> read_claim(const CheckpointRoot& root, FenceNumber number) {
  const std::string name = name_in(fences_directory, claim_name(number));
  ELRUN_TRY_ASSIGN(const auto text, root.tier().get_all(name, record_bytes_max));
  return decode_claim(text, root.where(name));
}

/// Whose fence that is; nothing where its claim cannot be read.
std::optional<Author> owner_of(const CheckpointRoot& root, FenceNumber number) {
  const auto claim = read_claim(root, number);
  return claim.ok() ? std::optional{claim->author} : std::nullopt;
}

}  // namespace

/// Whose claim is damaged or gone is nobody's that is known, as for a save. A storage that does not answer says nothing.
Result<void> OwnFence::check_not_overtaken(const CheckpointRoot& root) const {
  if (last_ == 0) return {};
  ELRUN_TRY_ASSIGN(const auto numbers, find_fences(root.tier()));
  if (numbers.empty() || numbers.back() <= last_) return {};
  const auto claim = read_claim(root, numbers.back());
  if (!claim.ok() && claim.failure().code != Code::corrupt && claim.failure().code != Code::not_found)
    return root.of_reading(Result<void>{claim.failure()});
  const auto owner = claim.ok() ? std::optional{claim->author} : std::nullopt;
  Failure why = superseded({numbers, owner}, last_, root.author(), root.where());
  return why.code == Code::refused ? Result<void>{std::move(why)} : Result<void>{};  // its own: `may_claim`
}

Result<void> OwnFence::claim(const CheckpointRoot& root, FenceNumber above) {
  number_ = 0;
  for (int tries = 0; tries < claim_tries_max; ++tries) {
    ELRUN_TRY_ASSIGN(const FenceNumber found, highest_fence(root.tier()));
    ELRUN_TRY(check_not_overtaken(root));  // after `found` was read, so no fence in it goes unchecked
    if (seen_ && found > *seen_) return superseded({{found}, owner_of(root, found)}, last_, root.author(), root.where());
    if (found > 0) ELRUN_TRY(may_claim(found, owner_of(root, found), root.author(), root.where()));
    const FenceNumber highest = std::max(found, above);
    if (highest >= fence_max)
      return Failure{Code::exhausted, Remedy::fix_config,
                     fmt::format("{} has used up its fence numbers; use another directory", root.where())};
    const ClaimRecord record{highest + 1, root.author()};
    auto claimed = root.tier().publish(name_in(fences_directory, claim_name(record.number)), as_bytes(encode(record)));
    if (claimed.ok()) return seen_.reset(), last_ = number_ = record.number, Result<void>{};
    if (claimed.failure().code != Code::already_exists) return claimed;
  }
  return Failure{Code::exhausted, Remedy::retry,
                 fmt::format("{} others claimed a fence of {} first, one after the other", claim_tries_max, root.where())};
}

Result<void> OwnFence::make_durable(const CheckpointRoot& root, std::vector<CheckpointId>& inherits,
                                    std::optional<CheckpointId> resumed_from) const {
  ELRUN_TRY_ASSIGN(const auto acknowledged, find_acknowledged(root.tier()));
  for (auto id = inherits.begin(); id != inherits.end();) {
    const bool is_durable = std::binary_search(acknowledged.begin(), acknowledged.end(), *id);
    auto synced = is_durable ? Result<void>{} : root.tier().make_durable(checkpoint_directory(*id));
    if (!synced.ok() && *id == resumed_from) return synced;
    id = synced.ok() ? id + 1 : inherits.erase(id);
  }
  return {};
}

Result<void> OwnFence::publish(const CheckpointRoot& root, const std::vector<CheckpointId>& inherits,
                               std::optional<CheckpointId> resumed_from, std::vector<GivenUp> gives_up) {
  given_up_ = std::move(gives_up);
  const FenceRecord record{.number = number_,
                           .author = root.author(),
                           .world = root.saver().world.value(),
                           .inherits = inherits,
                           .resumed_from = resumed_from,
                           .gives_up = given_up_};
  return root.tier().publish(name_in(fences_directory, fence_name(number_)), as_bytes(encode(record)));
}

Result<FencesSeen> OwnFence::look(const CheckpointRoot& root) const {
  if (number_ == 0) return Failure{Code::refused, Remedy::rejoin, "this process has not claimed a fence of the checkpoint root"};
  FencesSeen seen;
  ELRUN_TRY_ASSIGN(seen.numbers, root.of_reading(find_fences(root.tier())));
  if (!seen.numbers.empty() && seen.numbers.back() > number_) seen.newest = owner_of(root, seen.numbers.back());
  else if (!seen.numbers.empty() && seen.numbers.back() == number_)
    seen.newest = root.author();  // a save of our own earlier fence asks, too
  return seen;
}

Result<void> OwnFence::check_newest(const CheckpointRoot& root) const {
  ELRUN_TRY_ASSIGN(const FencesSeen seen, look(root));
  return may_save(seen, number_, root.author(), root.where());
}

Result<void> OwnFence::go_without(const CheckpointRoot& root) {
  ELRUN_TRY_ASSIGN(seen_, highest_fence(root.tier()));
  return {};
}

Result<void> OwnFence::acknowledge(const CheckpointRoot& root, const SaveTicket& ticket) {
  const std::string name = name_in(fences_directory, acknowledgement_name(ticket.id));
  std::string text = encode(Acknowledgement{ticket.id, ticket.root, root.author(), root.where(), root.saver().plan.hash});
  if (auto written = root.tier().put(name, as_bytes(text)); !written.ok()) {
    (void)root.tier().discard(name);
    return written;
  }
  acknowledged_ = std::move(text);
  return {};
}

Result<FenceNumber> highest_fence(Tier& tier) {
  ELRUN_TRY_ASSIGN(const auto numbers, find_fences(tier));
  ELRUN_TRY_ASSIGN(const auto found, find_checkpoints(tier));
  FenceNumber highest = numbers.empty() ? 0 : numbers.back();
  for (const Found& f : found) highest = std::max(highest, f.id.fence);
  return highest;
}

Result<std::uint64_t> newest_generation(Tier& tier) {
  constexpr std::size_t claims_read_max = 16;  // numbers grow along with the fences; more than one job may have claimed
  ELRUN_TRY_ASSIGN(const auto numbers, find_fences(tier));
  std::uint64_t newest = 0;
  for (std::size_t i = 0; i < std::min(numbers.size(), claims_read_max); ++i) {
    const std::string name = name_in(fences_directory, claim_name(numbers[numbers.size() - 1 - i]));
    const auto text = tier.get_all(name, record_bytes_max);
    const auto claim = text.ok() ? decode_claim(*text, tier.where(name)) : Result<ClaimRecord>{text.failure()};
    if (claim.ok()) newest = std::max(newest, claim->author.generation.number);  // an unreadable one says nothing
  }
  return newest;
}

}  // namespace elrun::inline v0
