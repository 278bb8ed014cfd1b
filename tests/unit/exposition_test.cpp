// What scrapers read, by the rules of both formats.
#include "launcher/http/exposition.hpp"

#include <cmath>
#include <limits>

#include "tests/support/catch.hpp"

using namespace elrun::launcher;

namespace {

constexpr std::array bounds{0.5, 2.0};

std::string both_ways(const MetricFamily& family, Exposition format) { return expose(std::span{&family, 1}, format); }

}  // namespace

TEST_CASE("each format has its own words for the same numbers", "[exposition]") {
  const MetricFamily counter{
      .name = "elrun_exits", .type = MetricType::counter, .help = "Ends", .samples = {{{{"code", "3"}, {"signal", ""}}, 2}}};
  CHECK(both_ways(counter, Exposition::prometheus) ==
        "# HELP elrun_exits_total Ends\n# TYPE elrun_exits_total counter\nelrun_exits_total{code=\"3\",signal=\"\"} 2\n");
  CHECK(both_ways(counter, Exposition::openmetrics) ==
        "# HELP elrun_exits Ends\n# TYPE elrun_exits counter\nelrun_exits_total{code=\"3\",signal=\"\"} 2\n# EOF\n");
  const MetricFamily gauge{.name = "elrun_up_seconds", .unit = "seconds", .help = "Time", .samples = {{.value = 1.5}}};
  CHECK(both_ways(gauge, Exposition::prometheus) == "# HELP elrun_up_seconds Time\n# TYPE elrun_up_seconds gauge\nelrun_up_seconds 1.5\n");
  CHECK(both_ways(gauge, Exposition::openmetrics) ==
        "# HELP elrun_up_seconds Time\n# TYPE elrun_up_seconds gauge\n# UNIT elrun_up_seconds seconds\nelrun_up_seconds 1.5\n# EOF\n");
  const MetricFamily build{.name = "elrun_build", .type = MetricType::info, .help = "Version", .samples = {{{{"version", "1"}}, 1}}};
  CHECK(both_ways(build, Exposition::prometheus).find("# TYPE elrun_build_info gauge\nelrun_build_info{version=\"1\"} 1\n") !=
        std::string::npos);
  CHECK(both_ways(build, Exposition::openmetrics).find("# TYPE elrun_build info\nelrun_build_info{version=\"1\"} 1\n") !=
        std::string::npos);
}

TEST_CASE("buckets of a histogram add up, and the last one holds all", "[exposition]") {
  Histogram histogram{bounds};
  for (const double value : {0.25, 0.5, 1.0, 7.0}) histogram.observe(value);
  CHECK(histogram.count() == 4);
  const MetricFamily family{.name = "elrun_wait_seconds",
                            .type = MetricType::histogram,
                            .unit = "seconds",
                            .help = "Waits",
                            .distributions = {{{{"cause", "node"}}, histogram}}};
  CHECK(both_ways(family, Exposition::prometheus) ==
        "# HELP elrun_wait_seconds Waits\n# TYPE elrun_wait_seconds histogram\n"
        "elrun_wait_seconds_bucket{cause=\"node\",le=\"0.5\"} 2\n"  // a bound belongs to its bucket
        "elrun_wait_seconds_bucket{cause=\"node\",le=\"2\"} 3\n"
        "elrun_wait_seconds_bucket{cause=\"node\",le=\"+Inf\"} 4\n"
        "elrun_wait_seconds_sum{cause=\"node\"} 8.75\n"
        "elrun_wait_seconds_count{cause=\"node\"} 4\n");
  CHECK(both_ways(family, Exposition::openmetrics).find("le=\"2.0\"} 3\n") != std::string::npos);
}

TEST_CASE("texts cannot break out of their line", "[exposition]") {
  const MetricFamily family{.name = "elrun_x", .help = "a\\b\n\"c\"", .samples = {{{{"why", "a\\b\n\"c\""}}, 1}}};
  CHECK(both_ways(family, Exposition::prometheus) ==
        "# HELP elrun_x a\\\\b\\n\"c\"\n# TYPE elrun_x gauge\nelrun_x{why=\"a\\\\b\\n\\\"c\\\"\"} 1\n");
  CHECK(both_ways(family, Exposition::openmetrics).find("# HELP elrun_x a\\\\b\\n\\\"c\\\"\n") == 0);
}

TEST_CASE("numbers are written so that nothing is lost", "[exposition]") {
  const auto written = [](double value) {
    const MetricFamily family{.name = "x", .help = "h", .samples = {{.value = value}}};
    const std::string text = both_ways(family, Exposition::prometheus);
    return text.substr(text.rfind("x ") + 2);
  };
  CHECK(written(0) == "0\n");
  CHECK(written(1700000000.25) == "1700000000.25\n");
  CHECK(written(std::numeric_limits<double>::infinity()) == "+Inf\n");
  CHECK(written(-std::numeric_limits<double>::infinity()) == "-Inf\n");
  CHECK(written(std::nan("")) == "NaN\n");
}

TEST_CASE("OpenMetrics is for who asks for it", "[exposition]") {
  CHECK(exposition_for("application/openmetrics-text;version=1.0.0,text/plain;q=0.5") == Exposition::openmetrics);
  CHECK(exposition_for("text/plain") == Exposition::prometheus);
  CHECK(exposition_for("") == Exposition::prometheus);
  CHECK(content_type(Exposition::prometheus) == "text/plain; version=0.0.4; charset=utf-8");
  CHECK(content_type(Exposition::openmetrics) == "application/openmetrics-text; version=1.0.0; charset=utf-8");
}

TEST_CASE("a family without numbers says nothing", "[exposition]") {
  const MetricFamily family{.name = "elrun_x", .type = MetricType::counter, .help = "h"};
  CHECK(both_ways(family, Exposition::prometheus).empty());
  CHECK(both_ways(family, Exposition::openmetrics) == "# EOF\n");
}
