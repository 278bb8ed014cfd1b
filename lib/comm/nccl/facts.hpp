#pragma once
/// \file What each rank says of itself before a communicator is made, and whether all of them together can make one. Pure.
///
/// All ranks say it in one call of the store, and the roots once more with their ids, so a rank that cannot take part is named by every rank at once, where NCCL would wait.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

#include "lib/comm/nccl/version.hpp"

namespace elrun::inline v0 {

/// `ncclUniqueId`: where the ranks find each other. Used for one communicator.
using NcclId = std::array<std::byte, 128>;

struct NcclFacts {
  std::string problem{};  ///< Why this rank cannot take part; empty: it can.
  NcclVersion version{};
  std::string host{};    ///< The same for all processes of one kernel, and for no others, unless the user's NCCL_HOSTID says otherwise.
  std::string device{};  ///< The device's PCI address there.
  bool shares_device = false;  ///< The user lets NCCL put several ranks on one device (NCCL_MULTI_RANK_GPU_ENABLE).
  bool has_id = false;
  NcclId id{};                ///< Of a rank where others are to find each other (`nccl_roots`).
  std::uint64_t process = 0;  ///< Random, drawn once by each process; 0: not said.
  /// `problem` is that these processes (`processes_of`) did not make a group in time. It may be the fault of one that stalled. 0: it is for good.
  std::uint64_t late_of = 0;
  friend bool operator==(const NcclFacts&, const NcclFacts&) = default;
};

[[nodiscard]] std::vector<std::byte> encode(const NcclFacts& facts);
/// `protocol` for bytes that no rank of this version writes.
[[nodiscard]] Result<NcclFacts> decode_nccl_facts(std::span<const std::byte> bytes);

/// The ranks that give an id: one per 128, for a single one becomes the bottleneck of large worlds.
[[nodiscard]] std::vector<Rank> nccl_roots(WorldSize world);

/// The processes of these ranks, in any order, as one number, which is not 0.
[[nodiscard]] std::uint64_t processes_of(std::span<const NcclFacts> all);
/// Whether `one` of `all` was late with others than these: its problem is none any more.
[[nodiscard]] bool is_past(const NcclFacts& one, std::span<const NcclFacts> all);

/// Why these ranks cannot make a communicator together; nothing: they can. The same on all ranks, for it follows from what all said.
[[nodiscard]] std::optional<Failure> keeps_from_nccl(std::span<const NcclFacts> facts);

/// The ids of all roots, in rank order. Fails the same way on all ranks: somebody cannot take part, has another version, or
/// two share a device.
[[nodiscard]] Result<std::vector<NcclId>> agree_on_nccl(std::span<const NcclFacts> facts);

}  // namespace elrun::inline v0
