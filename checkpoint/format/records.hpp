#pragma once
/// \file Core: the records under a checkpoint root, as values and as text. Decoding checks everything that later code
/// relies on, so that a decoded value can be trusted in shape (its truth is the hash chain's matter).
///
///   COMMIT -> MANIFEST.json -> shard's header and block table -> shard's blocks: each holds its child's checksum.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "checkpoint/format/model.hpp"
#include "checkpoint/format/names.hpp"
#include "checkpoint/format/state_layout.hpp"
#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// Of parts, MANIFEST.json and COMMIT, as they are written. Format 1 is read as well (elrun 0.1.0 to the last one without format 2).
constexpr std::uint64_t checkpoint_format = 2;
/// Of RUN.json, fences and what else is beside the checkpoints. It stays, so that an older elrun can go on until there is a checkpoint that it cannot read.
constexpr std::uint64_t root_format = 1;
/// Blocks have one checksum each, and are counted from the start of the file. As they are written; a manifest says which.
constexpr std::uint64_t block_bytes = 64 << 10;
constexpr std::uint64_t block_bytes_format_1 = 1 << 20;
constexpr std::uint64_t block_bytes_min = 4096, block_bytes_max = 1 << 22;  ///< A power of two.
constexpr Bytes manifest_bytes_max{1u << 28};
constexpr Bytes record_bytes_max{1u << 26};  ///< RUN.json, fences and parts.
constexpr Bytes commit_bytes_max{4096};
constexpr std::size_t fragments_max = 1u << 22;
constexpr std::size_t aux_max = 1024;
constexpr std::uint64_t aux_bytes_max = 1u << 26;  ///< Of one entry.

/// Who wrote a record. Wall time is for people: nothing is decided by it.
struct Author {
  std::string run_id{};
  Generation generation{};
  std::int64_t wall_ns = 0;
  friend bool operator==(const Author&, const Author&) = default;
};
/// `run "r7", lineage 89ab..., generation 12`
[[nodiscard]] std::string to_string(const Author& author);

/// RUN.json: whose root this is. Made once, by the first save.
struct RunRecord {
  std::string root;  ///< 32 hexadecimal digits, in every checkpoint of the root.
  Author author{};
  PlanIdentity plan;
  ModelTable model;
  friend bool operator==(const RunRecord&, const RunRecord&) = default;
};
[[nodiscard]] std::string encode(const RunRecord& record);
[[nodiscard]] Result<RunRecord> decode_run(ByteSpan text, std::string_view what);

/// gens/g00000007.claim: the number is taken. From here on older owners' saves are not acknowledged.
struct ClaimRecord {
  FenceNumber number = 0;
  Author author{};
  friend bool operator==(const ClaimRecord&, const ClaimRecord&) = default;
};
[[nodiscard]] std::string encode(const ClaimRecord& record);
[[nodiscard]] Result<ClaimRecord> decode_claim(ByteSpan text, std::string_view what);

/// A checkpoint that was acknowledged, cannot be found, and that a person told the job to go on without (`--begin_anew`).
struct GivenUp {
  CheckpointId id;
  std::string root{};  ///< Identity of its root; empty: not known.
  friend bool operator==(const GivenUp&, const GivenUp&) = default;
};
constexpr std::size_t given_up_max = 256;  ///< In one fence; the oldest go first.

/// gens/g00000007.json: what the number's owner goes on from. Published after the claim and the choice, before any
/// save.
struct FenceRecord {
  FenceNumber number = 0;
  Author author{};
  std::uint32_t world = 1;
  std::vector<CheckpointId> inherits{};  ///< Ascending.
  std::optional<CheckpointId> resumed_from{};
  std::vector<GivenUp> gives_up{};  ///< By this owner and those before it, oldest first.
  friend bool operator==(const FenceRecord&, const FenceRecord&) = default;
};
[[nodiscard]] std::string encode(const FenceRecord& record);
[[nodiscard]] Result<FenceRecord> decode_fence(ByteSpan text, std::string_view what);

