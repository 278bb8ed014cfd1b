#include <csignal>

#include <fmt/ranges.h>

#include "tests/unit/options_given.hpp"

using namespace elrun;
using namespace elrun::launcher;
using namespace elrun::test;

TEST_CASE("everything after the program belongs to it", "[options]") {
  const LaunchOptions o = launch({"s.py", "a", "--nproc_per_node", "3"});
  CHECK(o.workers == 1);
  CHECK(o.program.name == "s.py");
  CHECK(o.program.arguments == std::vector<std::string>{"a", "--nproc_per_node", "3"});
  CHECK(launch({"--", "s.py", "-x"}).program.arguments == std::vector<std::string>{"-x"});
  CHECK(launch({"--", "-odd.py"}).program.name == "-odd.py");
  CHECK(launch({"s.py", "--", "x"}).program.arguments == std::vector<std::string>{"--", "x"});
}

TEST_CASE("an option has both spellings, a value after = or as the next word, and unique abbreviations", "[options]") {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"--nproc_per_node", "2", "s"},
                                                                                     {"--nproc-per-node=2", "s"},
                                                                                     {"--nproc_per-node", "2", "s"},
                                                                                     {"--nproc", "2", "s"},
                                                                                     {"--nproc-per=2", "s"}})
    CHECK(launch(words).workers == 2);
  CHECK(launch({"--nnode", "1", "s"}).round.nodes_max == 1);
  CHECK(launch({"-m", "pkg.mod", "x"}).program.kind == Program::Kind::module);
  CHECK(launch({"-r0", "-t=0", "s"}).program.name == "s");
  CHECK(launch({"-r", "1", "s"}).redirects.others.out);
  const Usage ambiguous = refused({"--n", "2", "s"});
  CHECK(contains(ambiguous.text, "--nnodes"));
  CHECK(contains(ambiguous.text, "--nproc_per_node"));
  CHECK(ambiguous.exit_code == exit_code::usage);
}

TEST_CASE("PET_ variables are defaults that the command line overrides", "[options]") {
  const Given given{.environment = {{"PET_NPROC_PER_NODE", "2"}, {"PET_NO_PYTHON", "1"}, {"PET_MODULE", "0"}, {"PET_STANDALONE", ""}}};
  CHECK(launch({"s"}, given).workers == 2);
  CHECK(launch({"--nproc-per-node", "1", "s"}, given).workers == 1);
  CHECK(launch({"s"}, given).program.kind == Program::Kind::executable);
  CHECK(contains(refused({"s"}, {.environment = {{"PET_NO_PYTHON", "true"}}}).text, "PET_NO_PYTHON=true"));
  CHECK(contains(refused({"s"}, {.environment = {{"PET_MAX_RESTARTS", ""}}}).text, "PET_MAX_RESTARTS="));

  const LaunchOptions pod =
      launch({"s"}, {.environment = {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "h"}, {"PET_MASTER_PORT", "23456"}}});
  REQUIRE(pod.endpoint);
  CHECK(pod.endpoint->host == "h");
  CHECK(pod.endpoint->port == 13456);  // 23456 is the workers'
  CHECK(pod.master_port == 23456);
  CHECK(pod.node_rank == 1);
  CHECK(pod.host_rule == HostRule::never);
}

TEST_CASE("all problems come out together, each with option, value and remedy", "[options]") {
  const Usage all =
      refused({"--nnodes", "3:2", "--nproc_per_node", "many", "--max-restarts=-1", "--bogus", "--rdzv_conf", "a,join_timeout=x"});
  CHECK(all.exit_code == exit_code::usage);
  for (const char* part : {"--nnodes 3:2", "2:3", "--nproc_per_node many", "auto", "--max_restarts -1", "--bogus", "no PROGRAM",
                           "entry 1 is not KEY=VALUE", "join_timeout=x"})
    CHECK(contains(all.text, part));
  CHECK(contains(refused({"--nnodes"}).text, "needs a value"));
  CHECK(contains(refused({"--nnodes", "--standalone", "s"}).text, "--nnodes: needs a value"));
  CHECK(contains(refused({" "}).text, "blank"));
}

TEST_CASE("bad numbers of nodes are refused", "[options]") {
  for (const char* n : {"3:2", "1:2:3", "x", "", "0", "-1", "0:1", "1:", ":2", "99999999999999999999", "131073"}) {
    INFO(n);
    CHECK(contains(refused({std::string{"--nnodes="} + n, "s"}).text, "nnodes"));
  }
  CHECK(launch({"--nnodes", " 1:3 ", "--rdzv_endpoint", "h:1", "s"}).round.nodes_max == 3);
}

