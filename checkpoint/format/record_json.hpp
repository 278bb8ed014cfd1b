#pragma once
/// \file Core, for records.cpp and manifest.cpp alone: what their records have in common, as JSON.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/format/json.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {

[[nodiscard]] Json json_of(const Author& author);
[[nodiscard]] Json json_of(const PlanIdentity& plan);
[[nodiscard]] Json json_of(const ModelTable& model);
[[nodiscard]] Json json_of(const std::optional<CheckpointId>& id);
[[nodiscard]] Json with_format(std::uint64_t format, Json body);

/// The format of a record that says one of 1 .. `newest`, and requires nothing. `mismatch` for any other.
[[nodiscard]] Result<std::uint64_t> check_format(const Json& body, std::uint64_t newest, std::string_view what);

[[nodiscard]] Author author_of(const Fields& in);
[[nodiscard]] PlanIdentity plan_of(const Fields& in);
[[nodiscard]] ModelTable model_of(const Fields& in, std::string& problem);
[[nodiscard]] std::string root_of(const Fields& in);
[[nodiscard]] CheckpointId id_of(const Json& value, const Fields& owner);
[[nodiscard]] CheckpointId id_of(const Fields& in, const char* key);
[[nodiscard]] std::uint32_t world_of(const Fields& in);
[[nodiscard]] inline std::uint32_t small(std::uint64_t value) { return static_cast<std::uint32_t>(value); }  // bounded by its reader

}  // namespace elrun::inline v0
