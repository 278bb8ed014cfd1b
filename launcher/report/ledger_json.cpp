#include "launcher/report/ledger_json.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t last_ranks_told = 8;

nlohmann::json incident_json(const Incident& incident, Instant began) {
  nlohmann::json json{{"generation", incident.generation}, {"why", incident.why}, {"at_seconds", nlohmann::json::object()}};
  for (std::size_t i = 0; i < Incident::points; ++i)
    if (const auto& at = incident.at[i]) json["at_seconds"][std::string{word_of(static_cast<Incident::Point>(i))}] = seconds(*at - began);
  if (incident.point(Incident::Point::first_step)) json["step"] = incident.step;
  return json;
}

}  // namespace

nlohmann::json json_of(const Ledger& ledger, Instant now) {
  const TimeByCause times = ledger.totals(now);
  nlohmann::json causes = nlohmann::json::object();
  for (std::size_t i = 0; i < time_causes; ++i) causes[std::string{word_of(static_cast<TimeCause>(i))}] = seconds(times[i]);
  nlohmann::json json{{"wall_seconds", seconds(ledger.wall(now))}, {"by_cause", std::move(causes)}, {"incidents", ledger.incident_count()}};
  for (const LastRank& last : ledger.last_ranks().longest(last_ranks_told))
    json["last_ranks"].push_back({{"rank", last.rank}, {"steps", last.steps}, {"behind_seconds", seconds(last.behind)}});
  for (const NamedRank& named : ledger.stragglers())
    json["stragglers"].push_back({{"generation", named.generation},
                                  {"rank", named.slow.rank},
                                  {"node", named.slow.node},
                                  {"device", named.slow.device},
                                  {"step", named.slow.step},
                                  {"steps", named.slow.steps},
                                  {"times", named.slow.times},
                                  {"lost_seconds", seconds(named.slow.lost)}});
  if (ledger.incidents().empty()) return json;
  json["last_incident"] = incident_json(ledger.incidents().back(), ledger.began());
  for (const Incident& incident : ledger.incidents()) json["newest_incidents"].push_back(incident_json(incident, ledger.began()));
  return json;
}

}  // namespace elrun::inline v0::launcher
