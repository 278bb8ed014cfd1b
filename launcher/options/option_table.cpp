#include "launcher/options/option_table.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace elrun::inline v0::launcher {
namespace {

using enum OptionGroup;

constexpr std::array table{
    Option{
        .name = "nnodes", .group = nodes, .initial = "1", .value = "N|MIN:MAX", .help = "nodes of the job; a range lets nodes come and go"},
    Option{.name = "rdzv_endpoint",
           .group = nodes,
           .value = "HOST[:PORT]",
           .help = "address of the rendezvous; the agent on that host serves it (port\n29400). "
                   "With etcd: its servers, separated by commas (port 2379)"},
    Option{.name = "rdzv_backend",
           .group = nodes,
           .initial = "static",
           .value = "static|c10d|etcd",
           .help = "who serves: node rank 0, whoever the endpoint leads to, or\nwhoever the agents elect through etcd (3.3 or later)"},
    Option{
        .name = "rdzv_id", .group = nodes, .initial = "none", .value = "ID", .help = "name of the job; nodes of another job are refused"},
    Option{.name = "rdzv_conf",
           .group = nodes,
           .value = "K=V,...",
           .help =
               "join_timeout, last_call_timeout, start_timeout, coordinator_grace,\nkeep_alive_interval, keep_alive_max_attempt, is_host,\n"
               "lease_ttl (seconds; 1 or 0); cacert, cert, key, token_file, token\n(see Access below)"},
    Option{.name = "node_rank",
           .group = nodes,
           .value = "N",
           .help = "orders the ranks of new nodes, and of all where the world is fixed;\nwith static, node 0 serves the rendezvous"},
    Option{.name = "master_addr", .group = nodes, .value = "HOST", .help = "static without an endpoint: the node of rank 0 (127.0.0.1)"},
    Option{
        .name = "master_port",
        .group = nodes,
        .value = "PORT",
        .help =
            "static: MASTER_PORT of the workers, on the node of rank 0 (0: any);\nthe nodes meet at the port 10000 below it, or at 29500 without it"},
    Option{.name = "local_addr", .group = nodes, .value = "ADDRESS", .help = "address of this node for the others; found if not given"},
    Option{.name = "standalone",
           .is_flag = true,
           .group = nodes,
           .initial = "0",
           .help = "a single node without rendezvous; the default without an endpoint"},
    Option{.name = "topology",
           .is_own = true,
           .group = nodes,
           .value = "ZONE/RACK/HOST",
           .help = "labels of this node, outermost first: nodes that share them get\nneighbouring ranks"},
    Option{.name = "checkpoint_root",
           .is_own = true,
           .group = nodes,
           .value = "DIR",
           .help = "checkpoint directory. If all processes are new, generation numbers\ncontinue from the ones there"},

    Option{.name = "module",
           .letter = 'm',
           .is_flag = true,
           .group = program,
           .initial = "0",
           .help = "PROGRAM is a Python module: python -u -m PROGRAM"},
    Option{.name = "no_python", .is_flag = true, .group = program, .initial = "0", .help = "PROGRAM is an executable, searched on PATH"},
    Option{.name = "run_path",
           .is_flag = true,
           .group = program,
           .initial = "0",
           .help = "PROGRAM is run by Python's runpy; its exception is recorded"},
    Option{.name = "local_rank_argument",
           .is_flag = true,
           .is_own = true,
           .group = program,
           .initial = "0",
           .help = "PROGRAM's first argument is --local-rank=N, as\ntorch.distributed.launch does without --use-env"},
    Option{.name = "use_env", .is_flag = true, .is_own = true, .group = program, .initial = "0", .help = "undoes --local-rank-argument"},

    Option{.name = "nproc_per_node",
           .group = workers,
           .initial = "1",
           .value = "N|auto|gpu|cpu",
           .help = "workers on this node; 0 with several nodes: it only coordinates"},
    Option{.name = "role", .group = workers, .initial = "default", .value = "NAME", .help = "ROLE_NAME of the workers"},
    Option{.name = "virtual_local_rank",
           .is_flag = true,
           .group = workers,
           .initial = "0",
           .help = "each worker sees one device, and has LOCAL_RANK 0"},
    Option{.name = "numa_binding",
           .has_variable = false,
           .group = workers,
           .value = "HOW",
           .help = "node, socket, exclusive or core-complex: which CPUs, near its GPU,\na worker may use"},
    Option{.name = "start_method",
           .group = workers,
           .initial = "spawn",
           .value = "METHOD",
           .help = "accepted; workers are always started afresh"},

    Option{.name = "max_restarts",
           .group = failures,
           .value = "N",
           .help = "restarts before the job fails (0; for a libelrun Job 3 without\nprogress). Repeated failures back off"},
    Option{
        .name = "shutdown_timeout", .group = failures, .value = "SECONDS", .help = "between the signal that ends workers and SIGKILL (30)"},
    Option{.name = "signals_to_handle",
           .group = failures,
           .initial = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
           .value = "NAMES",
           .help = "signals that elrun passes on to the workers before it ends\n(SIGTERM,SIGINT,SIGHUP,SIGQUIT)"},
    Option{.name = "preempt_notice",
           .is_own = true,
           .group = failures,
           .value = "SOURCE",
           .help = "leave, as after SIGTERM, when it says that this node will be taken\n"
                   "away: /PATH (a file appears), http://HOST/PATH (as clouds' metadata\n"
                   "services answer), cmd:COMMAND (ends with exit code 0)"},
    Option{.name = "hang_timeout",
           .is_own = true,
           .group = failures,
           .initial = "0",
           .value = "SECONDS",
           .help = "workers without a sign of progress for so long have failed\n(0: hangs are not looked for)"},
    Option{.name = "hang_on",
           .is_own = true,
           .group = failures,
           .initial = "progress",
           .value = "SIGN",
           .help = "progress: steps that a libelrun program reports. output: any worker\nthat prints nothing counts as hung as well"},
    Option{.name = "begin_anew",
           .is_own = true,
           .group = failures,
           .value = "STEP@FENCE",
           .help = "continue without this acknowledged checkpoint, which cannot be\nfound (copy STEP@FENCE from the Job's error)"},
    Option{.name = "exit_codes",
           .is_own = true,
           .group = failures,
           .value = "STYLE",
           .help = "elrun: the root cause's; torchrun: 1 for every failure (as under\nthe name torchrun)"},
    Option{.name = "monitor_interval",
           .group = failures,
           .initial = "0.1",
           .value = "SECONDS",
           .help = "accepted; a death is seen at once, nothing is polled"},

    Option{.name = "redirects",
           .letter = 'r',
           .group = output,
           .initial = "0",
           .value = "0..3|R:0..3,...",
           .help = "what goes to files only: nothing, stdout (1), stderr (2), both (3);\nof all workers or by local rank"},
    Option{.name = "tee",
           .letter = 't',
           .group = output,
           .initial = "0",
           .value = "0..3|R:0..3,...",
           .help = "what goes to files and, line by line with a prefix, to the console"},
    Option{.name = "log_dir", .group = output, .value = "DIR", .help = "where the files are; /dev/null: there are none"},
    Option{.name = "log_line_prefix_template",
           .group = output,
           .value = "TEXT",
           .help = "with ${role_name}, ${local_rank}, ${rank}, ${hostname}; without it\n[default0]: with role and local rank"},
    Option{.name = "local_ranks_filter", .group = output, .value = "R,...", .help = "the workers that the console shows; files hold all"},
    Option{.name = "duplicate_stdout_filters",
           .group = output,
           .value = "TEXT,...",
           .help = "lines of tee'd output that hold one of them go to\nfiltered_stdout.log too (,, is a comma)"},
    Option{.name = "duplicate_stderr_filters", .group = output, .value = "TEXT,...", .help = "the same for filtered_stderr.log"},
    Option{.name = "log_format",
           .is_own = true,
           .group = output,
           .initial = "text",
           .value = "text|json",
           .help = "format of elrun's own log lines"},
    Option{
        .name = "event_log", .is_own = true, .group = output, .value = "FILE", .help = "a line of JSON is appended to it for each event"},
    Option{.name = "event_log_handler",
           .group = output,
           .initial = "null",
           .value = "null|console",
           .help = "console: torchrun's events on stderr, a line of JSON each"},
    Option{.name = "logs_specs", .has_variable = false, .group = output},

    Option{.name = "health_port",
           .is_own = true,
           .value = "[ADDRESS:]PORT",
           .help = "serves /livez, /readyz, /statusz and /metrics there (off)"},
    Option{.name = "dry_run",
           .is_flag = true,
           .is_own = true,
           .has_variable = false,
           .initial = "0",
           .help = "print as JSON what would be done, and start nothing"},
    Option{.name = "print_completion",
           .has_variable = false,
           .value = "SHELL",
           .help = "what bash, zsh or tcsh reads to complete these options"},
    Option{.name = "help", .letter = 'h', .is_flag = true, .has_variable = false, .initial = "0", .help = "this text"},
    Option{.name = "version", .is_flag = true, .is_own = true, .has_variable = false, .initial = "0", .help = "elrun's version"},
};

constexpr GroupTitle titles[] = {{nodes, "The nodes of the job, and where they meet"},
                                 {program, "The program"},
                                 {workers, "The workers of this node"},
                                 {failures, "Failures, signals, hangs"},
                                 {output, "Output and logs"},
                                 {others, "Others"}};

constexpr std::string_view synopsis_text =
    "elrun [options] PROGRAM [arguments...]     start the workers of this node, and keep the job going\n"
    "elrun store [--host ADDRESS] [--port PORT]  serve a job's rendezvous from a process of its own\n"
    "            (--rdzv_conf, --shutdown_timeout, --checkpoint_root as the job's agents have them)\n"
    "elrun doctor [options] [PROGRAM]           say what would fail here with these options, and why\n"
    "elrun status [--json] [--pid PID]          what the agents on this machine run\n"
    "elrun drain [--pid PID] [--timeout SECONDS] ask the agents on this machine to leave, and wait until they have\n"
    "elrun ckpt ls|inspect|verify|diff ...      what checkpoints are there, what is in them, and whether they are whole\n"
    "elrun chaos [--mtbf TIME] ... PROGRAM      run a job with failures, and compare it with the undisturbed one\n"
    "elrun install DIR                          copy elrun, as elrun and torchrun, into DIR\n"
    "(elrun ckptd is no command for people: agents start it to write checkpoints while workers train)\n";
constexpr std::string_view words_text =
    "Options stand before PROGRAM, with hyphens or underscores, as `--option value` or `--option=value`, and can be\n"
    "shortened as long as one option is meant. Each takes its default from the environment: PET_NNODES for --nnodes,\n"
    "and so on. What follows PROGRAM belongs to it.\n";
constexpr std::string_view access_text =
    "Access to the rendezvous, the same on every node and for `elrun store`: mutual TLS by cacert, cert and key (PEM\n"
    "files), a shared token by token_file, or both; as keys of --rdzv_conf, or as ELRUN_RDZV_CACERT, ELRUN_RDZV_CERT,\n"
    "ELRUN_RDZV_KEY, ELRUN_RDZV_TOKEN_FILE. The token itself (token=, ELRUN_RDZV_TOKEN) is better kept off a command\n"
    "line, where ps shows it. Workers never see the token.\n";
constexpr std::string_view exit_codes_text =
    "Exit codes: 0 the job is done; 1 to 255 the program's own (78 of a Job: never restarted). elrun's own: 64 usage,\n"
    "66 script missing, 69 no agent answers `elrun status` or leaves by `elrun drain`, 70 the system refused what elrun needs,\n"
    "78 contradictory options, or versions differ, 126/127 program cannot be executed/found, 128+n ended by signal n, 170 the\n"
    "nodes did not meet in time, 171 the rendezvous was lost, 172 too few nodes are left, 173 a Job could save no checkpoint for\n"
    "its max_age (never restarted), 174 workers hung. The root cause decides, on every node. See launcher/README.md.\n";
constexpr std::string_view examples_text =
    "  elrun --nproc_per_node 4 --no_python ./train              one node, four workers\n"
    "  elrun --nnodes 2:3 --nproc_per_node gpu --rdzv_backend c10d --rdzv_endpoint node0:29400 train.py\n"
    "  elrun --nproc_per_node 8 --tee 3 --log_dir logs train.py  output with prefixes, and in files\n"
    "  elrun --dry_run ...                                       what these options come to, on this node\n";
constexpr HelpPart parts[] = {{"SYNOPSIS", synopsis_text, true},
                              {"DESCRIPTION", words_text, false},
                              {"ACCESS", access_text, false},
                              {"EXIT STATUS", exit_codes_text, false},
                              {"EXAMPLES", examples_text, true}};

constexpr std::size_t help_column = 33;

std::string help_of(const Option& o) {
  std::string left = fmt::format("  {}--{}", o.letter ? fmt::format("-{}, ", o.letter) : "", hyphened(o.name));
  if (!o.value.empty()) left += fmt::format(" {}", o.value);
  const std::string indent(help_column, ' ');
  std::string help{o.help};
  for (std::size_t at = 0; (at = help.find('\n', at)) != std::string::npos; at += help_column + 1) help.replace(at, 1, "\n" + indent);
  if (left.size() + 1 > help_column) return left + "\n" + indent + help + "\n";
  return fmt::format("{:<{}}{}\n", left, help_column, help);
}

}  // namespace