TEST_CASE("workers are counted, or given", "[options]") {
  CHECK(launch({"--nproc_per_node", "cpu", "s"}).workers == 6);
  CHECK(launch({"--nproc_per_node", "auto", "s"}).workers == 6);
  CHECK(launch({"--nproc_per_node", "auto", "s"}, {.gpus = 4}).workers == 4);
  CHECK(launch({"--nproc_per_node", "gpu", "s"}, {.gpus = 4}).workers == 4);
  CHECK(launch({"--nproc_per_node", " +2 ", "s"}).workers == 2);
  CHECK(contains(refused({"--nproc_per_node", "gpu", "s"}).text, "no GPU"));
  CHECK(contains(refused({"--nproc_per_node", "0", "s"}).text, "nothing to do"));
  CHECK(contains(refused({"--nproc_per_node", "5000", "s"}).text, "4096"));
  CHECK(launch({"--nproc_per_node", "0", "--nnodes", "2", "--rdzv_endpoint", "h", "s"}).workers == 0);
  CHECK(launch({"--nproc_per_node", "gpu", "--nnodes", "2", "--rdzv_endpoint", "h", "s"}).workers == 0);
}

TEST_CASE("options that contradict each other have an exit code of their own", "[options]") {
  CHECK(refused({"-m", "--no_python", "s"}).exit_code == exit_code::contradiction);
  for (const char* nodes : {"2", "2:4"}) CHECK(refused({"--standalone", "--nnodes", nodes, "s"}).exit_code == exit_code::contradiction);
  const Usage nowhere = refused({"--nnodes", "2", "--rdzv_backend", "c10d", "s"});
  CHECK(nowhere.exit_code == exit_code::contradiction);
  CHECK(contains(nowhere.text, "--rdzv_endpoint HOST:PORT"));
}

TEST_CASE("times follow --rdzv_conf and --shutdown_timeout", "[options]") {
  const LaunchOptions o = launch({"--rdzv_conf",
                                  "join_timeout=20, last_call_timeout=3,keep_alive_interval=2,keep_alive_max_attempt=4,"
                                  "coordinator_grace=60,close_timeout=1",
                                  "--shutdown_timeout", "2", "s"});
  CHECK(o.timeouts.join == 20s);
  CHECK(o.round.last_call == 3s);
  CHECK(o.timeouts.heartbeat == 2s);
  CHECK(o.timeouts.heartbeat_limit == 8s);
  CHECK(o.timeouts.stop_grace == 2s);
  CHECK(o.timeouts.coordinator_grace == 60s);
  CHECK(o.timeouts.consistent());
  CHECK(o.notes.size() == 1);  // close_timeout
  CHECK(launch({"s"}, {.environment = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "4"}}}).timeouts.stop_grace == 4s);
  CHECK(launch({"--rdzv_conf", "timeout=7", "s"}).timeouts.join == 7s);
  CHECK(contains(refused({"--shutdown_timeout", "-1", "s"}).text, "--shutdown_timeout -1"));
  CHECK(contains(refused({"--monitor_interval", "0", "s"}).text, "--monitor_interval 0"));
  CHECK(contains(refused({"--rdzv_conf", "keep_alive_max_attempt=1", "s"}).text, "from 2 to"));
  CHECK(launch({"--rdzv_conf", "join_timeout=0.2", "s"}).timeouts.consistent());
}

TEST_CASE("a node is lost after a day of silence at most, and what asks for more is refused with that", "[options]") {
  const auto why = [](const char* conf) { return refused({"--rdzv_conf", conf, "s"}).text; };
  CHECK(contains(why("keep_alive_interval=31536000,keep_alive_max_attempt=1000"),
                 "keep_alive_interval=31536000: must be a day (86400) at most"));
  CHECK_FALSE(contains(why("keep_alive_interval=31536000,keep_alive_max_attempt=1000"), "twice"));
  CHECK(contains(why("keep_alive_interval=86400,keep_alive_max_attempt=1000"), "above a day"));
  const Timeouts longest = launch({"--rdzv_conf", "keep_alive_interval=8640,keep_alive_max_attempt=10", "s"}).timeouts;
  CHECK(longest.heartbeat_limit == std::chrono::hours{24});
  CHECK(longest.consistent());
}