/// gens/g00000007.s000000012000.a01.acknowledged: the checkpoint was durable, its owner still owned the root, and the save is
/// reported as done right after. The name alone says it; the content is for people. The job's store and its agents keep the
/// same record, so that a root that is gone as a whole is missed, too.
struct Acknowledgement {
  CheckpointId id;
  std::string root;
  Author author{};
  std::string directory{};  ///< The checkpoint root as the job was given it.
  std::string plan{};       ///< Hash of the plan.
  friend bool operator==(const Acknowledgement&, const Acknowledgement&) = default;
};
constexpr Bytes acknowledgement_bytes_max{16384};
[[nodiscard]] std::string encode(const Acknowledgement& record);
[[nodiscard]] Result<Acknowledgement> decode_acknowledgement(ByteSpan text, std::string_view what);
/// Whether that was acknowledged under `directory`, as the job has its path. A record is text, so bytes that are no UTF-8 are others in it (U+FFFD).
[[nodiscard]] bool is_under(const Acknowledgement& record, std::string_view directory);
/// Both texts are acknowledgements of one root, and the first was made before the second: under an older fence, or under the same one for an earlier save. What
/// remembers the newest keeps it then.
[[nodiscard]] bool was_acknowledged_before(std::string_view first, std::string_view second);

/// One shard file. Its parts: [8 bytes length, header JSON] data [table], the table being the last tensor.
struct FileRecord {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t header_bytes = 0;  ///< The 8 bytes of the length included; data starts here.
  std::uint64_t table_offset = 0;  ///< Of the block table; also the number of bytes that the blocks cover.
  std::uint32_t header_crc = 0;
  std::uint32_t table_crc = 0;
  std::uint32_t file_crc = 0;
  std::uint64_t block_bytes = elrun::block_bytes;
  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};
[[nodiscard]] constexpr std::uint64_t block_count(std::uint64_t table_offset, std::uint64_t of_bytes) {
  return (table_offset + of_bytes - 1) / of_bytes;
}
[[nodiscard]] constexpr std::uint64_t block_count(const FileRecord& file) { return block_count(file.table_offset, file.block_bytes); }

/// A run of elements of one rank and where its bytes are.
struct FragmentRecord {
  std::uint32_t kind = 0, unit = 0, file = 0;
  std::uint64_t begin = 0, end = 0, offset = 0;  ///< Elements of the unit; offset in the file.
  friend bool operator==(const FragmentRecord&, const FragmentRecord&) = default;
};

struct AuxRecord {
  std::string name;
  std::uint32_t file = 0;
  std::uint64_t offset = 0, bytes = 0;
  friend bool operator==(const AuxRecord&, const AuxRecord&) = default;
};

/// r00003-of-00016.part.json: what one rank wrote; the leader merges them.
struct PartRecord {
  CheckpointId id;
  std::string root;
  std::uint32_t rank = 0, world = 1;
  FileRecord file;
  std::vector<FragmentRecord> fragments;
  std::vector<AuxRecord> aux;
  std::uint64_t format = checkpoint_format;  ///< In which it was read; it is written in the newest.
  friend bool operator==(const PartRecord&, const PartRecord&) = default;
};
[[nodiscard]] std::string encode(const PartRecord& record);
[[nodiscard]] Result<PartRecord> decode_part(ByteSpan text, std::string_view what);

struct Manifest {
  std::uint64_t format = checkpoint_format;  ///< In which it was read; it is written in the newest.
  CheckpointId id;
  std::string root;
  Author author{};
  std::optional<CheckpointId> parent;
  std::uint32_t world = 1;
  PlanIdentity plan;
  ModelTable model;
  std::vector<FileRecord> files;  ///< By rank.
  StateLayout layout;             ///< Each kind of each unit is covered exactly once. `fragments_of` (plan.hpp) lists it.
  std::vector<AuxRecord> aux;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};
/// Fails when the parts do not make a whole: a gap, an overlap, a part of another save.
[[nodiscard]] Result<Manifest> merge(Manifest head, std::vector<PartRecord> parts);
[[nodiscard]] std::string encode(const Manifest& manifest);
[[nodiscard]] Result<Manifest> decode_manifest(ByteSpan text, std::string_view what);

/// A manifest of this size can be read back. What a reader refuses must not be committed: the save fails with `exhausted` instead.
[[nodiscard]] Result<void> check_manifest_size(std::uint64_t runs, std::size_t text_bytes);
/// The same for RUN.json.
[[nodiscard]] Result<void> check_run_size(std::size_t text_bytes);

/// COMMIT: its appearance under this name is the commit.
struct CommitRecord {
  CheckpointId id;
  std::string root;
  Author author{};
  std::uint64_t manifest_bytes = 0;
  std::uint32_t manifest_crc = 0;
  std::string manifest_sha256;
  std::uint64_t files = 0, total_bytes = 0;
  std::uint64_t format = checkpoint_format;  ///< Of the checkpoint.
  friend bool operator==(const CommitRecord&, const CommitRecord&) = default;
};
[[nodiscard]] std::string encode(const CommitRecord& record);
[[nodiscard]] Result<CommitRecord> decode_commit(ByteSpan text, std::string_view what);

}  // namespace elrun::inline v0
