#include "launcher/http/exposition.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

namespace elrun::inline v0::launcher {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// OpenMetrics compares bounds as texts, so each has one spelling, and a whole number is written as a fraction.
std::string bound(double value, Exposition format) {
  std::string text = number(value);
  if (format == Exposition::openmetrics && text.find_first_not_of("0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || (quotes && c == '"')) out += '\\';
    if (c == '\n') out += "\\n";
    else out += c;
  }
  return out;
}

std::string labels_text(const std::vector<MetricLabel>& labels, const std::string& least = {}) {
  std::string text;
  for (const MetricLabel& label : labels)
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", label.name, escaped(label.value, true));
  if (!least.empty()) text += fmt::format("{}le=\"{}\"", text.empty() ? "" : ",", least);
  return text.empty() ? text : "{" + text + "}";
}

std::string_view suffix_of(MetricType type) { return type == MetricType::counter ? "_total" : type == MetricType::info ? "_info" : ""; }

std::string_view word_of(MetricType type, Exposition format) {
  switch (type) {
    case MetricType::counter: return "counter";
    case MetricType::histogram: return "histogram";
    case MetricType::info: return format == Exposition::openmetrics ? "info" : "gauge";
    case MetricType::gauge: break;
  }
  return "gauge";
}

std::string distribution_text(const std::string& name, const Distribution& d, Exposition format) {
  std::string text;
  std::uint64_t so_far = 0;
  for (std::size_t i = 0; i < d.histogram.counts().size(); ++i) {
    so_far += d.histogram.counts()[i];
    const std::string least = i < d.histogram.bounds().size() ? bound(d.histogram.bounds()[i], format) : "+Inf";
    text += fmt::format("{}_bucket{} {}\n", name, labels_text(d.labels, least), so_far);
  }
  text += fmt::format("{}_sum{} {}\n", name, labels_text(d.labels), number(d.histogram.sum()));
  return text + fmt::format("{}_count{} {}\n", name, labels_text(d.labels), so_far);
}

}  // namespace

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<std::size_t>(at - bounds_.begin())];
  sum_ += value;
}

std::uint64_t Histogram::count() const { return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0}); }

Exposition exposition_for(std::string_view accept) {
  return accept.find("application/openmetrics-text") == std::string_view::npos ? Exposition::prometheus : Exposition::openmetrics;
}

std::string_view content_type(Exposition format) {
  return format == Exposition::openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                           : "text/plain; version=0.0.4; charset=utf-8";
}

std::string expose(std::span<const MetricFamily> families, Exposition format) {
  const bool open = format == Exposition::openmetrics;
  std::string text;
  for (const MetricFamily& family : families) {
    if (family.samples.empty() && family.distributions.empty()) continue;
    const std::string whole = fmt::format("{}{}", family.name, suffix_of(family.type));
    const std::string& title = open ? family.name : whole;
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", title, escaped(family.help, open), title, word_of(family.type, format));
    if (open && !family.unit.empty()) text += fmt::format("# UNIT {} {}\n", title, family.unit);
    for (const Sample& sample : family.samples) text += fmt::format("{}{} {}\n", whole, labels_text(sample.labels), number(sample.value));
    for (const Distribution& d : family.distributions) text += distribution_text(family.name, d, format);
  }
  return open ? text + "# EOF\n" : text;
}

}  // namespace elrun::inline v0::launcher