TEST_CASE("a Job has all but 5 s of --shutdown_timeout to save a checkpoint, five sixths of a short one", "[options]") {
  const auto drain = [](const char* grace) {
    const Timeouts t = launch({"--shutdown_timeout", grace, "s"}).timeouts;
    CHECK(t.consistent());
    return t.drain;
  };
  CHECK(launch({"s"}).timeouts.drain == 25s);
  CHECK(drain("600") == 595s);
  CHECK(drain("31") == 26s);
  CHECK(drain("30") == 25s);
  CHECK(drain("12") == 10s);
  CHECK(drain("0") < 1ms);
}

TEST_CASE("--help names every exit code that is elrun's own", "[options]") {
  const std::string text = refused({"--help"}).text;
  for (const char* code : {" 64 ", "\n66 ", " 69 ", " 70 ", "\n78 ", " 126/127 ", " 128+n ", " 170 ", " 171 ", " 172 ", " 173 ", " 174 "}) {
    INFO(code);
    CHECK(contains(text.substr(text.find("Exit codes:")), code));
  }
}

TEST_CASE("which streams go where: one digit for all workers, or one for each", "[options]") {
  constexpr Streams none{}, out{.out = true}, err{.err = true}, both{.out = true, .err = true};
  const auto of = [](const StreamsByRank& s, std::uint32_t rank) { return s.of(LocalRank{rank}); };
  CHECK(launch({"s"}).redirects == StreamsByRank{});
  CHECK(launch({"-r3", "s"}).redirects == StreamsByRank{.others = both});
  CHECK(launch({"-t=1", "s"}).tee == StreamsByRank{.others = out});
  CHECK(launch({"s"}, {.environment = {{"PET_TEE", "2"}}}).tee == StreamsByRank{.others = err});
  const StreamsByRank mixed = launch({"--redirects", "0:1,10:3,4095:2,1:0", "s"}).redirects;
  CHECK(of(mixed, 0) == out);
  CHECK(of(mixed, 1) == none);
  CHECK(of(mixed, 2) == none);
  CHECK(of(mixed, 10) == both);
  CHECK(of(mixed, 4095) == err);
  for (const char* bad :
       {"4", "0:1,", "a", "", "-1", "00", "0:", ":1", "0:4", "0:1:2", "0 :1", "0:1, 1:1", "1,2", "4096:1", "99999999999:1"}) {
    INFO(bad);
    CHECK(contains(refused({std::string{"--redirects="} + bad, "s"}).text, "--redirects"));
    CHECK(contains(refused({std::string{"--tee="} + bad, "s"}).text, "such a number for each local rank"));
  }
}

TEST_CASE("what of the output is shown, and how", "[options]") {
  const LaunchOptions o =
      launch({"--log-dir", "logs", "--log-line-prefix-template", "${rank}: ", "--local-ranks-filter", "2,0,2", "--duplicate-stdout-filters",
              "a b,c,,d,,,e,", "--event-log-handler", "console", "--log-format=json", "--event-log", "events", "s"});
  CHECK(o.log_dir == "logs");
  CHECK(o.log_line_prefix_template == "${rank}: ");
  CHECK(o.local_ranks_filter == std::set<std::uint32_t>{0, 2});
  CHECK(o.duplicate_stdout_filters == std::vector<std::string>{"a b", "c,d,", "e"});
  CHECK(o.duplicate_stderr_filters.empty());
  CHECK(o.event_log_handler == EventLogHandler::console);
  CHECK(o.log_format == LogFormat::json);
  CHECK(o.event_log == "events");
  CHECK(launch({"--duplicate-stderr-filters", ",,", "s"}).duplicate_stderr_filters == std::vector<std::string>{","});
  CHECK(launch({"s"}, {.environment = {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "x"}}}).log_line_prefix_template == "x");
  CHECK(launch({"--log-line-prefix-template=y", "s"}, {.environment = {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "x"}}})
            .log_line_prefix_template == "y");
  CHECK_FALSE(launch({"s"}).local_ranks_filter);
  CHECK_FALSE(launch({"--local-ranks-filter", "", "s"}).local_ranks_filter);
  for (const char* bad : {"1,", ",", "x", "-1", "0;1"})
    CHECK(contains(refused({std::string{"--local-ranks-filter="} + bad, "s"}).text, "--local_ranks_filter"));
  CHECK(contains(refused({"--event-log-handler", "kafka", "s"}).text, "null, console, dynamic_rendezvous"));
  CHECK(contains(refused({"--log-format", "xml", "s"}).text, "text, json"));
  CHECK(contains(refused({"--logs-specs", "mine", "s"}).text, "--log_dir"));
}

