#pragma once
/// \file Core: a staging slot, a memory file that explains itself: what is saved, for whom, and where in the file its bytes lie.
///
///   one page (4096 bytes): SlotPrefix | the record, with room to grow | data from `data_offset` on
///
/// A worker fills it and passes the file to `elrun ckptd` of its node, which writes it to the storage whatever becomes of the worker. Its
/// reader takes nothing on trust: all numbers are bounded and checked, as in a file from a disk.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "checkpoint/commit/ownership.hpp"
#include "checkpoint/format/model.hpp"
#include "checkpoint/format/names.hpp"
#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// Of slots, their records, and the words about them (slot_messages.hpp): one more with each change of any of them. Workers and an `elrun ckptd` of two versions never meet, for it
/// is in the name of the socket.
constexpr unsigned slot_version = 3;
constexpr const char* ckptd_socket = "ckptd-3.sock";  ///< In the agent's directory.

constexpr std::uint64_t slot_page = 4096;  ///< Of the prefix; the record begins after it, data at a multiple of it.
constexpr std::uint64_t slot_record_bytes_max = std::uint64_t{256} << 20;  ///< The model's table and host state.
constexpr std::uint64_t slot_bytes_max = std::uint64_t{1} << 44;

enum class SlotState : std::uint32_t {
  empty = 0,
  filling = 1,  ///< The record is there; data is being copied.
  sealed = 2,   ///< All of it is there, and nothing of it changes until the save is over.
  promised =
      3,  ///< There is no record yet. Its worker has told the others that it can begin, or is about to, and they may begin at any moment.
};

/// Whose slot it is, also while there is no record.
struct SlotOwner {
  Generation generation{};
  std::uint32_t rank = 0;
  friend bool operator==(const SlotOwner&, const SlotOwner&) = default;
};

struct SlotPrefix {
  SlotState state = SlotState::empty;
  std::uint32_t record_crc = 0;
  std::uint64_t record_bytes = 0;
  std::uint64_t data_offset = 0;
  std::uint64_t data_bytes = 0;
  SlotOwner owner{};
  friend bool operator==(const SlotPrefix&, const SlotPrefix&) = default;
};
[[nodiscard]] ByteVector encode(const SlotPrefix& prefix);
/// `file_bytes`: of the whole memory file. What it accepts lies inside of it.
[[nodiscard]] Result<SlotPrefix> decode_slot_prefix(ByteSpan page, std::uint64_t file_bytes);

/// A run of state in the slot.
struct SlotFragment {
  std::string kind;
  std::uint64_t unit = 0, begin = 0, end = 0;  ///< As in Fragment.
  std::uint64_t offset = 0, bytes = 0;         ///< In the slot's data.
  friend bool operator==(const SlotFragment&, const SlotFragment&) = default;
};

/// All that a save of one rank's part takes.
struct SlotRecord {
  std::string run_id;
  Generation generation;
  std::uint32_t rank = 0, world = 1;
  PlanIdentity plan;
  ModelTable model;
  std::string directory;   ///< The checkpoint root.
  std::uint32_t keep = 3;  ///< Committed checkpoints that stay.
  std::uint64_t rate = 0;  ///< CheckpointOptions::rate.
  std::uint64_t step = 0;
  Ownership ownership;
  std::vector<SlotFragment> fragments;
  std::vector<Aux> aux;
  friend bool operator==(const SlotRecord&, const SlotRecord&) = default;
};
[[nodiscard]] ByteVector encode(const SlotRecord& record);
/// What this host state adds to a record.
[[nodiscard]] std::uint64_t bytes_in_record(std::span<const Aux> aux);
[[nodiscard]] Result<SlotRecord> decode_slot_record(ByteSpan record, std::uint64_t data_bytes);

/// Where each fragment goes, and how many bytes that takes in all.
struct SlotLayout {
  std::vector<SlotFragment> fragments;
  std::uint64_t data_bytes = 0;
};
/// As they lie in the shard (shard.hpp): a byte of the slot's data is as far from a page's begin as it will be in the file, so that it can be written from where it is.
/// The fragments are of kinds of the model, and none of them is replicated.
[[nodiscard]] SlotLayout lay_out_slot(const ModelTable& model, std::span<const Fragment> fragments);

}  // namespace elrun::inline v0
