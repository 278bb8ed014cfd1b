#pragma once
/// \file Option values: the text of one option to what it means. Whatever is not understood is nothing, or a failure.

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

/// Without blanks at both ends.
[[nodiscard]] std::string_view trimmed(std::string_view text);
/// Without blanks, and without one pair of quotes around it, which a manifest leaves where a shell would take it away. Quotes
/// that are not one pair around the whole stay.
[[nodiscard]] std::string_view unquoted(std::string_view text);

/// As Python's int() for plain decimal numbers: blanks around it and a sign are fine.
[[nodiscard]] std::optional<std::int64_t> to_integer(std::string_view text);

/// Seconds from 0 to a year, fractions among them.
[[nodiscard]] std::optional<Duration> to_seconds(std::string_view text);

/// Whether a text can be a host's name or address: letters, digits and _ . - : only.
[[nodiscard]] bool host_is_plain(std::string_view host);

/// `0` none, `1` stdout, `2` stderr, `3` both; or `RANK:DIGIT` pairs joined by commas, ranks not named have none.
[[nodiscard]] std::optional<StreamsByRank> parse_streams(std::string_view text);

/// `0,2`; an empty text is no filter, and not the empty set.
[[nodiscard]] std::optional<std::set<std::uint32_t>> parse_ranks(std::string_view text);

/// Texts joined by commas, where `,,` is a comma within one. Empty texts, which every line contains, are left out.
[[nodiscard]] std::vector<std::string> parse_line_filters(std::string_view text);

/// What CUDA_VISIBLE_DEVICES names, without blanks: numbers, or names of devices. Empty entries are left out.
[[nodiscard]] std::vector<std::string> parse_devices(std::string_view text);
/// "MIG-...": a part of a GPU. CUDA shows one to a process.
[[nodiscard]] bool is_mig_name(std::string_view device);
/// The devices that workers can be given by name: of CUDA_VISIBLE_DEVICES, else MIG instances of NVIDIA_VISIBLE_DEVICES, which have no numbers. Nothing: they go by number.
[[nodiscard]] std::optional<std::vector<std::string>> named_devices(const std::optional<std::string>& of_cuda,
                                                                    const std::optional<std::string>& of_container);

/// The one of `words` that `text` is probably a misspelling of; empty if none is near.
[[nodiscard]] std::string_view nearest(std::string_view text, std::span<const std::string_view> words);

/// Names of signals joined by commas.
struct SignalList {
  std::vector<int> numbers;          ///< Each once, in the order given.
  std::vector<std::string> refused;  ///< Names of no signal, or of one that no process can handle.
};
[[nodiscard]] SignalList parse_signals(std::string_view text);

}  // namespace elrun::inline v0::launcher
