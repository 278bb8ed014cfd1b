// The command line as a whole, and the options of the program, its output and its failures.
#include "launcher/options/options.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/format/names.hpp"
#include "launcher/commands/ckpt_options.hpp"
#include "launcher/commands/drain_options.hpp"
#include "launcher/commands/install.hpp"
#include "launcher/http/status_options.hpp"
#include "launcher/options/host.hpp"
#include "launcher/options/option_parser.hpp"
#include "launcher/options/option_values.hpp"
#include "launcher/report/endings.hpp"
#include "lib/base/printable.hpp"

namespace elrun::inline v0::launcher {
namespace {

bool is_torchrun(std::string_view program_name) { return program_name.substr(program_name.rfind('/') + 1) == "torchrun"; }

}  // namespace

OptionParser::OptionParser(const Variables& environment, const Machine& machine, std::string_view program_name)
    : given_{environment}, environment_{environment}, machine_{machine}, scheduler_{scheduler_of(environment)} {
  if (is_torchrun(program_name)) out_.exit_codes = ExitCodes::torchrun;
}

Parsed OptionParser::launch(std::span<const std::string> words) {
  given_.read(words, problems_, out_.notes);
  if (given_.flag("help")) return Usage{0, needs_program_ ? help_text() : doctor_help_text()};
  if (given_.flag("version")) return Usage{0, "elrun " ELRUN_VERSION "\n"};
  if (given_.is_given("print_completion")) {
    if (auto text = completion_text(given_.get("print_completion").text)) return Usage{0, *std::move(text)};
    problems_.usage(fmt::format("{}: must be bash, zsh or tcsh", given_.shown("print_completion")));
  }
  parse_all();
  if (problems_.empty()) return std::move(out_);
  return problems_.report(out_.exit_codes);
}

Parsed OptionParser::doctor(std::span<const std::string> words) {
  needs_program_ = false;
  Parsed launched = launch(words);
  auto* options = std::get_if<LaunchOptions>(&launched);
  return options == nullptr ? std::move(launched) : DoctorOptions{std::move(*options), given_.program().has_value()};
}

Parsed OptionParser::store(std::span<const std::string> words) {
  StoreOptions options;
  bool names_run = false, names_nodes = false;  // in the command line alone: what agents find in their environment is not meant for it
  for (std::size_t i = 1; i < words.size(); ++i) {
    std::string name = words[i], value;
    if (name == "-h" || name == "--help") return Usage{0, store_help_text()};
    if (const auto equals = name.find('='); equals != std::string::npos) value = name.substr(equals + 1), name.resize(equals);
    else if (i + 1 < words.size()) value = words[++i];
    std::replace(name.begin(), name.end(), '-', '_');
    const auto port = to_integer(value);
    const bool known = name == "__host" || name == "__port";  // what stands behind another name may be a secret
    if (name == "__host" && host_is_plain(value)) options.host = value;
    else if (name == "__port" && port && *port >= 0 && *port <= 65535) options.port = static_cast<std::uint16_t>(*port);
    else if (name == "__rdzv_id" && !value.empty()) given_.set("rdzv_id", value, "--rdzv_id"), names_run = true;
    else if (name == "__nnodes") given_.set("nnodes", value, "--nnodes"), names_nodes = true;
    else if (name == "__rdzv_conf" || name == "__shutdown_timeout" || name == "__checkpoint_root" || name == "__log_format")
      given_.set(name.substr(2), value, "--" + name.substr(2));
    else
      problems_.usage(
          fmt::format("elrun store: `{}` is not --host ADDRESS, --port 0..65535, --rdzv_id ID, --nnodes N|MIN:MAX, --rdzv_conf K=V,..., "
                      "--shutdown_timeout SECONDS, --checkpoint_root DIR or --log_format text|json",
                      known ? fmt::format("{} {}", hyphened(name), value) : hyphened(name)));
  }
  if (names_run) {
    check_run_id();
    options.run = RunId{given_.get("rdzv_id").text};
  }
  if (names_nodes) {
    parse_nodes();
    options.nodes_min = out_.round.nodes_min, options.nodes_max = out_.round.nodes_max;
  }
  parse_times();
  check_token();
  parse_log_format();
  options.timeouts = out_.timeouts;
  options.log_format = out_.log_format;
  options.access = out_.access;
  options.checkpoint_root = given_.get("checkpoint_root").text;
  options.notes = out_.notes;
  if (problems_.empty()) return options;
  return problems_.report(out_.exit_codes);
}

std::optional<std::int64_t> OptionParser::integer(std::string_view name, std::int64_t least, std::int64_t most) {
  const auto number = to_integer(given_.get(name).text);
  if (number && *number >= least && *number <= most) return number;
  bad_number(given_.get(name).text, fmt::format("{}: must be a whole number from {} to {}", given_.shown(name), least, most));
  return std::nullopt;
}

std::optional<Duration> OptionParser::seconds(std::string_view name, Duration least) {
  const auto time = to_seconds(given_.get(name).text);
  if (time && *time >= least) return time;
  bad_number(given_.get(name).text,
             fmt::format("{}: must be {}", given_.shown(name), least == Duration{0} ? "seconds, 0 or more" : "seconds above 0"));
  return std::nullopt;
}

// As torchrun tells them apart: a number that is out of bounds, and what is no number.
void OptionParser::bad_number(std::string_view text, std::string why) {
  if (to_integer(text) || to_seconds(text)) problems_.value(std::move(why));
  else problems_.usage(std::move(why));
}

void OptionParser::parse_all() {
  choice("exit_codes", out_.exit_codes, {{"elrun", ExitCodes::elrun}, {"torchrun", ExitCodes::torchrun}});
  parse_program();
  parse_nodes();
  parse_workers();
  parse_times();
  parse_meeting();
  if ((out_.endpoint || !out_.etcd.empty()) && out_.round.nodes_max > 1) check_token();
  parse_output();
  parse_failures();
  parse_admin_endpoints();
  check_health_port();
  out_.role = given_.get("role").text;
  if (out_.role.size() > role_max)
    problems_.value(fmt::format("--role: {} bytes are more than the {} that a name may have", out_.role.size(), role_max));
  out_.dry_run = given_.flag("dry_run");
  check_run_id();
}

void OptionParser::check_run_id() {
  if (const std::string& id = given_.get("rdzv_id").text; id.size() > 256 || printable(id) != id)
    problems_.value("--rdzv_id: at most 256 bytes of UTF-8 without control characters");
}

void OptionParser::parse_program() {
  if (given_.program()) out_.program = *given_.program();
  else if (needs_program_) problems_.usage("no PROGRAM to run; it follows the options");
  const bool by_path = given_.flag("run_path");  // which torchrun prefers to the other two
  if (given_.flag("module") && given_.flag("no_python") && !by_path)
    problems_.contradiction("--module and --no_python contradict each other: a module needs Python; drop one");
  out_.program.kind = by_path                    ? Program::Kind::run_path
                      : given_.flag("module")    ? Program::Kind::module
                      : given_.flag("no_python") ? Program::Kind::executable
                                                 : Program::Kind::script;
  if (given_.flag("local_rank_argument") && !given_.flag("use_env")) {
    if (out_.program.kind == Program::Kind::executable)
      problems_.contradiction("--local_rank_argument and --no_python contradict each other; give --use_env, or drop one");
    out_.program.arguments.insert(out_.program.arguments.begin(), "--local-rank=${local_rank}");
  }
  if (given_.is_given("start_method")) {
    const std::string& method = given_.get("start_method").text;
    if (method != "spawn" && method != "fork" && method != "forkserver")
      problems_.usage(fmt::format("{}: must be spawn, fork or forkserver", given_.shown("start_method")));
  }
}

void OptionParser::parse_output() {
  for (const auto& [name, into] : {std::pair{"redirects", &out_.redirects}, {"tee", &out_.tee}}) {
    if (const auto streams = parse_streams(given_.get(name).text)) *into = *streams;
    else
      problems_.value(
          fmt::format("{}: must be 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), or such a number for each "
                      "local rank: 0:1,1:3",
                      given_.shown(name)));
  }
  out_.log_dir = given_.get("log_dir").text;
  out_.log_line_prefix_template = given_.get("log_line_prefix_template").text;
  if (out_.log_line_prefix_template.empty())
    out_.log_line_prefix_template = given_.variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  if (const std::string& ranks = given_.get("local_ranks_filter").text; !ranks.empty()) {
    out_.local_ranks_filter = parse_ranks(ranks);
    if (!out_.local_ranks_filter)
      problems_.value(fmt::format("{}: must be local ranks joined by commas: 0,2", given_.shown("local_ranks_filter")));
  }
  out_.duplicate_stdout_filters = parse_line_filters(given_.get("duplicate_stdout_filters").text);
  out_.duplicate_stderr_filters = parse_line_filters(given_.get("duplicate_stderr_filters").text);
  choice("event_log_handler", out_.event_log_handler,
         {{"null", EventLogHandler::null},
          {"console", EventLogHandler::console},
          {"dynamic_rendezvous", EventLogHandler::dynamic_rendezvous}});
  parse_log_format();
  out_.event_log = given_.get("event_log").text;
  if (given_.is_given("logs_specs"))
    problems_.value(
        fmt::format("{}: names a class of Python, which elrun does not load; leave it out and use --log_dir, "
                    "--redirects, --tee and the filters",
                    given_.shown("logs_specs")));
}

void OptionParser::parse_log_format() { choice("log_format", out_.log_format, {{"text", LogFormat::text}, {"json", LogFormat::json}}); }

void OptionParser::parse_begin_anew() {
  const std::string& text = given_.get("begin_anew").text;
  if (const auto name = parse_loss_name(text)) out_.begin_anew = to_string(*name);
  else
    problems_.value(
        fmt::format("{}: names no lost checkpoint: it is STEP@FENCE, as the job that stopped printed it, or the number of a step",
                    given_.shown("begin_anew")));
}

void OptionParser::parse_failures() {
  if (given_.is_given("max_restarts"))
    if (const auto n = integer("max_restarts", 0, 1'000'000)) out_.round.max_restarts = static_cast<std::int32_t>(*n);
  SignalList signals = parse_signals(given_.get("signals_to_handle").text);
  for (const std::string& name : signals.refused)
    out_.notes.push_back(fmt::format("--signals_to_handle: {} is no signal that can be handled, and has no effect", name));
  out_.signals_to_handle = std::move(signals.numbers);
  if (given_.is_given("begin_anew")) parse_begin_anew();
  if (const std::string& notice = given_.get("preempt_notice").text; !trimmed(notice).empty()) {
    if (auto source = parse_notice_source(notice); source.ok()) out_.preempt_notice = *std::move(source);
    else problems_.value(fmt::format("{}: {}", given_.shown("preempt_notice"), source.failure().what));
  }
  if (const auto time = seconds("hang_timeout", Duration{0})) out_.hang_timeout = *time;
  choice("hang_on", out_.hang_sign, {{"progress", HangSign::progress}, {"output", HangSign::output}});
  const bool by_output = out_.hang_timeout > Duration{0} && out_.hang_sign == HangSign::output;
  for (std::uint32_t i = 0; by_output && i < out_.workers; ++i)
    if ((out_.tee.of(LocalRank{i}) == Streams{} && out_.redirects.of(LocalRank{i}) == Streams{}) || out_.log_dir == "/dev/null") {
      problems_.contradiction(fmt::format(
          "--hang_on output: elrun does not see what worker {} writes; add --tee 3 or --redirects 3, and a --log_dir other than /dev/null",
          i));
      break;
    }
  choice("numa_binding", out_.numa_binding,
         {{"node", NumaBinding::node},
          {"socket", NumaBinding::socket},
          {"exclusive", NumaBinding::exclusive},
          {"core-complex", NumaBinding::core_complex}});
}

void OptionParser::parse_admin_endpoints() {
  out_.side.has_timer_file = given_.variable("TORCHELASTIC_ENABLE_FILE_TIMER") == "1";
  out_.side.timer_file = given_.variable("TORCHELASTIC_TIMER_FILE").value_or("");
  if (given_.is_given("health_port")) {
    if (auto port = parse_health_port(given_.get("health_port").text); port.ok()) out_.side.health = *port;
    else problems_.value(fmt::format("{}: {}", given_.shown("health_port"), port.failure().what));
  } else if (const auto variable = given_.variable("TORCHELASTIC_HEALTH_CHECK_PORT")) {
    if (auto port = parse_health_port(*variable); port.ok() && port->host.empty()) {
      out_.side.health = *port;
      out_.side.health->is_needed = false;
    } else {
      out_.notes.push_back(fmt::format("TORCHELASTIC_HEALTH_CHECK_PORT={} is no port, and has no effect", *variable));
    }
  }
}

// The health port is opened first: what else is to listen there could not, and the nodes would wait for it.
void OptionParser::check_health_port() {
  auto& health = out_.side.health;
  if (!health || health->port == 0) return;
  std::string taken_by;
  if (out_.endpoint && out_.endpoint->port == health->port) {
    const std::string& host = out_.endpoint->host;
    // What other names lead to is known when they are looked up.
    const std::vector<std::string> leads_to =
        is_loopback(host) || host == "localhost" ? std::vector<std::string>{"127.0.0.1"} : std::vector<std::string>{};
    if (host_place(*out_.endpoint, out_.host_rule, {machine_.host_name(), {}, leads_to}))
      taken_by = fmt::format("where this node would serve the rendezvous ({}:{})", host, health->port);
  }
  if (out_.master_port == health->port && out_.node_rank <= 0) taken_by = "that of the worker of rank 0 (--master_port)";
  if (taken_by.empty()) return;
  if (health->is_needed)
    return problems_.contradiction(
        fmt::format("{}: this port is also {}; give --health_port another one, or 0 for any", given_.shown("health_port"), taken_by));
  out_.notes.push_back(fmt::format("TORCHELASTIC_HEALTH_CHECK_PORT={} has no effect: this port is also {}", health->port, taken_by));
  health.reset();
}

Result<Endpoint> parse_endpoint(std::string_view text, std::uint16_t port_default) {
  text = trimmed(text);
  std::string_view host = text, port;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos)
      return Failure{Code::invalid_argument, Remedy::fix_config, "an IPv6 address in brackets must end with ]"};
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (host.empty() || (!rest.empty() && rest[0] != ':'))
      return Failure{Code::invalid_argument, Remedy::fix_config, "must be HOST or HOST:PORT"};
    if (!rest.empty()) port = rest.substr(1);
    if (!rest.empty() && port.empty()) return Failure{Code::invalid_argument, Remedy::fix_config, "the port after : is missing"};
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    host = text.substr(0, text.find(':'));
    port = text.substr(text.find(':') + 1);
    if (port.empty()) return Failure{Code::invalid_argument, Remedy::fix_config, "the port after : is missing"};
  }
  while (host.size() > 1 && host.ends_with('.')) host.remove_suffix(1);  // a fully qualified name's last dot
  if (host.empty() && port.empty()) return Failure{Code::invalid_argument, Remedy::fix_config, "must be HOST or HOST:PORT"};
  if (!host.empty() && !host_is_plain(host))
    return Failure{Code::invalid_argument, Remedy::fix_config, "the host may hold letters, digits and _ . - : only"};
  Endpoint endpoint{std::string{host}, port_default};
  if (!port.empty()) {
    const auto number = to_integer(port);
    if (!number || *number < 1 || *number > 65535 || port.size() > 5)
      return Failure{Code::invalid_argument, Remedy::fix_config, "the port must be a number from 1 to 65535"};
    endpoint.port = static_cast<std::uint16_t>(*number);
  }
  return endpoint;
}