TEST_CASE("signals by name; a name of none is noted and has no effect", "[options]") {
  CHECK(launch({"s"}).signals_to_handle == std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  const LaunchOptions o = launch({"--signals-to-handle", "SIGTERM, SIGUSR1,SIGTERM,SIGKILL,TERM,SIGNOPE,,15", "s"});
  CHECK(o.signals_to_handle == std::vector<int>{SIGTERM, SIGUSR1});
  REQUIRE(o.notes.size() == 4);
  CHECK(contains(o.notes[0], "SIGKILL"));
  CHECK(contains(o.notes[2], "SIGNOPE"));
}

TEST_CASE("where a notice that the node will be taken away comes from", "[options]") {
  CHECK_FALSE(launch({"s"}).preempt_notice);
  CHECK(launch({"--preempt-notice", "/run/notice", "s"}).preempt_notice->text == "/run/notice");
  CHECK(launch({"--preempt_notice=cmd:test -e /x", "s"}).preempt_notice->text == "test -e /x");
  const Given pod{.environment = {{"PET_PREEMPT_NOTICE", "http://169.254.169.254/latest/meta-data/spot/instance-action"}}};
  CHECK(launch({"s"}, pod).preempt_notice->kind == NoticeSource::Kind::url);
  CHECK_FALSE(launch({"s"}, {.environment = {{"PET_PREEMPT_NOTICE", ""}}}).preempt_notice);
  const Usage wrong = refused({"--preempt-notice", "https://host/x", "s"});
  CHECK(wrong.exit_code == exit_code::usage);
  CHECK(contains(wrong.text, "--preempt_notice https://host/x: only plain http://"));
}

TEST_CASE("grace and hangs in seconds, the flag before the variable", "[options]") {
  const Given variable{.environment = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "4"}}};
  CHECK(launch({"--shutdown-timeout", "7", "s"}, variable).timeouts.stop_grace == 7s);
  const LaunchOptions at_once = launch({"--shutdown-timeout", "0", "s"});
  CHECK(at_once.timeouts.stop_grace <= 10ms);
  CHECK(at_once.timeouts.consistent());
  CHECK(contains(refused({"s"}, {.environment = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-4"}}}).text, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=-4"));
  CHECK(launch({"s"}).hang_timeout == 0s);
  const LaunchOptions o = launch({"--hang-timeout=1.5", "--hang-on", "output", "--tee", "1", "s"});
  CHECK(o.hang_timeout == 1500ms);
  CHECK(o.hang_sign == HangSign::output);
  CHECK(contains(refused({"--hang-timeout=-1", "s"}).text, "--hang_timeout -1"));
  CHECK(contains(refused({"--nproc_per_node=2", "--hang-timeout=1", "--hang-on=output", "--redirects=0:1", "s"}).text,
                 "what worker 1 writes"));
  CHECK(contains(refused({"--hang-timeout=1", "--hang-on=output", "--tee=3", "--log-dir=/dev/null", "s"}).text, "what worker 0 writes"));
  CHECK(contains(refused({"--hang-on=heat", "s"}).text, "progress, output"));
}

TEST_CASE("how the program is run", "[options]") {
  CHECK(launch({"--run-path", "s.py"}).program.kind == Program::Kind::run_path);
  CHECK(launch({"--run-path", "--no-python", "-m", "s.py"}).program.kind == Program::Kind::run_path);
  CHECK(launch({"--start-method", "forkserver", "s"}).program.name == "s");
  CHECK(contains(refused({"--start-method", "thread", "s"}).text, "spawn, fork or forkserver"));
  CHECK(launch({"--numa-binding=core-complex", "s"}).numa_binding == NumaBinding::core_complex);
  CHECK(launch({"s"}, {.environment = {{"PET_NUMA_BINDING", "node"}}}).numa_binding == NumaBinding::none);
  CHECK(contains(refused({"--numa-binding=all", "s"}).text, "node, socket, exclusive, core-complex"));
  CHECK(launch({"--virtual-local-rank", "s"}).virtual_local_rank);
  const Variables two_parts{{"CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b"}, {"OMP_NUM_THREADS", "1"}};
  REQUIRE(launch({"--nproc-per-node", "2", "s"}, {.environment = two_parts}).notes.size() == 1);
  CHECK(contains(
      launch({"--nproc-per-node", "2", "s"}, {.environment = two_parts}).notes[0],
      "CUDA_VISIBLE_DEVICES=MIG-a,MIG-b names MIG instances, and CUDA shows a process only the first of them: --virtual_local_rank"));
  CHECK(launch({"--nproc-per-node", "2", "--virtual-local-rank", "s"}, {.environment = two_parts}).notes.empty());
  CHECK(launch({"--nproc-per-node", "1", "s"}, {.environment = two_parts}).notes.empty());
  CHECK(
      contains(refused({"--nproc-per-node", "3", "--virtual-local-rank", "s"}, {.environment = two_parts}).text, "names 2 for 3 workers"));
  CHECK(launch({"--local-rank-argument", "s", "x"}).program.arguments == std::vector<std::string>{"--local-rank=${local_rank}", "x"});
  CHECK(launch({"--local-rank-argument", "--use-env", "s", "x"}).program.arguments == std::vector<std::string>{"x"});
  CHECK(contains(refused({"--local-rank-argument", "--no-python", "s"}).text, "--use_env"));
}

TEST_CASE("as torchrun, a wrong command line is told from a wrong value by 2 and 1", "[options]") {
  const auto code = [](std::vector<std::string> words, std::string_view name) {
    const Variables none;
    const auto command = parse_command(words, none, {.gpus = [] { return Count{}; }, .cpus = [] { return Count{1, "mask"}; }}, name);
    const auto* usage = std::get_if<Usage>(&command);
    return usage == nullptr ? -1 : usage->exit_code;
  };
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {}, {"--bogus", "s"}, {"--max-restarts", "x", "s"}, {"--numa-binding", "x", "s"}, {"--redirects", "4", "--bogus"}}) {
    CHECK(code(words, "/usr/bin/torchrun") == 2);
    CHECK(code(words, "elrun") == 64);
  }
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--nnodes", "x", "s"}, {"--max-restarts", "-1", "s"}, {"--redirects", "4", "s"}}) {
    CHECK(code(words, "torchrun") == 1);
    CHECK(code(words, "elrun") == 64);
  }
  CHECK(code({"-m", "--no-python", "s"}, "torchrun") == 1);
  CHECK(code({"-m", "--no-python", "s"}, "elrun") == 78);
  CHECK(code({"--exit-codes=torchrun", "--bogus"}, "elrun") == 2);
  CHECK(code({"--exit-codes=elrun", "--bogus"}, "torchrun") == 64);
  CHECK(code({"--exit-codes=mine", "s"}, "elrun") == 64);
  CHECK(launch({"--exit-codes", "torchrun", "s"}).exit_codes == ExitCodes::torchrun);
}

