// One table holds every option; the command line and PET_* both end in the same `set`, so that a value is checked by
// the same rule wherever it comes from. Values are first collected as text (command line over PET_* over default), and
// understood afterwards, so that all problems come out together and rules over several options see all of them.
#include "launcher/options.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include <fmt/format.h>

namespace elrun::inline v0::launcher {
namespace {

enum class Kind { value, flag, later };  // later: known to torchrun, not here yet; only its neutral value passes

struct Option {
  std::string_view name;  // with underscores
  char letter;
  Kind kind;
  std::string_view initial;  // default, or the neutral value of `later`
  std::string_view value;    // shown in the help
  std::string_view help;
};

constexpr std::array table{
    Option{"nnodes", 0, Kind::value, "1", "N|MIN:MAX", "nodes of the job; a range lets nodes come and go"},
    Option{"nproc_per_node", 0, Kind::value, "1", "N|auto|gpu|cpu",
           "workers on this node; 0 with several nodes: it only coordinates"},
    Option{"node_rank", 0, Kind::value, "", "N",
           "orders the first formation of ranks; with static, node 0 serves the rendezvous"},
    Option{"rdzv_endpoint", 0, Kind::value, "", "HOST[:PORT]",
           "where the nodes meet; the node it leads to serves (port 29400);\nwith etcd its servers, separated by commas (port 2379)"},
    Option{"rdzv_backend", 0, Kind::value, "static", "static|c10d|etcd",
           "who serves: node rank 0, whoever the endpoint leads to, or\nwhoever the agents elect through etcd (3.3 or later)"},
    Option{"rdzv_id", 0, Kind::value, "none", "ID", "name of the job; nodes of another job are refused"},
    Option{"rdzv_conf", 0, Kind::value, "", "K=V,...",
           "join_timeout, last_call_timeout, coordinator_grace,\nkeep_alive_interval, keep_alive_max_attempt, is_host,\nlease_ttl (seconds; 1 or 0); cacert, cert, key, token_file, token\n(see Access below)"},
    Option{"standalone", 0, Kind::flag, "0", "", "one node, nobody to meet; the default when no endpoint is given"},
    Option{"max_restarts", 0, Kind::value, "", "N",
           "failures that are answered by a restart (0; 3 without progress\nfor programs that use libelrun's Job)"},
    Option{"master_addr", 0, Kind::value, "", "HOST", "static without an endpoint: the node of rank 0 (127.0.0.1)"},
    Option{"master_port", 0, Kind::value, "", "PORT", "static without an endpoint: its port (29500)"},
    Option{"checkpoint_root", 0, Kind::value, "", "DIR",
           "where the job's checkpoints are: when all its processes are\nnew, its generations are counted on from there"},
    Option{"topology", 0, Kind::value, "", "ZONE/RACK/HOST", "labels of this node, outermost first: nodes that share them get\nneighbouring ranks"},
    Option{"local_addr", 0, Kind::value, "", "ADDRESS", "how the other nodes reach this one; otherwise found out"},
    Option{"role", 0, Kind::value, "default", "NAME", "ROLE_NAME of the workers"},
    Option{"module", 'm', Kind::flag, "0", "", "PROGRAM is a Python module: python -u -m PROGRAM"},
    Option{"no_python", 0, Kind::flag, "0", "", "PROGRAM is an executable, searched on PATH"},
    Option{"monitor_interval", 0, Kind::value, "0.1", "SECONDS",
           "accepted; a death is seen at once, nothing is polled"},
    Option{"shutdown_timeout", 0, Kind::value, "", "SECONDS", "between the signal that ends workers and SIGKILL (30)"},
    Option{"redirects", 'r', Kind::later, "0", "", ""},
    Option{"tee", 't', Kind::later, "0", "", ""},
    Option{"log_dir", 0, Kind::later, "", "", ""},
    Option{"start_method", 0, Kind::later, "spawn", "", ""},
    Option{"event_log_handler", 0, Kind::later, "null", "", ""},
    Option{"run_path", 0, Kind::later, "0", "", ""},
    Option{"log_line_prefix_template", 0, Kind::later, "", "", ""},
    Option{"local_ranks_filter", 0, Kind::later, "", "", ""},
    Option{"duplicate_stdout_filters", 0, Kind::later, "", "", ""},
    Option{"duplicate_stderr_filters", 0, Kind::later, "", "", ""},
    Option{"logs_specs", 0, Kind::later, "", "", ""},
    Option{"numa_binding", 0, Kind::later, "", "", ""},
    Option{"signals_to_handle", 0, Kind::later, "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "", ""},
    Option{"virtual_local_rank", 0, Kind::later, "0", "", ""},
    Option{"help", 'h', Kind::flag, "0", "", "this text"},
    Option{"version", 0, Kind::flag, "0", "", "elrun's version"},
};

bool is_flag(const Option& o) { return o.kind == Kind::flag || o.name == "run_path" || o.name == "virtual_local_rank"; }

std::string pet_name(const Option& o) {
  std::string name = "PET_";
  for (const char c : o.name) name += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

std::string hyphened(std::string_view name) {
  std::string text{name};
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

std::string help_text() {
  std::string text =
      "usage: elrun [options] PROGRAM [arguments...]     start the workers of this node, and keep the job going\n"
      "       elrun store [--host ADDRESS] [--port PORT]  serve a job's rendezvous from a process of its own\n"
      "                   (--rdzv_conf, --shutdown_timeout, --checkpoint_root as the job's agents have them)\n\n"
      "Options stand before PROGRAM, with hyphens or underscores, as `--option value` or `--option=value`. Each takes "
      "its\n"
      "default from the environment: PET_NNODES for --nnodes, and so on. What follows PROGRAM belongs to it.\n\n";
  for (const Option& o : table) {
    if (o.kind == Kind::later) continue;
    std::string left = fmt::format("  {}--{}", o.letter ? fmt::format("-{}, ", o.letter) : "", hyphened(o.name));
    if (!o.value.empty()) left += fmt::format(" {}", o.value);
    std::string help{o.help};
    for (std::size_t at = 0; (at = help.find('\n', at)) != std::string::npos; at += 34)
      help.replace(at, 1, "\n" + std::string(33, ' '));
    text += fmt::format("{:<32} {}\n", left, help);
  }
  return text +
         "\nAccess to the rendezvous, the same on every node and for `elrun store`: mutual TLS by cacert, cert and key (PEM\n"
         "files), a shared token by token_file, or both; as keys of --rdzv_conf, or as ELRUN_RDZV_CACERT, ELRUN_RDZV_CERT,\n"
         "ELRUN_RDZV_KEY, ELRUN_RDZV_TOKEN_FILE. The token itself (token=, ELRUN_RDZV_TOKEN) is better kept off a command\n"
         "line, where ps shows it. Workers never see the token.\n"
         "\nExit codes: 0 the job is done; 1 to 125 the program's own (78 of a Job: never restarted). elrun's own: 64 usage,\n"
         "66 script missing, 78 contradictory options, 126/127 program cannot be executed/found, 128+n ended by signal n,\n"
         "170 the nodes did not meet in time, 171 the rendezvous was lost, 172 too few nodes are left. The root cause\n"
         "decides, on every node. See launcher/README.md.\n\n"
         "  elrun --nproc_per_node 4 --no_python ./train              one node, four workers\n"
         "  elrun --nnodes 2:3 --nproc_per_node gpu --rdzv_backend c10d --rdzv_endpoint node0:29400 train.py\n";
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// As Python's int() for plain decimal numbers: blanks around it and a sign are fine.
std::optional<std::int64_t> to_integer(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

constexpr double seconds_max = 365.0 * 86400;
std::optional<Duration> to_seconds(std::string_view text) {
  text = trimmed(text);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || !(number >= 0) || number > seconds_max)
    return std::nullopt;
  return Duration{static_cast<std::int64_t>(std::llround(number * 1e9))};
}

bool host_is_plain(std::string_view host) {
  return !host.empty() && host.size() <= 255 && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' ||
           c == '-' || c == ':';
  });
}

// What one option was given, and from where: "--nnodes" or "PET_NNODES".
struct Given {
  std::string text;
  std::string source;  // empty: the default
};

class Parser {
 public:
  Parser(std::span<const std::string> arguments, const Variables& environment, const Machine& machine)
      : arguments_{arguments}, environment_{environment}, machine_{machine} {
    for (const Option& o : table) given_.emplace(o.name, Given{std::string{o.initial}, {}});
  }

  std::variant<LaunchOptions, StoreOptions, Usage> launch() {
    read_environment();
    read_arguments();
    if (flag("help")) return Usage{0, help_text()};
    if (flag("version")) return Usage{0, "elrun " ELRUN_VERSION "\n"};
    understand();
    if (usage_.empty() && contradictions_.empty()) return std::move(out_);
    return report();
  }

  std::variant<LaunchOptions, StoreOptions, Usage> store() {
    StoreOptions options;
    for (std::size_t i = 1; i < arguments_.size(); ++i) {
      std::string name = arguments_[i], value;
      if (name == "-h" || name == "--help") return Usage{0, help_text()};
      if (const auto equals = name.find('='); equals != std::string::npos)
        value = name.substr(equals + 1), name.resize(equals);
      else if (i + 1 < arguments_.size())
        value = arguments_[++i];
      std::replace(name.begin(), name.end(), '-', '_');
      const auto port = to_integer(value);
      const bool known = name == "__host" || name == "__port";  // what stands behind another name may be a secret
      if (name == "__host" && host_is_plain(value))
        options.host = value;
      else if (name == "__port" && port && *port >= 0 && *port <= 65535)
        options.port = static_cast<std::uint16_t>(*port);
      else if (name == "__rdzv_conf" || name == "__shutdown_timeout" || name == "__checkpoint_root")
        given_.find(name.substr(2))->second = {value, "--" + name.substr(2)};
      else
        problem(fmt::format("elrun store: `{}` is not --host ADDRESS, --port 0..65535, --rdzv_conf K=V,... or --shutdown_timeout "
                            "SECONDS",
                            known ? fmt::format("{} {}", hyphened(name), value) : hyphened(name)));
    }
    understand_times();
    options.timeouts = out_.timeouts;
    options.access = out_.access;
    options.checkpoint_root = get("checkpoint_root").text;
    options.notes = out_.notes;
    if (usage_.empty() && contradictions_.empty()) return options;
    return report();
  }

 private:
  void problem(std::string text) { usage_.push_back(std::move(text)); }
  void contradiction(std::string text) { contradictions_.push_back(std::move(text)); }
  const Given& get(std::string_view name) const { return given_.find(name)->second; }
  bool flag(std::string_view name) const { return get(name).text == "1"; }
  bool is_given(std::string_view name) const { return !get(name).source.empty(); }
  // "--nnodes 3:2" or "PET_NNODES=3:2"; of --rdzv_conf, which may hold a token, never the text
  std::string shown(std::string_view name) const {
    const Given& g = get(name);
    if (name == "rdzv_conf") return g.source.empty() ? "--rdzv_conf" : g.source;
    return g.source.starts_with("PET_") ? fmt::format("{}={}", g.source, g.text) : fmt::format("--{} {}", name, g.text);
  }

  Usage report() const {
    std::string text;
    for (const auto* list : {&usage_, &contradictions_})
      for (const std::string& p : *list) text += "elrun: " + p + "\n";
    return {usage_.empty() ? exit_code::contradiction : exit_code::usage,
            "usage: elrun [options] PROGRAM [arguments...]   (elrun --help explains them)\n" + text};
  }

  void set(const Option& option, std::string text, std::string source) {
    given_.find(option.name)->second = {std::move(text), std::move(source)};
  }

  void read_environment() {
    for (const Option& o : table) {
      const auto found = environment_.find(pet_name(o));
      if (found == environment_.end() || o.name == "help" || o.name == "version" || o.name == "logs_specs" ||
          o.name == "numa_binding")
        continue;
      std::string text = found->second;
      if (is_flag(o)) {
        // Kubernetes operators write an empty PET_STANDALONE and mean it.
        const auto number = text.empty() && o.name == "standalone" ? std::optional<std::int64_t>{1} : to_integer(text);
        if (!number) {
          problem(fmt::format("{}={}: a flag is 1 (on) or 0 (off)", found->first, text));
          continue;
        }
        text = *number != 0 ? "1" : "0";
      }
      set(o, std::move(text), found->first);
    }
  }

  // The one option that a name means: exactly, or as the only one that begins so. Says what is wrong otherwise.
  const Option* find(std::string_view token, std::string name) {
    std::replace(name.begin(), name.end(), '-', '_');
    std::vector<const Option*> matches;
    for (const Option& o : table) {
      if (o.name == name) return &o;
      if (!name.empty() && o.name.starts_with(name)) matches.push_back(&o);
    }
    if (matches.size() == 1) return matches.front();
    std::string choices;
    for (const Option* o : matches) choices += fmt::format("{}--{}", choices.empty() ? "" : ", ", o->name);
    problem(matches.empty() ? fmt::format("{}: no such option; options of the program stand after its name", token)
                            : fmt::format("{}: could be {}; write more of it", token, choices));
    return nullptr;
  }

  void read_arguments() {
    std::size_t i = 0;
    for (; i < arguments_.size(); ++i) {
      const std::string& token = arguments_[i];
      if (token == "--") {
        ++i;
        break;
      }
      if (token.size() < 2 || token[0] != '-') break;
      const Option* option = nullptr;
      std::optional<std::string> value;
      if (token[1] == '-') {
        const auto equals = token.find('=');
        option = find(token.substr(0, equals), token.substr(2, equals == std::string::npos ? equals : equals - 2));
        if (equals != std::string::npos) value = token.substr(equals + 1);
      } else {
        for (const Option& o : table)
          if (o.letter == token[1]) option = &o;
        if (option == nullptr)
          problem(fmt::format("{}: no such option; options of the program stand after its name", token.substr(0, 2)));
        if (token.size() > 2) value = token.substr(token[2] == '=' ? 3 : 2);
      }
      if (option == nullptr) continue;
      if (is_flag(*option)) {
        if (value) problem(fmt::format("{}: a flag takes no value", token.substr(0, token.find('='))));
        set(*option, "1", fmt::format("--{}", option->name));
        continue;
      }
      if (!value && i + 1 < arguments_.size() && !looks_like_option(arguments_[i + 1])) value = arguments_[++i];
      if (!value && option->name == "rdzv_id") {  // what a shell makes of `--rdzv_id $UNSET`
        out_.notes.push_back("--rdzv_id has no value and counts as not given; an unset variable?");
        continue;
      }
      if (!value) {
        problem(
            fmt::format("{}: needs a value{}", token, option->value.empty() ? "" : fmt::format(", {}", option->value)));
        continue;
      }
      set(*option, std::move(*value), fmt::format("--{}", option->name));
    }
    if (i < arguments_.size()) {
      out_.program.name = arguments_[i];
      out_.program.arguments.assign(arguments_.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments_.end());
      if (trimmed(out_.program.name).empty())
        problem("the program's name is blank; a backslash followed by blanks, or an unset variable?");
    } else {
      program_missing_ = true;
    }
  }
  static bool looks_like_option(std::string_view token) {
    return token.size() > 1 && token[0] == '-' && !(token[1] >= '0' && token[1] <= '9') && token[1] != '.';
  }

  std::optional<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most) {
    const auto number = to_integer(get(name).text);
    if (number && *number >= least && *number <= most) return number;
    problem(fmt::format("{}: must be a whole number from {} to {}", shown(name), least, most));
    return std::nullopt;
  }

  void understand() {
    if (program_missing_) problem("no PROGRAM to run; it follows the options");
    for (const Option& o : table) {
      if (o.kind == Kind::later && is_given(o.name) && get(o.name).text != o.initial &&
          !(o.name == "log_dir" && get(o.name).text == "/dev/null"))
        problem(fmt::format("{}: --{} comes with a later release; leave it out{}", shown(o.name), hyphened(o.name),
                            o.name == "redirects" || o.name == "tee" || o.name == "log_dir"
                                ? " and redirect the output of elrun as a whole"
                                : ""));
    }
    understand_program();
    understand_nodes();
    understand_workers();
    understand_times();
    understand_meeting();
    out_.role = get("role").text;
    if (is_given("max_restarts"))
      if (const auto n = integer("max_restarts", 0, 1'000'000)) out_.round.max_restarts = static_cast<std::int32_t>(*n);
    if (const std::string& id = get("rdzv_id").text; id.size() > 256 || std::any_of(id.begin(), id.end(), [](char c) {
                                                       return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
                                                     }))
      problem("--rdzv_id: at most 256 bytes without control characters");
  }

  void understand_program() {
    if (flag("module") && flag("no_python"))
      contradiction("--module and --no_python contradict each other: a module needs Python; drop one");
    out_.program.kind = flag("module")      ? Program::Kind::module
                        : flag("no_python") ? Program::Kind::executable
                                            : Program::Kind::script;
  }

  void understand_nodes() {
    const std::string& text = get("nnodes").text;
    const auto colon = text.find(':');
    const auto least = to_integer(text.substr(0, colon));
    const auto most = colon == std::string::npos ? least : to_integer(text.substr(colon + 1));
    if (!least || !most || *least < 1 || *most < 1 || *least > nodes_limit || *most > nodes_limit)
      return problem(fmt::format("{}: must be N or MIN:MAX with numbers from 1 to {}", shown("nnodes"), nodes_limit));
    if (*least > *most)
      return problem(fmt::format("{}: the least number of nodes is above the greatest; did you mean {}:{}?",
                                 shown("nnodes"), *most, *least));
    out_.round.nodes_min = static_cast<std::uint32_t>(*least);
    out_.round.nodes_max = static_cast<std::uint32_t>(*most);
  }

  void understand_workers() {
    const std::string_view text = trimmed(get("nproc_per_node").text);
    const bool alone = out_.round.nodes_max == 1;
    std::int64_t count = 0;
    if (text == "gpu" || text == "auto") {
      count = machine_.gpus();
      if (count == 0 && text == "auto") count = machine_.cpus();
      if (count == 0 && alone)
        return problem(
            fmt::format("{}: this machine shows no GPU (CUDA_VISIBLE_DEVICES, /dev/nvidia*); use a number, cpu or auto",
                        shown("nproc_per_node")));
      if (count == 0) out_.notes.push_back("no GPU here: this node coordinates and runs no worker");
    } else if (text == "cpu") {
      count = machine_.cpus();
    } else if (const auto number = to_integer(text); number && *number >= 0) {
      count = *number;
      if (count == 0 && alone)
        return problem(
            fmt::format("{}: a single node without workers has nothing to do; give at least 1 (0 is for the "
                        "coordinating node of --nnodes above 1)",
                        shown("nproc_per_node")));
    } else {
      return problem(fmt::format("{}: must be a number, cpu, gpu or auto", shown("nproc_per_node")));
    }
    if (count > workers_per_node_limit)
      return problem(fmt::format("{}: {} workers are more than the {} that one node may have", shown("nproc_per_node"),
                                 count, workers_per_node_limit));
    out_.workers = static_cast<std::uint32_t>(count);
  }

  void understand_times() {
    Timeouts& t = out_.timeouts;
    int attempts = 5, entry = 0;
    std::string_view rest = get("rdzv_conf").text;
    while (!trimmed(rest).empty()) {
      const std::string_view pair = trimmed(rest.substr(0, rest.find(',')));
      rest = rest.find(',') == std::string_view::npos ? std::string_view{} : rest.substr(rest.find(',') + 1);
      const auto equals = pair.find('=');
      const std::string key{trimmed(pair.substr(0, equals))};
      ++entry;
      if (equals == std::string_view::npos || key.empty()) {
        // What it says may be the rest of a token that has a comma inside.
        problem(fmt::format("{}: entry {} is not KEY=VALUE", shown("rdzv_conf"), entry));
        continue;
      }
      const std::string value{trimmed(pair.substr(equals + 1))};
      const auto time = [&](Duration& into) {
        if (const auto seconds = to_seconds(value); seconds && *seconds > 0s)
          into = *seconds;
        else
          problem(fmt::format("--rdzv_conf {}={}: must be seconds above 0", key, value));
      };
      if (key == "join_timeout")
        time(t.join);
      else if (key == "timeout")
        time(t.join), out_.notes.push_back("--rdzv_conf timeout is taken as join_timeout");
      else if (key == "last_call_timeout")
        time(t.last_call);
      else if (key == "keep_alive_interval")
        time(t.heartbeat);
      else if (key == "coordinator_grace")
        time(t.coordinator_grace);
      else if (key == "lease_ttl")
        time(t.lease);
      else if (key == "keep_alive_max_attempt") {
        if (const auto n = to_integer(value); n && *n >= 2 && *n <= 1000)
          attempts = static_cast<int>(*n);
        else
          problem(fmt::format("--rdzv_conf keep_alive_max_attempt={}: must be a whole number from 2 to 1000", value));
      } else if (key == "is_host") {
        if (value == "1" || value == "true" || value == "True" || value == "yes")
          is_host_ = true;
        else if (value == "0" || value == "false" || value == "False" || value == "no")
          is_host_ = false;
        else
          problem(fmt::format("--rdzv_conf is_host={}: must be 1 or 0", value));
      } else if (std::string* path = access_path(key)) {
        *path = value;
        if (value.empty()) problem(fmt::format("--rdzv_conf {}=: the path of a file is missing", key));
      } else if (key == "token") {
        out_.access.token = Secret{value};
        if (value.empty()) problem("--rdzv_conf token=: the token is missing");
      } else if (!out_.access.token.empty()) {
        out_.notes.push_back(fmt::format("entry {} of --rdzv_conf has no effect here", entry));
      } else {
        out_.notes.push_back(fmt::format("--rdzv_conf {} has no effect here", key));
      }
    }
    understand_access();
    t.heartbeat_limit = t.heartbeat * attempts;
    std::string grace = get("shutdown_timeout").text, source = shown("shutdown_timeout");
    if (const auto found = environment_.find("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
        grace.empty() && found != environment_.end())
      grace = found->second, source = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=" + grace;
    if (!grace.empty() || is_given("shutdown_timeout")) {
      if (const auto seconds = to_seconds(grace); seconds && *seconds > 0s)
        t.stop_grace = *seconds;
      else
        problem(source + ": must be seconds above 0");
    }
    // What depends on a time that was made short follows it.
    t.drain = std::min(t.drain, t.stop_grace * 5 / 6);
    t.revocation = std::min(t.revocation, t.join / 2);
    t.reconnect_grace = std::min({t.reconnect_grace, t.join / 2, t.heartbeat_limit / 2});
    t.recovery = std::min(std::max(t.recovery, t.heartbeat_limit + 5s), t.join / 2);  // a dead address costs one limit
    t.coordinator_grace = std::max(t.coordinator_grace, 2 * t.heartbeat_limit);
    if (t.lease == Timeouts{}.lease) t.lease = std::min(t.lease, t.coordinator_grace / 2);  // one that was given stays
    for (const std::string& p : t.problems()) contradiction("--rdzv_conf: " + p);
    out_.round.last_call = t.last_call;
    if (const auto interval = to_seconds(get("monitor_interval").text); !interval || *interval <= 0s)
      problem(fmt::format("{}: must be seconds above 0", shown("monitor_interval")));
  }

  // Where the file of a key of --rdzv_conf goes; none for other keys. torchrun's names for etcd, and token_file.
  std::string* access_path(std::string_view key) {
    Access& access = out_.access;
    return key == "cacert"       ? &access.ca_file
           : key == "cert"       ? &access.certificate_file
           : key == "key"        ? &access.key_file
           : key == "token_file" ? &access.token_file
                                 : nullptr;
  }

  // --rdzv_conf, where it says something, over the environment: key by key, and token and token_file as one.
  void understand_access() {
    Access& access = out_.access;
    if (!access.token.empty() && get("rdzv_conf").source.starts_with("--"))
      out_.notes.push_back("a token on the command line is seen by everybody who may run ps here; prefer token_file, or ELRUN_RDZV_TOKEN");
    if (!access.has_token()) {
      access.token = Secret{variable("ELRUN_RDZV_TOKEN").value_or("")};
      access.token_file = variable("ELRUN_RDZV_TOKEN_FILE").value_or("");
    }
    for (const auto& [path, name] : {std::pair{&access.ca_file, "ELRUN_RDZV_CACERT"},
                                     std::pair{&access.certificate_file, "ELRUN_RDZV_CERT"},
                                     std::pair{&access.key_file, "ELRUN_RDZV_KEY"}})
      if (path->empty()) *path = variable(name).value_or("");
  }

  std::optional<std::string> variable(const char* name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() || found->second.empty() ? std::nullopt : std::optional{found->second};
  }

  void understand_meeting() {
    const std::string& backend = get("rdzv_backend").text;
    out_.checkpoint_root = get("checkpoint_root").text;
    out_.topology = get("topology").text;
    if (out_.topology.size() > topology_max)
      problem(fmt::format("{}: {} characters, more than {}", shown("topology"), out_.topology.size(), topology_max));
    const bool by_etcd = backend == "etcd" || backend == "etcd-v2";
    if (!by_etcd && backend != "static" && backend != "c10d")
      problem(fmt::format("{}: must be static, c10d or etcd", shown("rdzv_backend")));
    if (is_given("node_rank"))
      if (const auto n = integer("node_rank", 0, nodes_limit - 1)) out_.node_rank = static_cast<std::int32_t>(*n);
    std::optional<std::uint16_t> master_port;
    if (is_given("master_port"))
      if (const auto n = integer("master_port", 1, 65535)) master_port = static_cast<std::uint16_t>(*n);
    out_.local_address = get("local_addr").text;
    if (is_given("local_addr") && !host_is_plain(out_.local_address))
      problem(fmt::format("{}: not a host name or address", shown("local_addr")));
    if (is_given("master_addr") && !host_is_plain(get("master_addr").text))
      problem(fmt::format("{}: not a host name or address", shown("master_addr")));

    const bool alone = out_.round.nodes_max == 1;
    if (flag("standalone")) {
      if (!alone)
        contradiction(
            fmt::format("--standalone means one node, but {} asks for more; drop one of them", shown("nnodes")));
      return;  // run, endpoint and backend are replaced, as torchrun does
    }
    const std::string& endpoint = get("rdzv_endpoint").text;
    if (by_etcd) return understand_etcd(endpoint);
    const bool is_static = backend == "static";
    if (endpoint.empty() && alone) {  // nobody to meet
      if (is_static && master_port)
        out_.run = RunId{get("rdzv_id").text}, out_.master_port = master_port;
      else if (is_given("rdzv_id"))
        out_.run = RunId{get("rdzv_id").text};
      return;
    }
    out_.run = RunId{get("rdzv_id").text.empty() ? "none" : get("rdzv_id").text};
    if (!endpoint.empty()) {
      auto parsed = parse_endpoint(endpoint, is_static ? master_port_default : endpoint_port_default);
      if (!parsed) return problem(fmt::format("{}: {}", shown("rdzv_endpoint"), parsed.failure().what));
      out_.endpoint = *parsed;
      if (out_.endpoint->host.empty()) {  // `:29400`, what a shell makes of an unset host
        const auto host = is_given("master_addr") ? std::optional{get("master_addr").text} : variable("MASTER_ADDR");
        if (!host)
          return problem(
              fmt::format("{}: names no host, and neither --master_addr nor MASTER_ADDR does", shown("rdzv_endpoint")));
        out_.endpoint->host = *host;
        out_.notes.push_back(
            fmt::format("{} names no host; {} is taken from the master address", shown("rdzv_endpoint"), *host));
      }
    } else if (is_given("master_addr") || master_port || (is_static && !variable("MASTER_ADDR"))) {
      out_.endpoint = Endpoint{is_given("master_addr") ? get("master_addr").text : "127.0.0.1",
                               master_port.value_or(is_static ? master_port_default : endpoint_port_default)};
      if (!is_given("master_addr"))
        out_.notes.push_back(
            "no --rdzv_endpoint and no --master_addr: only agents on this machine can meet, at 127.0.0.1");
    } else if (const auto host = variable("MASTER_ADDR")) {
      const auto port = to_integer(
          variable("MASTER_PORT").value_or(std::to_string(is_static ? master_port_default : endpoint_port_default)));
      if (!host_is_plain(*host) || !port || *port < 1 || *port > 65535)
        return problem("MASTER_ADDR and MASTER_PORT: not a host and a port; give --rdzv_endpoint HOST:PORT");
      out_.endpoint = Endpoint{*host, static_cast<std::uint16_t>(*port)};
      out_.notes.push_back(fmt::format("no --rdzv_endpoint: the nodes meet at MASTER_ADDR, {}:{}", *host, *port));
    } else {
      return contradiction(
          fmt::format("{} needs a place where the nodes meet, and none was found: --rdzv_endpoint, PET_RDZV_ENDPOINT, "
                      "--master_addr, PET_MASTER_ADDR and MASTER_ADDR are not set; give --rdzv_endpoint HOST:PORT",
                      shown("nnodes")));
    }
    if (is_host_)
      out_.host_rule = *is_host_ ? HostRule::always : HostRule::never;
    else if (is_static && out_.node_rank >= 0)
      out_.host_rule = out_.node_rank == 0 ? HostRule::always : HostRule::never;
  }

  void understand_etcd(std::string_view servers) {
    if (trimmed(servers).empty())
      contradiction(fmt::format("{} needs the addresses of etcd's servers: give --rdzv_endpoint HOST:PORT[,HOST:PORT...]",
                                shown("rdzv_backend")));
    const std::string_view run = trimmed(get("rdzv_id").text);
    if (!is_given("rdzv_id") || run.empty() || run == "none")
      contradiction(fmt::format("{} keeps a job's coordinator and its newest generation under the job's name: give each job "
                                "an --rdzv_id of its own",
                                shown("rdzv_backend")));
    out_.run = RunId{get("rdzv_id").text};
    for (std::string_view rest = servers; !trimmed(rest).empty();) {
      const std::string_view server = rest.substr(0, rest.find(','));
      rest = rest.find(',') == std::string_view::npos ? std::string_view{} : rest.substr(rest.find(',') + 1);
      const auto parsed = parse_endpoint(server, etcd_port_default);
      if (!parsed || parsed->host.empty())
        return problem(fmt::format("{}: `{}` {}", shown("rdzv_endpoint"), server, parsed ? "names no host" : parsed.failure().what));
      out_.etcd.push_back(*parsed);
    }
    if (out_.etcd.size() > etcd_servers_max)
      problem(fmt::format("{}: more than {} servers", shown("rdzv_endpoint"), etcd_servers_max));
    if (is_host_) out_.host_rule = *is_host_ ? HostRule::always : HostRule::never;
  }

  std::span<const std::string> arguments_;
  const Variables& environment_;
  const Machine& machine_;
  std::map<std::string, Given, std::less<>> given_;
  std::vector<std::string> usage_, contradictions_;
  std::optional<bool> is_host_;
  bool program_missing_ = false;
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
    if (!rest.empty() && port.empty())
      return Failure{Code::invalid_argument, Remedy::fix_config, "the port after : is missing"};
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    host = text.substr(0, text.find(':'));
    port = text.substr(text.find(':') + 1);
    if (port.empty()) return Failure{Code::invalid_argument, Remedy::fix_config, "the port after : is missing"};
  }
  while (host.size() > 1 && host.ends_with('.')) host.remove_suffix(1);  // a fully qualified name's last dot
  if (host.empty() && port.empty())
    return Failure{Code::invalid_argument, Remedy::fix_config, "must be HOST or HOST:PORT"};
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
  for (std::string_view rest = conf->second; !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find(','));
    rest = rest.find(',') == std::string_view::npos ? std::string_view{} : rest.substr(rest.find(',') + 1);
    if (trimmed(pair.substr(0, pair.find('='))) != "token") continue;
    environment.erase(conf);
    break;
  }
  return environment;
}

std::variant<LaunchOptions, StoreOptions, Usage> parse_command(std::span<const std::string> arguments,
                                                               const Variables& environment, const Machine& machine) {
  Parser parser{arguments, environment, machine};
  return !arguments.empty() && arguments[0] == "store" ? parser.store() : parser.launch();
}

}  // namespace elrun::inline v0::launcher
