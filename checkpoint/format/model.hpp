#pragma once
/// \file What a checkpoint describes: units of flat elements, the tensors in them, the kinds of state that each has.
/// Nothing here depends on the world's size: offsets count elements of a unit's flat space.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <elrun/tensor.hpp>

namespace elrun::inline v0 {

constexpr std::size_t kinds_max = 256;
constexpr std::size_t units_max = 1u << 20;
constexpr std::size_t tensors_max = 1u << 20;  ///< Of one unit.

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t offset = 0;  ///< First element in the unit's flat space.
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

struct UnitInfo {
  std::string name;
  std::uint64_t elements = 0;  ///< Of the flat space, alignment between tensors included, granule padding at its end not.
  std::vector<TensorInfo> tensors;
  friend bool operator==(const UnitInfo&, const UnitInfo&) = default;
};

/// A kind of state that every unit has: "param", "exp_avg", ... Its elements are those of the unit, in `dtype`.
struct KindInfo {
  std::string name;
  DType dtype = DType::f32;
  friend bool operator==(const KindInfo&, const KindInfo&) = default;
};

struct ModelTable {
  std::vector<UnitInfo> units;
  std::vector<KindInfo> kinds;
  friend bool operator==(const ModelTable&, const ModelTable&) = default;
};

/// The plan as far as checkpoints care: equal hashes are the same plan; the description is for the person who reads why
/// not.
struct PlanIdentity {
  std::string hash;         ///< Hexadecimal, over all that must not change.
  std::string description;  ///< One `name: value` per line, so that a mismatch can say what differs.
  friend bool operator==(const PlanIdentity&, const PlanIdentity&) = default;
};

/// A run of one kind of one unit, and where this rank has its bytes: read by a save, written by a load.
struct Fragment {
  std::string kind;
  std::uint64_t unit = 0;            ///< Index in ModelTable::units.
  std::uint64_t begin = 0, end = 0;  ///< Elements of the unit's flat space.
  std::span<std::byte> bytes;        ///< Host memory, (end - begin) elements of the kind's dtype. Borrowed during the call.
  bool replicated = false;           ///< Save only: every rank holds the same; each writes its part of it.
};

/// Small state of the host (a schedule, the loader's position), the same on every rank; rank 0 writes it.
struct Aux {
  std::string name;
  std::vector<std::byte> bytes;
  friend bool operator==(const Aux&, const Aux&) = default;
};

/// Every contradiction in a table, in sentences; empty when it can be saved.
[[nodiscard]] std::vector<std::string> problems(const ModelTable& table);
constexpr std::size_t plan_description_max = 16384;
[[nodiscard]] std::vector<std::string> problems(const PlanIdentity& plan);

/// What differs between a saved model and this one, a line each, at most `limit`; empty when they are equal.
[[nodiscard]] std::vector<std::string> differences(const ModelTable& saved, const ModelTable& mine, std::size_t limit = 12);
[[nodiscard]] std::vector<std::string> differences(const PlanIdentity& saved, const PlanIdentity& mine, std::size_t limit = 12);

/// Bytes that a checkpoint of this model holds, without headers and host state.
[[nodiscard]] std::uint64_t state_bytes(const ModelTable& table);

/// `f32` <-> `F32`, as safetensors writes them; nullptr and false for what it does not know.
[[nodiscard]] const char* dtype_name(DType type);
[[nodiscard]] bool dtype_from_name(const std::string& name, DType& type);

}  // namespace elrun::inline v0