TEST_CASE("an abbreviation that is enough for torchrun stays so", "[options]") {
  CHECK(launch({"--local-r", "1", "s"}).local_ranks_filter == std::set<std::uint32_t>{1});  // not --local-rank-argument
  CHECK(launch({"--e", "console", "s"}).event_log_handler == EventLogHandler::console);     // not --exit-codes
  CHECK(contains(refused({"--d", "s"}).text, "could be"));
}

TEST_CASE("a variable that a shell left out does not swallow the program", "[options]") {
  const LaunchOptions o =
      launch({"--nnodes", "1", "--rdzv_id", "--rdzv_backend", "--rdzv_endpoint", "mnist.py", "--checkpoint_path", "/tmp/x"});
  CHECK(o.program.name == "mnist.py");
  CHECK(o.program.arguments == std::vector<std::string>{"--checkpoint_path", "/tmp/x"});
  CHECK(o.notes.size() == 3);
  CHECK(launch({"--rdzv_endpoint", "node.py", "s.py"}).program.name == "s.py");
  CHECK(launch({"--rdzv_endpoint", "node.py", "--max-restarts", "1", "s.py"}).program.name == "s.py");
  CHECK(launch({"--rdzv_endpoint", "s.py"}).program.name == "s.py");
}

TEST_CASE("what shells complete is made of the same table", "[options]") {
  for (const char* shell : {"bash", "zsh", "tcsh"}) {
    const Usage text = refused({"--print-completion", shell});
    CHECK(text.exit_code == 0);
    CHECK(contains(text.text, "nproc-per-node"));
    CHECK_FALSE(contains(text.text, "logs-specs"));
  }
  CHECK(contains(refused({"--print-completion", "fish"}).text, "bash, zsh or tcsh"));
}

TEST_CASE("a misspelt name is told beside the one that was meant", "[options]") {
  const auto note = [](const std::string& conf) { return fmt::format("{}", fmt::join(launch({"--rdzv_conf", conf, "s.py"}).notes, "|")); };
  CHECK(contains(note("join_timout=5"), "did you mean join_timeout?"));
  CHECK(contains(note("keepalive_interval=5"), "did you mean keep_alive_interval?"));
  CHECK(contains(note("token=a,last_cal_timeout=5"), "entry 2 of --rdzv_conf has no effect here; did you mean last_call_timeout?"));
  for (const char* torchruns : {"close_timeout", "heartbeat_timeout", "store_type", "read_timeout", "protocol", "etcd_prefix", "rank"}) {
    CHECK(contains(note(fmt::format("{}=1", torchruns)), fmt::format("{} has no effect here", torchruns)));
    CHECK_FALSE(contains(note(fmt::format("{}=1", torchruns)), "did you mean"));
  }
  CHECK(contains(refused({"--rdzv-bakend", "c10d", "s.py"}).text, "--rdzv-bakend: no such option, did you mean --rdzv_backend?"));
  CHECK_FALSE(contains(refused({"--bogus", "s.py"}).text, "did you mean"));
}

