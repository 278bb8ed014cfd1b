#include "launcher/options/environment.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/options/option_values.hpp"
#include "launcher/report/endings.hpp"

namespace elrun::inline v0::launcher {

namespace {

constexpr std::size_t cause_max = 1024;  // of bytes that tell a worker why it was started anew

// The one device that the worker sees: of those that are named, or of all. An empty list hides all of them from everybody.
std::string device_of(const Variables& variables, std::uint32_t local_rank) {
  const auto variable = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional{found->second};
  };
  const auto devices = named_devices(variable("CUDA_VISIBLE_DEVICES"), variable("NVIDIA_VISIBLE_DEVICES"));
  if (!devices) return std::to_string(local_rank);
  return local_rank < devices->size() ? (*devices)[local_rank] : std::string{};  // the options were refused if one is missing
}

// Fit for a variable of the environment: a shell may print it, and it may quote what a worker wrote.
std::string one_line(const std::string& text) {
  std::string line = text.substr(0, cause_max);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return line;
}

}  // namespace

Variables worker_environment(Variables variables, const WorkerSetting& setting) {
  const World& world = setting.world;
  const Seat& seat = world.seat;
  const RolePlace role = world.role.world_size > 0 ? world.role : RolePlace{seat.base_rank, seat.world_size};
  const std::uint32_t local = setting.local_rank.value();
  const auto set = [&](const char* name, auto value) { variables.insert_or_assign(name, fmt::format("{}", value)); };
  // An empty value is what a shell makes of a variable that it does not have.
  const auto set_if_absent = [&](const char* name, const char* value) {
    if (variables[name].empty()) set(name, value);
  };

  set("LOCAL_RANK", setting.options.virtual_local_rank ? 0 : local);
  if (setting.options.virtual_local_rank) set("CUDA_VISIBLE_DEVICES", device_of(variables, local));
  set("RANK", seat.base_rank + setting.place);
  set("LOCAL_WORLD_SIZE", setting.options.workers);
  set("WORLD_SIZE", seat.world_size);
  set("GROUP_RANK", seat.group_rank);
  set("GROUP_WORLD_SIZE", seat.nodes);
  set("ROLE_NAME", setting.options.role);
  set("ROLE_RANK", role.base_rank + setting.place);
  set("ROLE_WORLD_SIZE", role.world_size);
  set("MASTER_ADDR", world.master_address);
  set("MASTER_PORT", world.master_port);
  set("TORCHELASTIC_RUN_ID", setting.run.value());
  set("TORCHELASTIC_RESTART_COUNT", setting.node_restarts);
  set("TORCHELASTIC_MAX_RESTARTS", std::max(setting.options.round.max_restarts, 0));
  set("TORCHELASTIC_USE_AGENT_STORE",
      "False");  // the worker of rank 0 hosts torch's store, at a port that is new in each generation
  set("TORCHELASTIC_ERROR_FILE", setting.error_file.native());
  std::vector<std::string> signals;
  for (const int number : setting.options.signals_to_handle) signals.push_back(signal_name(number));
  set("TORCHELASTIC_SIGNALS_TO_HANDLE", fmt::format("{}", fmt::join(signals, ",")));
  set_if_absent("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (setting.options.workers > 1) set_if_absent("OMP_NUM_THREADS", "1");
  // So that Python answers SIGABRT, which one that hangs gets, with the stacks of all its threads.
  if (setting.options.hang_timeout > Duration{0}) set_if_absent("PYTHONFAULTHANDLER", "1");

  if (setting.options.begin_anew) set("ELRUN_BEGIN_ANEW", *setting.options.begin_anew);
  set(socket_variable, setting.socket.native());
  set(local_rank_variable, local);
  set("ELRUN_NODE", setting.node.value());
  set("ELRUN_NODE_ADDRESS", world.address);
  set("ELRUN_GENERATION", world.generation.number);
  set("ELRUN_RESTART_COUNT", world.restarts.generations);
  set("ELRUN_RESTART_CAUSE", one_line(world.cause));
  return variables;
}

std::string substitute_macros(std::string_view text, LocalRank local_rank) {
  constexpr std::string_view name = "local_rank";
  const auto is_word = [](char c) { return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  std::string out;
  while (!text.empty()) {
    const std::string_view rest = text.substr(1);
    if (text[0] != '$') {
      out += text[0], text.remove_prefix(1);
    } else if (rest.starts_with('$')) {
      out += '$', text.remove_prefix(2);
    } else if (rest.starts_with('{') && rest.substr(1).starts_with(name) && rest.substr(1 + name.size()).starts_with('}')) {
      out += std::to_string(local_rank.value()), text.remove_prefix(3 + name.size());
    } else if (rest.starts_with(name) && (rest.size() == name.size() || !is_word(rest[name.size()]))) {
      out += std::to_string(local_rank.value()), text.remove_prefix(1 + name.size());
    } else {
      out += '$', text.remove_prefix(1);
    }
  }
  return out;
}

namespace {

// As a shell searches: a name with a slash is a path; else the first executable on PATH. `not_executable` only if
// nothing better came.
struct Search {
  std::string path;
  FileKind kind = FileKind::missing;
};
Search search(const std::string& name, const Variables& environment, const LookUp& look_up) {
  if (name.find('/') != std::string::npos) return {name, look_up(name).kind};
  const auto path = environment.find("PATH");
  std::string_view rest = path != environment.end() ? std::string_view{path->second} : "/usr/local/bin:/usr/bin:/bin";
  Search best;
  while (true) {
    const auto colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    const std::string candidate = fmt::format("{}/{}", folder.empty() ? "." : folder, name);
    const FileKind kind = look_up(candidate).kind;
    if (kind == FileKind::executable) return {candidate, kind};
    if (kind == FileKind::not_executable && best.kind == FileKind::missing) best = {candidate, kind};
    if (colon == std::string_view::npos) return best;
    rest.remove_prefix(colon + 1);
  }
}

// What a first line names that is never Python.
constexpr std::array never_python{"sh",   "bash", "dash", "ash", "ksh", "mksh", "zsh",  "fish",  "csh",    "tcsh",
                                  "perl", "ruby", "node", "lua", "php", "awk",  "gawk", "julia", "Rscript"};

// For --run_path: the file as __main__, and what ends it written where torch's own recorder would write it.
constexpr const char* run_recorded = R"(import json, os, runpy, sys, time, traceback
del sys.argv[0]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except Exception as error:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        info = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
        with open(path, "w") as file:
            json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": info}}, file)
    raise
)";

}  // namespace

std::string other_interpreter(std::string_view head) {
  if (!head.starts_with("#!")) return {};
  std::string_view line = head.substr(2, std::min(head.find_first_of("\r\n"), head.size()) - 2);
  const auto next_word = [&] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    const std::string_view word = line.substr(0, line.find_first_of(" \t"));
    line.remove_prefix(word.size());
    return word.substr(word.rfind('/') + 1);
  };
  std::string_view name = next_word();
  if (name == "env") name = next_word();
  if (name == "-S") name = next_word();  // env's, which splits the rest
  return std::find(never_python.begin(), never_python.end(), name) != never_python.end() ? std::string{name} : std::string{};
}

