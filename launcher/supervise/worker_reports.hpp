#pragma once
/// \file What the coordinator is told of this node's workers. Each message follows from the workers' states alone, so none is queued
/// while the coordinator is away: it is made when the line is back. Pure.

#include <optional>
#include <string>
#include <vector>

#include "launcher/supervise/coordinator_line.hpp"
#include "launcher/supervise/job_progress.hpp"
#include "launcher/supervise/losses.hpp"
#include "launcher/supervise/node_generation.hpp"
#include "launcher/supervise/node_workers.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

/// The states from which it follows what the coordinator has to know.
struct NodeView {
  const NodeWorkers& workers;
  const NodeGeneration& generation;
  const JobProgress& job;
  Instant now;
  bool runs = false;         ///< The generation runs on this node. Else there is nothing to tell but single failures.
  bool starts_slow = false;  ///< Starts take so long by now that those who have not joined the world are told.
  bool ends_slow = false;    ///< This node itself ends workers whose start takes too long (`--hang_timeout`).
  bool leaves = false;       ///< A signal came, and the Job saves a checkpoint: no world with more workers is asked for.
};

/// `worker` has ended by itself, in `generation` or (pending) beside it. The first failure of a node is reported in full. When thousands of
/// workers fail together, the reports of the others are cut. `stopped_at`: since when elrun ends the workers of the generation. A worker
/// that failed before that, and that elrun's signal ended before it could exit, counts as ended with code 1, Python's for an exception.
[[nodiscard]] WorkerFailed worker_failed(const NodeWorkers& workers, std::size_t worker, Generation generation, Instant now,
                                         std::optional<Instant> stopped_at);
/// The worker of `report`, which lives and cannot go on; where it has ended since, the first that lost a peer and lives. None: no worker of this node does.
[[nodiscard]] std::optional<WorkerFailed> living_worker_failed(const NodeWorkers& workers, Generation generation, const LossReport& report);
/// Whether all that are in the world ended well, or in whatever way once the job was over.
[[nodiscard]] bool all_ended_well(const NodeView& view);
/// All workers of the world have ended well.
[[nodiscard]] Actions tell_done(const NodeView& view);
/// That the workers are a Job's, when the coordinator does not know it yet in this generation. A worker that dies before it opens its
/// session cannot say so. The other workers can.
[[nodiscard]] Actions tell_job(CoordinatorLine& line, const NodeView& view);
/// Who has not joined the world yet, when that takes long and is news.
[[nodiscard]] Actions tell_starting(CoordinatorLine& line, const NodeView& view);
/// That pending workers are ready. To each coordinator again. Where it was not sent in time, they get a place one generation later.
[[nodiscard]] Actions offer_more(const CoordinatorLine& line, const NodeView& view);
/// All of the above, to a coordinator that serves this generation from now on.
[[nodiscard]] Actions tell_all(CoordinatorLine& line, const NodeView& view);

}  // namespace elrun::inline v0::launcher