TEST_CASE("--begin_anew takes the name of a lost checkpoint: STEP@FENCE, or a step", "[options]") {
  CHECK(launch({"--begin_anew", "40@7", "s.py"}).begin_anew == "40@7");
  CHECK(launch({"--begin_anew", "40", "s.py"}).begin_anew == "40");
  for (const char* wrong : {"", "x", "-1", "40@", "@7", "40@7@8", "4x"})
    CHECK(contains(refused({"--begin_anew", wrong, "s.py"}).text, "names no lost checkpoint"));
}

TEST_CASE("what stands behind an option that nobody knows is looked at as well", "[options]") {
  const std::string all = refused({"--foo", "3", "--nproc_per_node", "0", "--max_restarts", "x", "prog"}).text;
  for (const char* problem : {"--foo: no such option", "--nproc_per_node 0: a single node without workers", "--max_restarts x: must be"})
    CHECK(contains(all, problem));
  CHECK_FALSE(contains(refused({"--foo", "3", "--max_restarts", "1"}).text, "no PROGRAM"));  // it may be what the option was taken to eat
  // The program's own options are none of elrun's.
  CHECK_FALSE(contains(refused({"--foo", "train.py", "--max_restarts", "x"}).text, "--max_restarts x"));
  CHECK_FALSE(contains(refused({"--foo", "prog", "--bar", "--max_restarts", "x"}).text, "--bar"));
}

TEST_CASE("help names every option that works, and exits with 0", "[options]") {
  const Usage help = refused({"--help"});
  CHECK(help.exit_code == 0);
  for (const char* option : {"--nnodes", "--nproc-per-node", "--node-rank", "--rdzv-endpoint", "--rdzv-id", "--max-restarts",
                             "--standalone", "--no-python", "-m, --module", "--shutdown-timeout", "elrun store"})
    CHECK(contains(help.text, option));
  CHECK(contains(help.text, "78 contradictory options, or versions differ"));
  for (std::size_t begin = 0, end = 0; (end = help.text.find('\n', begin)) != std::string::npos; begin = end + 1) CHECK(end - begin <= 125);
}

TEST_CASE("elrun store takes a host and a port", "[options]") {
  const auto store = parse({"store", "--host", "127.0.0.1", "--port=0"});
  REQUIRE(std::holds_alternative<StoreOptions>(store));
  CHECK(std::get<StoreOptions>(store).host == "127.0.0.1");
  CHECK(std::get<StoreOptions>(store).port == 0);
  CHECK(std::get<StoreOptions>(parse({"store"})).port == 29400);
  const auto timed = parse({"store", "--rdzv_conf=keep_alive_interval=3", "--shutdown-timeout", "60"});
  REQUIRE(std::holds_alternative<StoreOptions>(timed));
  CHECK(std::get<StoreOptions>(timed).timeouts.heartbeat == 3s);
  CHECK(std::get<StoreOptions>(timed).timeouts.stop_grace == 60s);
  CHECK(std::get<StoreOptions>(parse({"store", "--checkpoint-root=/ck"})).checkpoint_root == "/ck");
  const auto named = parse({"store", "--rdzv-id=llm", "--nnodes", "2:4"}, {.environment = {{"PET_RDZV_ID", "other"}}});
  REQUIRE(std::holds_alternative<StoreOptions>(named));
  CHECK(std::get<StoreOptions>(named).run == RunId{"llm"});
  CHECK(std::get<StoreOptions>(named).nodes_min == 2);
  CHECK(std::get<StoreOptions>(named).nodes_max == 4);
  const auto nameless = parse({"store"}, {.environment = {{"PET_RDZV_ID", "other"}, {"PET_NNODES", "3"}}});
  CHECK(std::get<StoreOptions>(nameless).run == RunId{});
  CHECK(std::get<StoreOptions>(nameless).nodes_max == 0);
  CHECK(refused({"store", "--nnodes", "4:2"}).exit_code == exit_code::usage);
  CHECK(refused({"store", "--rdzv_id", "a\nb"}).exit_code == exit_code::usage);
  CHECK(refused({"store", "--port", "x"}).exit_code == exit_code::usage);
  CHECK(refused({"store", "x"}).exit_code == exit_code::usage);
  for (const char* option :
       {"--host", "--port", "--rdzv_id", "--nnodes", "--rdzv_conf", "--shutdown_timeout", "--checkpoint_root", "--log_format"}) {
    INFO(option);
    CHECK(contains(refused({"store", "--nothing"}).text, option));
  }
}

