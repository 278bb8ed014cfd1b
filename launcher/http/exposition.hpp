#pragma once
/// \file Exposition: numbers as Prometheus and OpenMetrics read them. Values in, text out.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace elrun::inline v0::launcher {

enum class MetricType { gauge, counter, histogram, info };

struct MetricLabel {
  std::string_view name;
  std::string value;
};

/// One number. Of a counter it never falls, of an info it is 1.
struct Sample {
  std::vector<MetricLabel> labels{};
  double value = 0;
};

/// How often something took how long.
class Histogram {
 public:
  /// `bounds` rise, and outlive the histogram; the bucket above all of them is implied.
  explicit Histogram(std::span<const double> bounds) : bounds_{bounds}, counts_(bounds.size() + 1, 0) {}
  void observe(double value);
  [[nodiscard]] std::span<const double> bounds() const { return bounds_; }
  [[nodiscard]] std::span<const std::uint64_t> counts() const { return counts_; }  ///< Each bucket alone.
  [[nodiscard]] std::uint64_t count() const;
  [[nodiscard]] double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

struct Distribution {
  std::vector<MetricLabel> labels{};
  Histogram histogram;
};

/// All numbers of one name. The name comes without `_total` and `_info`; the type says what stands behind it.
struct MetricFamily {
  std::string name;
  MetricType type = MetricType::gauge;
  std::string_view unit{};  ///< What the name ends with: "seconds", "bytes"; empty: a plain number
  std::string_view help;    ///< A sentence without its full stop.
  std::vector<Sample> samples{};
  std::vector<Distribution> distributions{};  ///< Of a histogram, in place of samples.
};

enum class Exposition { prometheus, openmetrics };

/// What an Accept header asks for: OpenMetrics if it names it, otherwise the older format, which all scrapers read.
[[nodiscard]] Exposition exposition_for(std::string_view accept);
[[nodiscard]] std::string_view content_type(Exposition format);
/// Families that hold no number are left out.
[[nodiscard]] std::string expose(std::span<const MetricFamily> families, Exposition format);

}  // namespace elrun::inline v0::launcher
