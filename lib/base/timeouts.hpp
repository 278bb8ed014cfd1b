#pragma once
/// \file The time-outs between elrun's processes in one table, and how they depend on each other. These are the defaults; a row says where it
/// cannot be set. Pauses and waits of one file alone stand there.

#include <algorithm>
#include <string>
#include <vector>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// A table of values. A wait for another process without a row here is a bug.
struct Timeouts {
  Duration heartbeat = 1s;           ///< A node says that it lives this often (`keep_alive_interval`).
  Duration heartbeat_limit = 5s;     ///< A node that was silent for this long is lost (interval x `keep_alive_max_attempt`).
  Duration reconnect_grace = 250ms;  ///< A broken stream may be resumed by the same incarnation for this long.
  Duration recovery = 10s;           ///< A fresh coordinator waits this long for the next member of a running generation.
  Duration newcomer = 10s;           ///< Who connects to the coordinator says who it is within this, or is turned away.
  Duration last_call = 30s;          ///< Once `nodes_min` have joined, how long a round waits for more newcomers.
  Duration join = 600s;              ///< A node that is in no world after this long gives up (spares wait without end).
  Duration revocation = 2s;          ///< A worker's process acknowledges the end of its generation within this, or is killed.
  Duration returning =
      30s;  ///< A worker whose process stays is back from its program within this (8 x its longest slot, if that is more), or is killed.
  Duration peer_silence =
      15s;  ///< A peer's host that answered nothing for this long, though it should have, cannot be reached: well above `heartbeat_limit`, for a node that is gone is missed by that.
  Duration collective = 600s;  ///< A collective call; deaths are told by agents, not by this.
  Duration session =
      300s;  ///< A node's workers that others of a Job wait for have joined the world within this, or their node is excluded (`start_timeout`).
  Duration connect =
      60s;  ///< All peers of a new generation are connected within this. Workers of a Job under elrun count it from when all of them have come.
  Duration drain = 25s;               ///< A planned leave is prepared within this ...
  Duration stop_grace = 30s;          ///< ... of the time between the forwarded signal and SIGKILL.
  Duration killed = 10s;              ///< A worker that was killed has ended within this, or is stuck in the kernel.
  Duration stacks = 5s;               ///< Of workers that hang, stacks are taken for this long before they are killed.
  Duration last_work = 3600s;         ///< What a program still does once its job is over (an export) is done within this.
  Duration save = 600s;               ///< A checkpoint is committed within this, or given up.
  Duration coordinator_grace = 600s;  ///< Without a coordinator for this long, an agent gives up (exit code 171).
  Duration lease = 5s;           ///< An elected coordinator of which etcd heard nothing for this long is leader no longer (`lease_ttl`).
  Duration etcd_call = 2s;       ///< One server of etcd answers within this (a third of the lease at most), or the next one is asked.
  Duration verdict_linger = 5s;  ///< The coordinator stays this long at most for agents that have not heard the verdict.
  Duration store_wait = 600s;    ///< A store call that waits for a key.

  /// A coordinator that comes for less than this did not stay, and one that comes and goes so has a deadline. Elected ones that each cannot write to etcd live for up to two leases.
  [[nodiscard]] constexpr Duration coordinator_stays() const { return std::max(heartbeat_limit, 2 * lease); }

  /// What contradicts what, in sentences; empty when all is well.
  [[nodiscard]] constexpr bool consistent() const {
    return heartbeat > Duration{0} && heartbeat_limit >= 2 * heartbeat && reconnect_grace < heartbeat_limit && revocation < join &&
           drain < stop_grace && connect <= collective && reconnect_grace < join && heartbeat_limit < coordinator_grace &&
           reconnect_grace <= recovery && recovery < join && lease > Duration{0} && lease < coordinator_grace && newcomer > Duration{0};
  }
  [[nodiscard]] std::vector<std::string> problems() const;
};

static_assert(Timeouts{}.consistent());
static_assert(2 * Timeouts{}.heartbeat_limit < Timeouts{}.peer_silence &&
              Timeouts{}.peer_silence < Timeouts{}.connect);  // it cannot be set

}  // namespace elrun::inline v0