namespace {

// torchrun is a script of the environment that it is in, and runs with that environment's interpreter, active or not.
std::vector<std::string> interpreters_beside(std::string_view elrun_name, const Variables& environment, const LookUp& look_up) {
  const std::string own = search(std::string{elrun_name}, environment, look_up).path;
  const auto slash = own.rfind('/');
  if (slash == std::string::npos) return {};
  const std::string folder = own.substr(0, slash);
  const auto is_there = [&](const char* name) { return look_up(folder + name).kind != FileKind::missing; };
  const auto is_set = [&](const char* name) {
    const auto found = environment.find(name);
    return found != environment.end() && !found->second.empty();
  };
  const bool is_of_environment = is_there("/../pyvenv.cfg") || is_there("/../conda-meta");
  const bool another_is_active = is_set("VIRTUAL_ENV") || is_set("CONDA_PREFIX");
  if (!is_of_environment && (another_is_active || own.substr(slash + 1) != "torchrun")) return {};
  return {folder + "/python3", folder + "/python"};
}

}  // namespace

std::variant<Command, NoCommand> resolve_command(const Program& program, const Variables& environment, const LookUp& look_up,
                                                 std::string_view elrun_name) {
  if (program.kind == Program::Kind::executable) {
    const Search found = search(program.name, environment, look_up);
    if (found.kind == FileKind::executable) return Command{found.path, {program.name}};
    if (found.kind == FileKind::not_executable)
      return NoCommand{exit_code::cannot_execute,
                       fmt::format("{}: cannot be executed; is it a file with the x bit (chmod +x), for this machine?", found.path)};
    return NoCommand{
        exit_code::not_found,
        fmt::format("{}: not found{}", program.name,
                    program.name.find('/') != std::string::npos ? "" : " on PATH; a program of the current folder is ./" + program.name)};
  }
  const FoundFile script = program.kind == Program::Kind::module ? FoundFile{FileKind::executable} : look_up(program.name);
  if (script.head.starts_with("\177ELF"))
    return NoCommand{exit_code::cannot_execute,
                     fmt::format("{}: is a program, not a Python script; put --no_python before it", program.name)};
  if (script.kind == FileKind::missing)
    return NoCommand{exit_code::no_input,
                     fmt::format("{}: no such script; for a program that is not Python give --no_python, for a module -m", program.name)};
  std::vector<std::string> candidates;
  const auto variable = [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string{} : found->second;
  };
  if (const std::string own = variable("PYTHON_EXEC"); !own.empty()) {
    candidates = {own};  // PYTHON_EXEC was given: no other interpreter is tried
  } else {
    candidates = interpreters_beside(elrun_name, environment, look_up);
    if (const std::string venv = variable("VIRTUAL_ENV"); !venv.empty()) candidates.push_back(venv + "/bin/python");
    candidates.insert(candidates.end(), {"python3", "python"});
  }
  for (const std::string& name : candidates) {
    const Search found = search(name, environment, look_up);
    if (found.kind != FileKind::executable) continue;
    Command command{found.path, {name, "-u"}};
    if (program.kind == Program::Kind::module) command.arguments.push_back("-m");
    if (program.kind == Program::Kind::run_path) command.arguments.insert(command.arguments.end(), {"-c", run_recorded});
    command.arguments.push_back(program.name);
    // Not refused: a file can be a shell's script and Python's at the same time, and torchrun runs it.
    if (const std::string other = other_interpreter(script.head); !other.empty() && !program.name.ends_with(".py"))
      command.warning = fmt::format("{}: its first line names {}, and it is run by Python; if it is no Python, put --no_python before it",
                                    program.name, other);
    return command;
  }
  return NoCommand{exit_code::not_found,
                   fmt::format("no Python found (looked for {}); set PYTHON_EXEC, or give --no_python for a program that is not Python",
                               fmt::join(candidates, ", "))};
}

std::vector<std::string> worker_arguments(const Command& command, const Program& program, LocalRank local_rank) {
  std::vector<std::string> arguments{command.arguments.front()};
  const bool python = program.kind != Program::Kind::executable;
  for (std::size_t i = 1; i < command.arguments.size(); ++i)
    arguments.push_back(python ? substitute_macros(command.arguments[i], local_rank) : command.arguments[i]);
  for (const std::string& a : program.arguments) arguments.push_back(substitute_macros(a, local_rank));
  return arguments;
}

}  // namespace elrun::inline v0::launcher
