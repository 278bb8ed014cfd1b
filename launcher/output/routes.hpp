#pragma once
/// \file Routes: where each output stream of each worker goes, and what stands in front of its lines.

#include <string>
#include <string_view>

#include <elrun/ids.hpp>

namespace elrun::inline v0::launcher {

enum class Route {
  inherit,     ///< The worker has elrun's own stream: nothing lies between it and the terminal.
  null,        ///< It is dropped.
  file,        ///< The worker writes to the file itself.
  tee,         ///< Through elrun to the file, and line by line to elrun's own stream.
  tee_unseen,  ///< Through elrun to the file, and to the filtered file of all workers.
};

/// What is asked for one stream of one worker.
struct RouteWish {
  bool redirected = false;
  bool teed = false;
  bool seen = true;          ///< `--local-ranks-filter` leaves this worker out when false.
  bool has_files = true;     ///< False with `--log-dir /dev/null`: then all is as if nothing had been asked.
  bool has_filters = false;  ///< Lines of this stream are looked for (`--duplicate-...-filters`).
};
[[nodiscard]] Route route(const RouteWish& wish);

/// What a prefix may name.
struct PrefixNames {
  std::string role;
  LocalRank local_rank;
  Rank rank;
  std::string host;  ///< May have a domain; only what stands before it is shown.
};

/// `${role_name}`, `${local_rank}`, `${rank}`, `${hostname}` (or without braces) become what they name, `$$` becomes `$`, and
/// everything else stays. An empty template is torchrun's: `[<role><local rank>]:`.
[[nodiscard]] std::string line_prefix(std::string_view line_template, const PrefixNames& names);

}  // namespace elrun::inline v0::launcher