Variables without_secrets(Variables environment) {
  environment.erase("ELRUN_RDZV_TOKEN");
  const auto conf = environment.find("PET_RDZV_CONF");
  if (conf == environment.end()) return environment;
  // As a whole: a worker has no use for the rest either.
  for (std::string_view rest = unquoted(conf->second); !rest.empty();) {
    const std::string_view pair = unquoted(rest.substr(0, rest.find(',')));
    rest = rest.find(',') == std::string_view::npos ? std::string_view{} : rest.substr(rest.find(',') + 1);
    if (trimmed(pair.substr(0, pair.find('='))) != "token") continue;
    environment.erase(conf);
    break;
  }
  return environment;
}

bool is_side_command(std::span<const std::string> arguments, std::string_view program_name) {
  constexpr std::array names{"status", "drain", "doctor", "install", "ckpt", "chaos", "ckptd"};
  return !arguments.empty() && !is_torchrun(program_name) && std::ranges::find(names, arguments[0]) != names.end();
}

Parsed parse_command(std::span<const std::string> arguments, const Variables& environment, const Machine& machine,
                     std::string_view program_name) {
  OptionParser parser{environment, machine, program_name};
  const std::string_view first = arguments.empty() || is_torchrun(program_name) ? std::string_view{} : std::string_view{arguments[0]};
  const auto as_parsed = [](auto parsed) {
    return std::visit([](auto&& options) { return Parsed{std::forward<decltype(options)>(options)}; }, std::move(parsed));
  };
  if (first == "store") return parser.store(arguments);
  if (first == "doctor") return parser.doctor(arguments.subspan(1));
  if (first == "status") return as_parsed(parse_status(arguments.subspan(1)));
  if (first == "drain") return as_parsed(parse_drain(arguments.subspan(1)));
  if (first == "ckpt") return as_parsed(parse_ckpt(arguments.subspan(1)));
  if (first == "chaos") return as_parsed(parse_chaos(arguments.subspan(1), environment, machine));
  if (first == "ckptd")
    return CkptdOptions{arguments.size() > 1 && arguments[1] == "--log_format=json" ? LogFormat::json : LogFormat::text};
  if (first == "install") return as_parsed(parse_install(arguments.subspan(1)));
  return parser.launch(arguments);
}

}  // namespace elrun::inline v0::launcher