TEST_CASE("no admin port is open unless it is asked for", "[options]") {
  CHECK_FALSE(launch({"s"}).side.health);
  CHECK_FALSE(launch({"s"}).side.has_timer_file);
  CHECK(launch({"--health-port", "9500", "s"}).side.health == HealthPort{"", 9500, true});
  CHECK(launch({"--health-port=[::1]:0", "s"}).side.health == HealthPort{"::1", 0, true});
  CHECK(launch({"s"}, {.environment = {{"PET_HEALTH_PORT", "127.0.0.1:1"}}}).side.health == HealthPort{"127.0.0.1", 1, true});
  CHECK(launch({"s"}, {.environment = {{"TORCHELASTIC_HEALTH_CHECK_PORT", "9500"}}}).side.health == HealthPort{"", 9500, false});
  const LaunchOptions odd = launch({"s"}, {.environment = {{"TORCHELASTIC_HEALTH_CHECK_PORT", "x"}}});
  CHECK_FALSE(odd.side.health);
  CHECK(contains(odd.notes.at(0), "TORCHELASTIC_HEALTH_CHECK_PORT=x"));
  for (const char* text : {"x", "-1", "65536", "a b:1", ":1", "1:"})
    CHECK(contains(refused({"--health-port", text, "s"}).text, "--health_port"));
  const LaunchOptions timers = launch({"s"}, {.environment = {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}, {"TORCHELASTIC_TIMER_FILE", "/t"}}});
  CHECK(timers.side.has_timer_file);
  CHECK(timers.side.timer_file == "/t");
  CHECK_FALSE(launch({"s"}, {.environment = {{"TORCHELASTIC_ENABLE_FILE_TIMER", "0"}}}).side.has_timer_file);
}

