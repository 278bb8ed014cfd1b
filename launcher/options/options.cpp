// What was given, understood: first as text (launcher/arguments), then one rule after the other, so that all problems come
// out together.
#include "launcher/options/options.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/names.hpp"
#include "launcher/commands/install.hpp"
#include "launcher/http/status_options.hpp"
#include "launcher/options/arguments.hpp"
#include "launcher/options/cluster.hpp"
#include "launcher/options/option_values.hpp"
#include "launcher/report/endings.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::array<std::string_view, 13> rdzv_conf_keys{"join_timeout",
                                                          "last_call_timeout",
                                                          "start_timeout",
                                                          "keep_alive_interval",
                                                          "keep_alive_max_attempt",
                                                          "coordinator_grace",
                                                          "lease_ttl",
                                                          "is_host",
                                                          "cacert",
                                                          "cert",
                                                          "key",
                                                          "token_file",
                                                          "token"};

bool is_torchrun(std::string_view program_name) { return program_name.substr(program_name.rfind('/') + 1) == "torchrun"; }

class Understanding {
 public:
  Understanding(const Variables& environment, const Machine& machine, std::string_view program_name)
      : given_{environment}, environment_{environment}, machine_{machine}, scheduler_{scheduler_of(environment)} {
    if (is_torchrun(program_name)) out_.exit_codes = ExitCodes::torchrun;
  }

  Parsed launch(std::span<const std::string> words) {
    given_.read(words, problems_, out_.notes);
    if (given_.flag("help")) return Usage{0, needs_program_ ? help_text() : doctor_help_text()};
    if (given_.flag("version")) return Usage{0, "elrun " ELRUN_VERSION "\n"};
    if (given_.is_given("print_completion")) {
      if (auto text = completion_text(given_.get("print_completion").text)) return Usage{0, *std::move(text)};
      problems_.usage(fmt::format("{}: must be bash, zsh or tcsh", given_.shown("print_completion")));
    }
    understand();
    if (problems_.empty()) return std::move(out_);
    return problems_.report(out_.exit_codes);
  }

  Parsed doctor(std::span<const std::string> words) {
    needs_program_ = false;
    Parsed launched = launch(words);
    auto* options = std::get_if<LaunchOptions>(&launched);
    return options == nullptr ? std::move(launched) : DoctorOptions{std::move(*options), given_.program().has_value()};
  }

