#include "launcher/report/train_job.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/output/log_json.hpp"
#include "lib/base/printable.hpp"

namespace elrun::inline v0::launcher {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t text_max = 64;     // of a metric's name and value
constexpr std::size_t reason_max = 200;  // of what the server says is wrong
constexpr std::int64_t seconds_most = 0x7fffffff;
constexpr double left_most = 4e18;  // nanoseconds, so that it fits

Json metric(std::string_view name, std::string value) {
  value.resize(std::min(value.size(), text_max));
  return {{"name", name}, {"value", std::move(value)}};
}

// Kubernetes' servers explain themselves in a Status; a proxy before them does not.
std::string reason_of(const std::string& body) {
  constexpr int depth_max = 8;
  const Json json = Json::parse(
      body, [](int depth, Json::parse_event_t, Json&) { return depth <= depth_max; }, false);
  if (!json.is_object() || !json.contains("message") || !json["message"].is_string()) return {};
  return ": " + printable(json["message"].get<std::string>().substr(0, reason_max));
}

}  // namespace

std::optional<TrainJobServer> train_job_server(const std::function<std::optional<std::string>(std::string_view)>& variable,
                                               std::vector<std::string>& notes) {
  constexpr std::string_view url_name = "KUBEFLOW_TRAINER_SERVER_URL", ca_name = "KUBEFLOW_TRAINER_SERVER_CA_CERT",
                             token_name = "KUBEFLOW_TRAINER_SERVER_TOKEN";
  const auto text = variable(url_name);
  if (!text) return std::nullopt;
  const auto note = [&](std::string_view name, std::string_view why) {
    notes.push_back(fmt::format("{} {}: the TrainJob is told of no progress", name, why));
    return std::nullopt;
  };
  const auto url = parse_url(*text);
  if (!url.ok()) return note(url_name, url.failure().what);
  if (!url->is_secure) return note(url_name, "is not https, and a token goes over nothing else");
  const auto ca = variable(ca_name), token = variable(token_name);
  if (!ca) return note(ca_name, fmt::format("is not set, though {} is", url_name));
  if (!token) return note(token_name, fmt::format("is not set, though {} is", url_name));
  return TrainJobServer{*url, *ca, *token};
}

std::string train_job_body(const TrainJobFigures& f, std::int64_t wall_ns) {
  Json status{{"lastUpdatedTime", utc(wall_ns)}};
  if (f.steps > 0) status["progressPercentage"] = std::min(f.step, f.steps) * 100 / f.steps;
  if (f.left)
    status["estimatedRemainingSeconds"] =
        std::clamp<std::int64_t>(std::chrono::ceil<std::chrono::seconds>(*f.left).count(), 0, seconds_most);
  Json metrics = Json::array();
  if (f.loss && std::isfinite(*f.loss)) metrics.push_back(metric("loss", fmt::format("{:.6g}", *f.loss)));
  for (const auto& [name, number] : {std::pair<std::string_view, std::uint64_t>{"step", f.step},
                                     {"workers", f.workers},
                                     {"nodes", f.nodes},
                                     {"generation", f.generation},
                                     {"restarts", f.restarts}})
    metrics.push_back(metric(name, std::to_string(number)));
  status["metrics"] = std::move(metrics);
  return Json{{"trainerStatus", std::move(status)}}.dump();
}

void TrainJobStatus::began(const World& world) {
  const Seat& seat = world.seat;
  leads_ = seat.base_rank == 0;
  has_news_ = has_news_ && leads_;
  figures_.workers = seat.world_size, figures_.nodes = seat.nodes;
  figures_.generation = world.generation.number, figures_.restarts = world.restarts.generations;
}

void TrainJobStatus::decided(const StepProgress& progress, Instant now) {
  if (!leads_) return;
  const std::uint64_t step = progress.decided.value(), steps = progress.steps;
  if (!base_ || step < base_->step) base_ = {step, now};  // a job that goes back to a checkpoint is measured anew
  figures_.step = step, figures_.steps = steps, figures_.loss = progress.loss;
  figures_.left.reset();
  if (const std::uint64_t done = step - base_->step; done > 0 && steps >= step)
    figures_.left = Duration{static_cast<Duration::rep>(std::min(
        static_cast<double>((now - base_->at).count()) / static_cast<double>(done) * static_cast<double>(steps - step), left_most))};
  has_news_ = true;
}

std::optional<Instant> TrainJobStatus::due_at() const {
  if (!has_news_ || is_posting_) return std::nullopt;
  if (is_over_) return refuses_ ? std::nullopt : std::optional{Instant{}};
  return next_.value_or(Instant{});
}

std::string TrainJobStatus::begin(Instant now, std::int64_t wall_ns) {
  has_news_ = false;
  is_posting_ = true;
  next_ = now + every_;
  return train_job_body(figures_, wall_ns);
}

std::optional<TrainJobStatus::Told> TrainJobStatus::answered(const Result<HttpReply>& reply, Instant now) {
  is_posting_ = false;
  refuses_ = !reply.ok() || reply->status < 200 || reply->status >= 300;
  every_ = !refuses_ ? train_job_every : std::min<Duration>(2 * every_, train_job_every_most);
  next_ = now + every_;
  if (!refuses_)
    return std::exchange(reported_, false) ? std::optional{Told{Level::info, "TrainJob status: the server takes it now"}} : std::nullopt;
  has_news_ = leads_;  // what it did not take, while it is this node's to say
  if (std::exchange(reported_, true)) return std::nullopt;
  const std::string why =
      reply.ok() ? fmt::format("the server answers {}{}", reply->status, reason_of(reply->body)) : message(reply.failure());
  return Told{Level::warning, fmt::format("TrainJob status: {}; the job goes on, and elrun keeps trying", why)};
}

}  // namespace elrun::inline v0::launcher