std::span<const Option> option_table() { return table; }

std::string variable_of(const Option& option) {
  std::string name = "PET_";
  for (const char c : option.name) name += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

std::string hyphened(std::string_view name) {
  std::string text{name};
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

std::span<const HelpPart> help_parts() { return parts; }
std::span<const GroupTitle> group_titles() { return titles; }

std::string help_text() {
  std::string text = "usage: ";
  for (const char c : synopsis_text.substr(0, synopsis_text.size() - 1)) text += c == '\n' ? "\n       " : std::string(1, c);
  text += fmt::format("\n\n{}", words_text);
  for (const auto& [group, title] : titles) {
    text += fmt::format("\n{}:\n", title);
    for (const Option& o : table)
      if (o.group == group && !o.help.empty()) text += help_of(o);
  }
  return text + fmt::format("\n{}\n{}\n{}", access_text, exit_codes_text, examples_text);
}

std::string store_help_text() {
  return "usage: elrun store [--host ADDRESS] [--port PORT] [--rdzv-id ID] [--nnodes N|MIN:MAX] [--rdzv-conf K=V,...]\n"
         "                   [--shutdown-timeout SECONDS] [--checkpoint-root DIR] [--log-format text|json]\n"
         "\n"
         "Serves one job's rendezvous from a process of its own, and ends when the job does. Its agents find it by\n"
         "--rdzv-backend c10d --rdzv-endpoint HOST:PORT; it says on standard error where it listens.\n"
         "  --host ADDRESS              where it listens (0.0.0.0, all of this machine's addresses)\n"
         "  --port PORT                 0: any that is free (29400)\n"
         "  --rdzv-id ID                the job's; without it the first agent that joins sets it for all others\n"
         "  --nnodes N|MIN:MAX          as the job's agents have it; without it, the same\n"
         "  --rdzv-conf K=V,...         as the job's agents have it; see `elrun --help`\n"
         "  --shutdown-timeout SECONDS  as the job's agents have it (30)\n"
         "  --checkpoint-root DIR       checkpoint directory: generation numbers continue from the ones there\n"
         "  --log-format text|json      of its own lines\n"
         "\n"
         "Exit codes: 0 the job has ended, well or not, 64 usage, 70 the system refused what it needs,\n"
         "78 the port cannot be opened or the access is wrong, 128+n signal n asked it to end.\n";
}

std::string doctor_help_text() {
  return "usage: elrun doctor [options] [PROGRAM [arguments...]]\n"
         "\n"
         "Says what would fail if elrun were started here with these options and this program, why, and the remedy: a line\n"
         "each for the program, the place for elrun's files, names, the endpoint and who is behind it, access, ports, the\n"
         "clock, devices, /dev/shm, limits, CPUs, memory, the root of the checkpoints and the logs. The options are those of\n"
         "`elrun --help`. Starts nothing; a name that no server answers for takes some seconds.\n"
         "\n"
         "Exit codes: 0 nothing would fail, 64 the options are wrong, 78 something would fail.\n"
         "\n"
         "  elrun doctor --nnodes 2 --rdzv_backend c10d --rdzv_endpoint node0:29400 --checkpoint_root /shared train.py\n";
}

std::optional<std::string> completion_text(std::string_view shell) {
  std::string words;  // the spelling with hyphens: one word for each option is enough to choose from
  for (const Option& o : table)
    if (!o.help.empty()) words += fmt::format("{}--{}", words.empty() ? "" : " ", hyphened(o.name));
  if (shell == "bash")
    return fmt::format(
        "_elrun() {{\n  case ${{COMP_WORDS[COMP_CWORD]}} in\n"
        "    -*) COMPREPLY=($(compgen -W '{}' -- \"${{COMP_WORDS[COMP_CWORD]}}\")) ;;\n"
        "    *) COMPREPLY=($(compgen -f -- \"${{COMP_WORDS[COMP_CWORD]}}\")) ;;\n"
        "  esac\n}}\ncomplete -o filenames -F _elrun elrun torchrun\n",
        words);
  if (shell == "zsh") {
    std::string text = "#compdef elrun torchrun\n_arguments -S \\\n";
    for (const Option& o : table)
      if (!o.help.empty())
        text += fmt::format("  '--{}{}' \\\n", hyphened(o.name), o.is_flag ? "" : fmt::format("=:{}:_default", hyphened(o.name)));
    return text + "  '*::program:_files'\n";
  }
  if (shell == "tcsh") {  // which wants them without the dashes that stand before the choice
    std::string names;
    for (const Option& o : table)
      if (!o.help.empty()) names += fmt::format("{}{}", names.empty() ? "" : " ", hyphened(o.name));
    return fmt::format("complete elrun 'c/--/({})/' 'p/*/f/'\n", names);
  }
  return std::nullopt;
}

}  // namespace elrun::inline v0::launcher
