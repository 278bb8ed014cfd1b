#pragma once
/// \file TrainJob status: what Kubeflow Trainer is told of a job's progress, and when. Pure.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/result.hpp>
#include <elrun/session.hpp>
#include <elrun/units.hpp>

#include "launcher/http/http.hpp"
#include "launcher/http/url.hpp"
#include "lib/base/log_line.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

constexpr Duration train_job_every = 20s;           ///< Between two statuses: the server writes five a second, of all jobs together.
constexpr Duration train_job_every_most = 5 * 60s;  ///< While the server takes none.
constexpr Duration train_job_limit = 3s;            ///< One is taken within this.
constexpr Bytes train_job_reply_max = 128_KiB;      ///< The server echoes what it took, and that is 64 KiB at most.

/// Where Trainer wants it: it puts three variables into the pods of a TrainJob.
struct TrainJobServer {
  Url url;
  std::string ca_file;
  std::string token;  ///< The path of its file if it begins with `/`, as Trainer has it; else the token itself.
};
/// Nothing, where the variables are not there. What is wrong with them is noted, and ends no job.
[[nodiscard]] std::optional<TrainJobServer> train_job_server(const std::function<std::optional<std::string>(std::string_view)>& variable,
                                                             std::vector<std::string>& notes);

/// What is known of the job on the node of rank 0.
struct TrainJobFigures {
  std::uint64_t step = 0;          ///< Decided so far.
  std::uint64_t steps = 0;         ///< That there will be; 0: not known.
  std::optional<float> loss{};     ///< Of that step.
  std::optional<Duration> left{};  ///< Until the last one, as the steps took so far, failures included.
  std::uint32_t workers = 0, nodes = 0;
  std::uint64_t generation = 0, restarts = 0;
};
/// What is posted.
[[nodiscard]] std::string train_job_body(const TrainJobFigures& figures, std::int64_t wall_ns);

/// When a status is posted: one at a time, the newest one, and less often while the server takes none.
class TrainJobStatus {
 public:
  /// A generation begins. Of all its nodes only that of rank 0 posts.
  void began(const World& world);
  /// A step was decided.
  void decided(const StepProgress& progress, Instant now);
  /// The job is over here: what was not posted yet is due at once, unless the server did not take the last one.
  void finish() { is_over_ = true; }
  /// The end of the job waits for it no longer.
  void give_up() { refuses_ = true; }
  /// When there is something to post; nothing: no news, or one is under way.
  [[nodiscard]] std::optional<Instant> due_at() const;
  /// Posts: what goes out now.
  [[nodiscard]] std::string begin(Instant now, std::int64_t wall_ns);
  struct Told {
    Level level;
    std::string text;
  };
  /// The server's answer, or why there is none. What the log is to say, once.
  [[nodiscard]] std::optional<Told> answered(const Result<HttpReply>& reply, Instant now);
  /// The end of the job waits for it: one is under way or due, to a server that took the last one, or has not answered any yet.
  [[nodiscard]] bool is_awaited() const { return !refuses_ && (is_posting_ || due_at()); }

 private:
  TrainJobFigures figures_;
  bool leads_ = false;  // rank 0 is here
  struct Base {
    std::uint64_t step;
    Instant at;
  };
  std::optional<Base> base_;  // steps are counted from here for the time that is left
  bool has_news_ = false, is_posting_ = false, is_over_ = false;
  bool refuses_ = false, reported_ = false;  // the last one was not taken; a problem was told, and none was taken since
  Duration every_ = train_job_every;
  std::optional<Instant> next_;  // not before
};

}  // namespace elrun::inline v0::launcher