TEST_CASE("the health port is neither that of the rendezvous that this node would serve, nor the workers'", "[options]") {
  const auto meeting = [](const std::string& endpoint, std::vector<std::string> more) {
    std::vector<std::string> words{"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint};
    words.insert(words.end(), more.begin(), more.end());
    words.emplace_back("s");
    return words;
  };
  const Usage same = refused(meeting("localhost:29511", {"--health_port", "29511"}));
  CHECK(same.exit_code == exit_code::contradiction);
  CHECK(contains(same.text, "--health_port 29511: this port is also where this node would serve the rendezvous (localhost:29511)"));
  CHECK(refused(meeting("node0:29511", {"--rdzv_conf", "is_host=1", "--health_port", "29511"})).exit_code == exit_code::contradiction);
  CHECK(launch(meeting("node0:29511", {"--health_port", "29511"})).side.health);  // it is elsewhere, or known when it was looked up
  CHECK(launch(meeting("localhost:29511", {"--rdzv_conf", "is_host=0", "--health_port", "29511"})).side.health);
  CHECK(launch(meeting("localhost:29511", {"--health_port", "0"})).side.health);
  const LaunchOptions unasked = launch(meeting("localhost:29511", {}), {.environment = {{"TORCHELASTIC_HEALTH_CHECK_PORT", "29511"}}});
  CHECK_FALSE(unasked.side.health);
  CHECK(contains(fmt::format("{}", fmt::join(unasked.notes, "; ")), "TORCHELASTIC_HEALTH_CHECK_PORT=29511 has no effect"));

  const auto workers = [](const char* rank) {
    return std::vector<std::string>{"--nnodes", "2", "--master_addr", "h", "--master_port", "29511", "--node_rank", rank, "--health_port",
                                    "29511",    "s"};
  };
  CHECK(contains(refused(workers("0")).text, "--master_port"));
  CHECK(launch(workers("1")).side.health);
}

TEST_CASE("the first word may ask for something else than a job", "[options]") {
  const auto status = parse({"status", "--pid", "7", "--json", "--timeout=0.5"});
  REQUIRE(std::holds_alternative<StatusOptions>(status));
  CHECK(std::get<StatusOptions>(status).pid == 7);
  CHECK(std::get<StatusOptions>(status).as_json);
  CHECK(std::get<StatusOptions>(status).timeout == 500ms);
  CHECK(std::get<StatusOptions>(parse({"status", "--endpoint", "h:9500"})).endpoint->port == 9500);
  for (const char* wrong : {"--pid=x", "--pid", "--endpoint=h", "--timeout=0", "x"}) CHECK(refused({"status", wrong}).exit_code == 64);
  for (const char* word : {"status", "install", "store", "doctor", "drain", "ckpt"}) {
    const Usage help = refused({word, "--help"});
    CHECK(help.exit_code == 0);
    CHECK(help.text.starts_with(fmt::format("usage: elrun {}", word)));
  }

  const auto doctor = parse({"doctor", "--nproc_per_node", "3"});
  REQUIRE(std::holds_alternative<DoctorOptions>(doctor));
  CHECK(std::get<DoctorOptions>(doctor).launch.workers == 3);
  CHECK_FALSE(std::get<DoctorOptions>(doctor).has_program);
  CHECK(std::get<DoctorOptions>(parse({"doctor", "s.py", "--x"})).has_program);
  CHECK(refused({"doctor", "--bogus"}).exit_code == 64);

  CHECK(std::get<InstallOptions>(parse({"install", "--force", "/d"})).directory == "/d");
  CHECK(std::get<InstallOptions>(parse({"install", "--force", "/d"})).replaces_foreign);
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"install"}, {"install", "a", "b"}, {"install", "--x", "a"}})
    CHECK(refused(wrong).exit_code == 64);

  const auto drain = parse({"drain", "--pid", "7", "--timeout=0.5"});
  REQUIRE(std::holds_alternative<DrainOptions>(drain));
  CHECK(std::get<DrainOptions>(drain).pid == 7);
  CHECK(std::get<DrainOptions>(drain).timeout == 500ms);
  CHECK(std::get<DrainOptions>(parse({"drain"})).timeout == 600s);
  for (const char* wrong : {"--pid=0", "--pid=x", "--pid", "--timeout=0", "--timeout", "--json", "x"})
    CHECK(refused({"drain", wrong}).exit_code == 64);

  const auto ckpt = parse({"ckpt", "inspect", "/r", "40@2", "--plan=4", "--zero", "hybrid2", "--per_node", "2", "--json"});
  REQUIRE(std::holds_alternative<CkptOptions>(ckpt));
  const auto& of_ckpt = std::get<CkptOptions>(ckpt);
  CHECK(of_ckpt.verb == CkptOptions::Verb::inspect);
  CHECK(of_ckpt.names == std::vector<CheckpointName>{{"/r", LossName{40, 2}, {}}});
  CHECK(of_ckpt.as_json);
  CHECK((of_ckpt.reads_as && of_ckpt.reads_as->world == 4 && of_ckpt.reads_as->parts == 2));
  CHECK(std::get<CkptOptions>(parse({"ckpt", "diff", "/a:1", "/b"})).names.size() == 2);
  // Where nothing but a root can be, its name may end like a step.
  CHECK(std::get<CkptOptions>(parse({"ckpt", "ls", "/r/08:22"})).names == std::vector<CheckpointName>{{"/r/08:22"}});
  CHECK(std::get<CkptOptions>(parse({"ckpt", "verify", "/r/08:22", "5"})).names ==
        std::vector<CheckpointName>{{"/r/08:22", LossName{5, {}}, {}}});
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"ckpt"},
                                             {"ckpt", "rm", "/r"},
                                             {"ckpt", "ls"},
                                             {"ckpt", "ls", "/r", "/s"},
                                             {"ckpt", "ls", "/r/ckpt/s000000000040.g00000001.a01"},
                                             {"ckpt", "verify", "/r/ckpt/s000000000040.g00000001.a01", "5"},
                                             {"ckpt", "verify", "/r", "--plan", "2"},
                                             {"ckpt", "verify", "/r", "--readers"},
                                             {"ckpt", "diff", "/a", "/b", "/c"},
                                             {"ckpt", "diff", "/a", "--readers", "2", "/b"}})
    CHECK(refused(wrong).exit_code == 64);

  // By its path it is a program; and torchrun knows no such words.
  CHECK(launch({"./status"}).program.name == "./status");
  for (const char* word : {"status", "doctor", "install", "store", "drain", "ckpt"}) {
    const auto command = parse_command(std::vector<std::string>{word}, {},
                                       {.gpus = [] { return Count{}; },
                                        .cpus =
                                            [] {
                                              return Count{1, "mask"};
                                            }},
                                       "/usr/bin/torchrun");
    REQUIRE(std::holds_alternative<LaunchOptions>(command));
    CHECK(std::get<LaunchOptions>(command).program.name == word);
  }
}