  Parsed store(std::span<const std::string> words) {
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
                        "--shutdown_timeout SECONDS or --log_format text|json",
                        known ? fmt::format("{} {}", hyphened(name), value) : hyphened(name)));
    }
    if (names_run) {
      check_run_id();
      options.run = RunId{given_.get("rdzv_id").text};
    }
    if (names_nodes) {
      understand_nodes();
      options.nodes_min = out_.round.nodes_min, options.nodes_max = out_.round.nodes_max;
    }
    understand_times();
    understand_log_format();
    options.timeouts = out_.timeouts;
    options.log_format = out_.log_format;
    options.access = out_.access;
    options.checkpoint_root = given_.get("checkpoint_root").text;
    options.notes = out_.notes;
    if (problems_.empty()) return options;
    return problems_.report(out_.exit_codes);
  }

 private:
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most) {
    const auto number = to_integer(given_.get(name).text);
    if (number && *number >= least && *number <= most) return number;
    bad_number(given_.get(name).text, fmt::format("{}: must be a whole number from {} to {}", given_.shown(name), least, most));
    return std::nullopt;
  }

  std::optional<Duration> seconds(std::string_view name, Duration least) {
    const auto time = to_seconds(given_.get(name).text);
    if (time && *time >= least) return time;
    bad_number(given_.get(name).text,
               fmt::format("{}: must be {}", given_.shown(name), least == Duration{0} ? "seconds, 0 or more" : "seconds above 0"));
    return std::nullopt;
  }

  // As torchrun tells them apart: a number that is out of bounds, and what is no number.
  void bad_number(std::string_view text, std::string why) {
    if (to_integer(text) || to_seconds(text)) problems_.value(std::move(why));
    else problems_.usage(std::move(why));
  }

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

  void understand() {
    choice("exit_codes", out_.exit_codes, {{"elrun", ExitCodes::elrun}, {"torchrun", ExitCodes::torchrun}});
    understand_program();
    understand_nodes();
    understand_workers();
    understand_times();
    understand_meeting();
    understand_output();
    understand_failures();
    understand_admin_endpoints();
    out_.role = given_.get("role").text;
    if (out_.role.size() > role_max)
      problems_.value(fmt::format("--role: {} bytes are more than the {} that a name may have", out_.role.size(), role_max));
    out_.dry_run = given_.flag("dry_run");
    check_run_id();
  }

  void check_run_id() {
    if (const std::string& id = given_.get("rdzv_id").text;
        id.size() > 256 || std::any_of(id.begin(), id.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
      problems_.value("--rdzv_id: at most 256 bytes without control characters");
  }

  void understand_program() {
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

  void understand_output() {
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
    understand_log_format();
    out_.event_log = given_.get("event_log").text;
    if (given_.is_given("logs_specs"))
      problems_.value(
          fmt::format("{}: names a class of Python, which elrun does not load; leave it out and use --log_dir, "
                      "--redirects, --tee and the filters",
                      given_.shown("logs_specs")));
  }

  void understand_log_format() { choice("log_format", out_.log_format, {{"text", LogFormat::text}, {"json", LogFormat::json}}); }

  void understand_begin_anew() {
    const std::string& text = given_.get("begin_anew").text;
    if (const auto name = parse_loss_name(text)) out_.begin_anew = to_string(*name);
    else
      problems_.value(
          fmt::format("{}: names no lost checkpoint: it is STEP@FENCE, as the job that stopped printed it, or the number of a step",
                      given_.shown("begin_anew")));
  }

  void understand_failures() {
    if (given_.is_given("max_restarts"))
      if (const auto n = integer("max_restarts", 0, 1'000'000)) out_.round.max_restarts = static_cast<std::int32_t>(*n);
    SignalList signals = parse_signals(given_.get("signals_to_handle").text);
    for (const std::string& name : signals.refused)
      out_.notes.push_back(fmt::format("--signals_to_handle: {} is no signal that can be handled, and has no effect", name));
    out_.signals_to_handle = std::move(signals.numbers);
    if (given_.is_given("begin_anew")) understand_begin_anew();
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

  void understand_admin_endpoints() {
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

  void understand_nodes() {
    out_.sources.nodes = source_of("nnodes");
    if (!given_.is_given("nnodes") && !given_.flag("standalone")) return find_nodes();
    const std::string& text = given_.get("nnodes").text;
    const auto colon = text.find(':');
    const auto least = to_integer(text.substr(0, colon));
    const auto most = colon == std::string::npos ? least : to_integer(text.substr(colon + 1));
    if (!least || !most || *least < 1 || *most < 1 || *least > nodes_limit || *most > nodes_limit)
      return problems_.value(fmt::format("{}: must be N or MIN:MAX with numbers from 1 to {}", given_.shown("nnodes"), nodes_limit));
    if (*least > *most)
      return problems_.value(
          fmt::format("{}: the least number of nodes is above the greatest; did you mean {}:{}?", given_.shown("nnodes"), *most, *least));
    out_.round.nodes_min = static_cast<std::uint32_t>(*least);
    out_.round.nodes_max = static_cast<std::uint32_t>(*most);
  }

  // One node, unless its surroundings know better. Alone in each pod of a job, all would train, and write, the same.
  void find_nodes() {
    if (scheduler_ && scheduler_->tasks > 1) {
      out_.round.nodes_min = out_.round.nodes_max = scheduler_->tasks;
      out_.sources.nodes = scheduler_->name;
      return out_.notes.push_back(
          fmt::format("no --nnodes: {} started {} tasks, and each is taken as a node; give --nnodes=1 for a job on "
                      "this one alone",
                      scheduler_->name, scheduler_->tasks));
    }
    if (given_.variable("OMPI_MCA_orte_default_hostfile") && !scheduler_)
      return problems_.value(
          "this is where an MPI job is started from, not one of its nodes: start elrun by `mpirun -npernode 1`, or give "
          "--nnodes=1 for a job in this container alone");
    std::string why;
    if (const auto index = to_integer(given_.variable("JOB_COMPLETION_INDEX").value_or("0")); index && *index > 0)
      why = fmt::format("JOB_COMPLETION_INDEX={}", *index);
    else if (const auto& name = pod(); name && name->second.empty()) why = fmt::format("this pod is called {}", machine_.host_name());
    else if (name && machine_.resolves(name->second)) why = fmt::format("there is {}", name->second);
    if (!why.empty())
      problems_.contradiction(
          fmt::format("--nnodes is not given, and {}: this looks like one of several nodes; give --nnodes N, or "
                      "--nnodes=1 if it is a job of its own",
                      why));
  }

  void understand_workers() {
    const std::string_view text = trimmed(given_.get("nproc_per_node").text);
    const bool alone = out_.round.nodes_max == 1;
    std::int64_t number = 0;
    out_.sources.workers = source_of("nproc_per_node");
    const auto take = [&](const Count& count) {
      number = count.number;
      out_.sources.workers += ", by " + count.from;
    };
    if (text == "gpu" || text == "auto") {
      const Count gpus = machine_.gpus();
      if (gpus.number == 0 && text == "auto") take(machine_.cpus());
      else take(gpus);
      if (number == 0 && alone)
        return problems_.value(
            fmt::format("{}: this machine shows no GPU ({}); use a number, cpu or auto", given_.shown("nproc_per_node"), gpus.from));
      if (number == 0) out_.notes.push_back("no GPU here: this node coordinates and runs no worker");
    } else if (text == "cpu") {
      take(machine_.cpus());
    } else if (const auto given = to_integer(text); given && *given >= 0) {
      number = *given;
      if (number == 0 && alone)
        return problems_.value(
            fmt::format("{}: a single node without workers has nothing to do; give at least 1 (0 is for the "
                        "coordinating node of --nnodes above 1)",
                        given_.shown("nproc_per_node")));
    } else if (text == "xpu") {
      return problems_.value(fmt::format("{}: elrun counts devices of NVIDIA only; give their number", given_.shown("nproc_per_node")));
    } else {
      return problems_.value(fmt::format("{}: must be a number, cpu, gpu or auto", given_.shown("nproc_per_node")));
    }
    if (number > workers_per_node_limit)
      return problems_.value(fmt::format("{}: {} workers are more than the {} that one node may have", given_.shown("nproc_per_node"),
                                         number, workers_per_node_limit));
    out_.workers = static_cast<std::uint32_t>(number);
    if (number > 1 && !given_.variable("OMP_NUM_THREADS"))
      out_.notes.push_back(
          fmt::format("OMP_NUM_THREADS is 1 for each of the {} workers here, so that they do not crowd each other; set it "
                      "to what is best for the program",
                      number));
    out_.virtual_local_rank = given_.flag("virtual_local_rank");
    const auto devices = given_.variable("CUDA_VISIBLE_DEVICES");
    if (const std::size_t named = devices ? parse_devices(*devices).size() : 0; out_.virtual_local_rank && devices && named < out_.workers)
      problems_.contradiction(
          fmt::format("--virtual_local_rank gives each worker a device of its own, but CUDA_VISIBLE_DEVICES={} names {} "
                      "for {} workers; name more, or start fewer with --nproc_per_node",
                      *devices, named, out_.workers));
  }

  void understand_times() {
    Timeouts& t = out_.timeouts;
    int attempts = 5, entry = 0;
    std::string_view rest = unquoted(given_.get("rdzv_conf").text);
    while (!trimmed(rest).empty()) {
      const std::string_view pair = unquoted(rest.substr(0, rest.find(',')));
      rest = rest.find(',') == std::string_view::npos ? std::string_view{} : rest.substr(rest.find(',') + 1);
      const auto equals = pair.find('=');
      const std::string key{trimmed(pair.substr(0, equals))};
      ++entry;
      if (equals == std::string_view::npos || key.empty()) {
        // What it says may be the rest of a token that has a comma inside.
        problems_.value(fmt::format("{}: entry {} is not KEY=VALUE", given_.shown("rdzv_conf"), entry));
        continue;
      }
      const std::string_view whole = trimmed(pair.substr(equals + 1));
      const std::string value{key == "token" ? whole : unquoted(whole)};  // a token may have any letters
      const auto time = [&](Duration& into) {
        if (const auto seconds = to_seconds(value); seconds && *seconds > 0s) into = *seconds;
        else problems_.value(fmt::format("--rdzv_conf {}={}: must be seconds above 0", key, value));
      };
      if (key == "join_timeout") time(t.join);
      else if (key == "timeout") time(t.join), out_.notes.push_back("--rdzv_conf timeout is taken as join_timeout");
      else if (key == "last_call_timeout") time(t.last_call);
      else if (key == "start_timeout") time(t.session);
      else if (key == "keep_alive_interval") time(t.heartbeat);
      else if (key == "coordinator_grace") time(t.coordinator_grace);
      else if (key == "lease_ttl") time(t.lease);
      else if (key == "keep_alive_max_attempt") {
        if (const auto n = to_integer(value); n && *n >= 2 && *n <= 1000) attempts = static_cast<int>(*n);
        else problems_.value(fmt::format("--rdzv_conf keep_alive_max_attempt={}: must be a whole number from 2 to 1000", value));
      } else if (key == "is_host") {
        if (value == "1" || value == "true" || value == "True" || value == "yes") is_host_ = true;
        else if (value == "0" || value == "false" || value == "False" || value == "no") is_host_ = false;
        else problems_.value(fmt::format("--rdzv_conf is_host={}: must be 1 or 0", value));
      } else if (std::string* path = access_path(key)) {
        *path = value;
        if (value.empty()) problems_.value(fmt::format("--rdzv_conf {}=: the path of a file is missing", key));
      } else if (key == "token") {
        out_.access.token = Secret{value};
        if (value.empty()) problems_.value("--rdzv_conf token=: the token is missing");
      } else {
        const std::string_view meant = nearest(key, rdzv_conf_keys);
        out_.notes.push_back((out_.access.token.empty() ? fmt::format("--rdzv_conf {} has no effect here", key)
                                                        : fmt::format("entry {} of --rdzv_conf has no effect here", entry)) +
                             (meant.empty() ? std::string{} : fmt::format("; did you mean {}?", meant)));
      }
    }
    understand_access();
    t.heartbeat_limit = t.heartbeat * attempts;
    understand_stop_grace();
    // What depends on a time that was made short follows it.
    t.drain = std::min(t.drain, t.stop_grace * 5 / 6);
    t.revocation = std::min(t.revocation, t.join / 2);
    t.reconnect_grace = std::min({t.reconnect_grace, t.join / 2, t.heartbeat_limit / 2});
    t.recovery = std::min(std::max(t.recovery, t.heartbeat_limit + 5s), t.join / 2);  // a dead address costs one limit
    t.coordinator_grace = std::max(t.coordinator_grace, 2 * t.heartbeat_limit);
    if (t.lease == Timeouts{}.lease) t.lease = std::min(t.lease, t.coordinator_grace / 2);  // one that was given stays
    for (const std::string& p : t.problems()) problems_.contradiction("--rdzv_conf: " + p);
    out_.round.last_call = t.last_call;
    static_cast<void>(seconds("monitor_interval", Duration{1}));  // no more than that: nothing is polled
  }

  void understand_stop_grace() {
    std::string text = given_.get("shutdown_timeout").text, source = given_.shown("shutdown_timeout");
    if (const auto variable = given_.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"); variable && !given_.is_given("shutdown_timeout"))
      text = *variable, source = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=" + text;
    else if (!given_.is_given("shutdown_timeout")) return;
    const auto time = to_seconds(text);
    if (time) out_.timeouts.stop_grace = std::max<Duration>(*time, 1ms);  // 0: SIGKILL follows at once
    else bad_number(text, source + ": must be seconds, 0 or more");
  }

  // Where the file of a key of --rdzv_conf goes; none for other keys. torchrun's names for etcd and for etcd-v2, and
  // token_file.
  std::string* access_path(std::string_view key) {
    Access& access = out_.access;
    return key == "cacert" || key == "ca_cert"     ? &access.ca_file
           : key == "cert" || key == "ssl_cert"    ? &access.certificate_file
           : key == "key" || key == "ssl_cert_key" ? &access.key_file
           : key == "token_file"                   ? &access.token_file
                                                   : nullptr;
  }

  // --rdzv_conf, where it says something, over the environment: key by key, and token and token_file as one.
  void understand_access() {
    Access& access = out_.access;
    if (!access.token.empty() && given_.get("rdzv_conf").source.starts_with("--"))
      out_.notes.push_back("a token on the command line is seen by everybody who may run ps here; prefer token_file, or ELRUN_RDZV_TOKEN");
    if (!access.has_token()) {
      access.token = Secret{given_.variable("ELRUN_RDZV_TOKEN").value_or("")};
      access.token_file = given_.variable("ELRUN_RDZV_TOKEN_FILE").value_or("");
    }
    for (const auto& [path, name] : {std::pair{&access.ca_file, "ELRUN_RDZV_CACERT"},
                                     std::pair{&access.certificate_file, "ELRUN_RDZV_CERT"}, std::pair{&access.key_file, "ELRUN_RDZV_KEY"}})
      if (path->empty()) *path = given_.variable(name).value_or("");
  }

  void understand_meeting() {
    const std::string& backend = given_.get("rdzv_backend").text;
    out_.backend = backend;
    out_.checkpoint_root = given_.get("checkpoint_root").text;
    out_.topology = given_.get("topology").text;
    if (out_.topology.size() > topology_max)
      problems_.value(fmt::format("{}: {} characters, more than {}", given_.shown("topology"), out_.topology.size(), topology_max));
    const bool by_etcd = backend == "etcd" || backend == "etcd-v2";
    if (!by_etcd && backend != "static" && backend != "c10d")
      problems_.value(fmt::format("{}: must be static, c10d or etcd", given_.shown("rdzv_backend")));
    if (given_.is_given("node_rank"))
      if (const auto n = integer("node_rank", 0, nodes_limit - 1)) out_.node_rank = static_cast<std::int32_t>(*n);
    std::optional<std::uint16_t> master_port;
    if (given_.is_given("master_port"))
      if (const auto n = integer("master_port", 0, 65535); n && *n != 0) master_port = static_cast<std::uint16_t>(*n);  // 0: any
    out_.local_address = given_.get("local_addr").text;
    if (given_.is_given("local_addr") && !host_is_plain(out_.local_address))
      problems_.value(fmt::format("{}: not a host name or address", given_.shown("local_addr")));
    else if (const auto pod_address = given_.variable("POD_IP");
             pod_address && host_is_plain(*pod_address) && !given_.is_given("local_addr") && out_.round.nodes_max > 1)
      out_.local_address = *pod_address;
    if (given_.is_given("master_addr") && !host_is_plain(given_.get("master_addr").text))
      problems_.value(fmt::format("{}: not a host name or address", given_.shown("master_addr")));

    const bool alone = out_.round.nodes_max == 1;
    out_.sources.run = source_of("rdzv_id");
    if (given_.flag("standalone")) {
      if (!alone)
        problems_.contradiction(fmt::format("--standalone means one node, but {} asks for more; drop one of them", given_.shown("nnodes")));
      return;  // run, endpoint and backend are replaced, as torchrun does
    }
    if (!alone) understand_rank(backend == "static");
    else if (out_.node_rank > 0)
      out_.notes.push_back(
          fmt::format("{} has no effect: without --nnodes above 1 this node is a job of its own; give --nnodes N if there are others",
                      given_.shown("node_rank")));
    if (by_etcd) return understand_etcd(given_.get("rdzv_endpoint").text);
    const bool is_static = backend == "static";
    // `localhost:0` stands in torchrun's documentation: any free port, so nobody else is to come.
    if (alone && given_.get("rdzv_endpoint").text.ends_with(":0")) {
      if (given_.is_given("rdzv_id")) out_.run = RunId{given_.get("rdzv_id").text};
      return;
    }
    const Asked asked = understand_endpoint();
    if (!asked.host && !asked.port && alone) {  // nobody to meet
      if (is_static && given_.is_given("master_port")) out_.run = RunId{given_.get("rdzv_id").text}, out_.master_port = master_port;
      else if (given_.is_given("rdzv_id")) out_.run = RunId{given_.get("rdzv_id").text};
      return;
    }
    out_.run = RunId{given_.get("rdzv_id").text.empty() ? "none" : given_.get("rdzv_id").text};
    if (asked.host) out_.endpoint = Endpoint{*asked.host, 0}, out_.sources.endpoint = source_of("rdzv_endpoint");
    else if (!find_endpoint(is_static, master_port,
                            asked.port ? given_.shown("rdzv_endpoint") + " names no host, and" : given_.shown("nnodes")))
      return;
    if (asked.port) out_.endpoint->port = *asked.port;
    else if (out_.endpoint->port == 0) out_.endpoint->port = is_static ? master_port_default : endpoint_port_default;
    if (is_static && master_port) out_.master_port = master_port;
    // The worker of rank 0 is to listen there: a program may have that port in its own arguments.
    const bool shares_port = out_.master_port == out_.endpoint->port;
    if (shares_port) out_.endpoint->port = meeting_port_beside(*master_port);
    if (!asked.host)
      out_.notes.push_back(fmt::format("{}; the nodes meet at {}:{}, by {}{}",
                                       asked.port ? given_.shown("rdzv_endpoint") + " names no host" : std::string{"no --rdzv_endpoint"},
                                       out_.endpoint->host, out_.endpoint->port, out_.sources.endpoint,
                                       shares_port ? fmt::format("; port {} is left to the workers (MASTER_PORT)", *master_port) : ""));
    if (is_host_) out_.host_rule = *is_host_ ? HostRule::always : HostRule::never;
    else if (is_static && given_.is_given("node_rank")) out_.host_rule = out_.node_rank == 0 ? HostRule::always : HostRule::never;
  }

  // Orders the first formation of ranks, so that the pod called 0 has rank 0.
  void understand_rank(bool is_static) {
    if (given_.is_given("node_rank")) {
      out_.sources.node_rank = source_of("node_rank");
      if (out_.node_rank < static_cast<std::int64_t>(out_.round.nodes_max)) return;
      const std::string why =
          fmt::format("{}: {} nodes have the ranks 0 to {}", given_.shown("node_rank"), out_.round.nodes_max, out_.round.nodes_max - 1);
      if (is_static)
        problems_.value(why + "; count nodes from 0, and not workers");  // torchrun's nodes would wait for the one that is missing
      else out_.notes.push_back(why + "; it only orders the nodes, and this one comes last");
    } else if (const auto hint = rank_hint(environment_, scheduler_, machine_.host_name())) {
      out_.node_rank = static_cast<std::int32_t>(hint->rank);
      out_.sources.node_rank = hint->source;
    }
  }

  // What --rdzv_endpoint leaves to be found elsewhere: a shell writes `:29400` and `host:` when a variable is not set.
  struct Asked {
    std::optional<std::string> host;
    std::optional<std::uint16_t> port;
  };
  Asked understand_endpoint() {
    std::string_view text = trimmed(given_.get("rdzv_endpoint").text);
    if (text == ":" || (text.ends_with(':') && std::count(text.begin(), text.end(), ':') == 1)) {
      out_.notes.push_back(fmt::format("{} has no port behind the colon; an unset variable?", given_.shown("rdzv_endpoint")));
      text.remove_suffix(1);
    }
    if (text.empty()) return {};
    const auto parsed = parse_endpoint(text, 0);
    if (!parsed) {
      problems_.value(fmt::format("{}: {}", given_.shown("rdzv_endpoint"), parsed.failure().what));
      return {};
    }
    Asked asked;
    if (!parsed->host.empty()) asked.host = parsed->host;
    if (parsed->port != 0) asked.port = parsed->port;
    return asked;
  }

  // Where the nodes of this job can meet, from what else is known; says what it looked at when that is nothing.
  bool find_endpoint(bool is_static, std::optional<std::uint16_t> master_port, const std::string& who) {
    if (!problems_.empty()) return false;  // one endpoint that cannot be read is enough of a message
    const auto take = [&](Endpoint endpoint, std::string source) {
      if (endpoint.port == 0 && master_port) endpoint.port = *master_port;
      out_.endpoint = std::move(endpoint), out_.sources.endpoint = std::move(source);
      return true;
    };
    const bool overridden = given_.get("rdzv_endpoint").source.starts_with("--");
    if (const auto variable = given_.variable("PET_RDZV_ENDPOINT"); variable && overridden)
      if (const auto parsed = parse_endpoint(*variable, 0); parsed && !parsed->host.empty()) return take(*parsed, "PET_RDZV_ENDPOINT");
    if (given_.is_given("master_addr")) return take({given_.get("master_addr").text, 0}, source_of("master_addr"));
    if (const auto host = given_.variable("MASTER_ADDR")) {
      const auto port = to_integer(given_.variable("MASTER_PORT").value_or("0"));
      if (!host_is_plain(*host) || !port || *port < 0 || *port > 65535)
        return problems_.value("MASTER_ADDR and MASTER_PORT: not a host and a port; give --rdzv_endpoint HOST:PORT"), false;
      return take({*host, master_port.value_or(static_cast<std::uint16_t>(*port))}, "MASTER_ADDR");
    }
    if (scheduler_ && scheduler_->endpoint) {
      if (!given_.is_given("rdzv_id") && !scheduler_->run.empty()) out_.run = RunId{scheduler_->run}, out_.sources.run = scheduler_->name;
      return take(*scheduler_->endpoint, scheduler_->name);
    }
    if (const auto& name = pod()) return take({name->first, name->port.value_or(0)}, "the name of this pod");
    if (is_static && (master_port || given_.is_given("node_rank")) && !in_kubernetes())
      return take({"127.0.0.1", 0}, "torchrun's default, which leads nowhere else");
    problems_.contradiction(fmt::format(
        "{} needs a place where the nodes meet, and none was found: --master_addr, PET_RDZV_ENDPOINT, PET_MASTER_ADDR and MASTER_ADDR are "
        "not set, {}, and {} is not the name of a pod that tells it; give --rdzv_endpoint HOST:PORT",
        who, scheduler_ ? scheduler_->name + " does not tell it" : "neither Slurm nor mpirun started this", machine_.host_name()));
    return false;
  }

  bool in_kubernetes() const { return given_.variable("KUBERNETES_SERVICE_HOST").has_value(); }

  const std::optional<PodName>& pod() {
    if (!pod_)
      pod_ = in_kubernetes() ? pod_name(environment_, machine_.host_name(), machine_.read_file("/etc/hosts").value_or("")) : std::nullopt;
    return *pod_;
  }

  // "--nnodes", "PET_NNODES" or "default".
  std::string source_of(std::string_view option) const {
    const std::string& source = given_.get(option).source;
    return source.empty() ? "default" : source;
  }

  void understand_etcd(std::string_view servers) {
    if (trimmed(servers).empty())
      problems_.contradiction(fmt::format("{} needs the addresses of etcd's servers: give --rdzv_endpoint HOST:PORT[,HOST:PORT...]",
                                          given_.shown("rdzv_backend")));
    const std::string_view run = trimmed(given_.get("rdzv_id").text);
    if (!given_.is_given("rdzv_id") || run.empty() || run == "none")
      problems_.contradiction(
          fmt::format("{} keeps a job's coordinator and its newest generation under the job's name: give each job "
                      "an --rdzv_id of its own",
                      given_.shown("rdzv_backend")));
    out_.run = RunId{given_.get("rdzv_id").text};
    out_.sources.endpoint = source_of("rdzv_endpoint");
    for (std::string_view rest = servers; !trimmed(rest).empty();) {
      const std::string_view server = rest.substr(0, rest.find(','));
      rest = rest.find(',') == std::string_view::npos ? std::string_view{} : rest.substr(rest.find(',') + 1);
      const auto parsed = parse_endpoint(server, etcd_port_default);
      if (!parsed || parsed->host.empty())
        return problems_.value(
            fmt::format("{}: `{}` {}", given_.shown("rdzv_endpoint"), server, parsed ? "names no host" : parsed.failure().what));
      out_.etcd.push_back(*parsed);
    }
    if (out_.etcd.size() > etcd_servers_max)
      problems_.value(fmt::format("{}: more than {} servers", given_.shown("rdzv_endpoint"), etcd_servers_max));
    if (is_host_) out_.host_rule = *is_host_ ? HostRule::always : HostRule::never;
  }

  Arguments given_;
  const Variables& environment_;
  const Machine& machine_;
  const std::optional<Scheduler> scheduler_;
  std::optional<std::optional<PodName>> pod_;  // looked up once
  Problems problems_;
  std::optional<bool> is_host_;
  bool needs_program_ = true;
  LaunchOptions out_;
};

}  // namespace

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

Parsed parse_command(std::span<const std::string> arguments, const Variables& environment, const Machine& machine,
                     std::string_view program_name) {
  Understanding understanding{environment, machine, program_name};
  const std::string_view first = arguments.empty() || is_torchrun(program_name) ? std::string_view{} : std::string_view{arguments[0]};
  const auto as_parsed = [](auto parsed) {
    return std::visit([](auto&& options) { return Parsed{std::move(options)}; }, std::move(parsed));
  };
  if (first == "store") return understanding.store(arguments);
  if (first == "doctor") return understanding.doctor(arguments.subspan(1));
  if (first == "status") return as_parsed(parse_status(arguments.subspan(1)));
  if (first == "install") return as_parsed(parse_install(arguments.subspan(1)));
  return understanding.launch(arguments);
}

}  // namespace elrun::inline v0::launcher
