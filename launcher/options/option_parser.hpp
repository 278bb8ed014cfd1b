#pragma once
/// \file OptionParser: what was given, understood. First as text (launcher/options/arguments.hpp), then one rule after the other, so
/// that all problems come out together. Only options*.cpp include this.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "launcher/options/arguments.hpp"
#include "launcher/options/cluster.hpp"
#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

/// Each group of options has a function: of the program, output, failures and the rest in options.cpp, of nodes and workers in
/// options_nodes.cpp, of times and access in options_times.cpp, of where nodes meet in options_meeting.cpp. So it has more than 25.
class OptionParser {
 public:
  OptionParser(const Variables& environment, const Machine& machine, std::string_view program_name);
  [[nodiscard]] Parsed launch(std::span<const std::string> words);
  [[nodiscard]] Parsed doctor(std::span<const std::string> words);
  [[nodiscard]] Parsed store(std::span<const std::string> words);

 private:
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most);
  [[nodiscard]] std::optional<Duration> seconds(std::string_view name, Duration least);
  void bad_number(std::string_view text, std::string why);
  // The value that stands beside the word that was given.
  template <class Value>
  void choice(std::string_view name, Value& into, std::initializer_list<std::pair<std::string_view, std::type_identity_t<Value>>> choices) {
    if (!given_.is_given(name)) return;
    std::string known;
    for (const auto& [word, value] : choices) {
      if (given_.get(name).text == word) {
        into = value;
        return;
      }
      known += fmt::format("{}{}", known.empty() ? "" : ", ", word);
    }
    problems_.usage(fmt::format("{}: must be one of {}", given_.shown(name), known));
  }

  void parse_all();
  void check_run_id();
  void parse_program();
  void parse_output();
  void parse_log_format();
  void parse_begin_anew();
  void parse_failures();
  void parse_admin_endpoints();
  void check_health_port();

  void parse_nodes();
  void find_nodes();
  void parse_workers();

  void parse_times();
  void parse_rdzv_conf();
  [[nodiscard]] bool parse_conf_time(const std::string& key, const std::string& value);
  [[nodiscard]] bool parse_conf_access(const std::string& key, const std::string& value);
  void parse_stop_grace();
  [[nodiscard]] std::string* access_path(std::string_view key);
  void parse_access();
  void check_token();

  // What --rdzv_endpoint leaves to be found elsewhere: a shell writes `:29400` and `host:` when a variable is not set.
  struct Asked {
    std::optional<std::string> host;
    std::optional<std::uint16_t> port;
  };
  void parse_meeting();
  void parse_addresses();
  void parse_meeting_point(bool alone);
  void choose_ports(const Asked& asked);
  void parse_rank(bool is_static);
  [[nodiscard]] Asked parse_given_endpoint();
  [[nodiscard]] bool find_endpoint(bool is_static, const std::string& who);
  [[nodiscard]] bool in_kubernetes() const;
  [[nodiscard]] const std::optional<PodName>& pod();
  [[nodiscard]] std::string source_of(std::string_view option) const;
  void parse_etcd(std::string_view servers);

  Arguments given_;
  const Variables& environment_;
  const Machine& machine_;
  const std::optional<Scheduler> scheduler_;
  std::optional<std::optional<PodName>> pod_;  // looked up once
  Problems problems_;
  std::optional<bool> is_host_;
  std::optional<std::uint16_t> master_port_;
  int heartbeats_missed_ = 5;  // keep_alive_max_attempt
  bool needs_program_ = true;
  LaunchOptions out_;
};

}  // namespace elrun::inline v0::launcher
