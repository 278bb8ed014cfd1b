// Everything here runs on one thread. Whatever is seen becomes an event in a queue; the supervisor answers with
// actions; an action may put the next event in the queue, but never runs it inside itself.
#include "launcher/agent.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <map>
#include <set>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/http/admin_endpoints.hpp"
#include "launcher/options/host.hpp"
#include "launcher/output/log_json.hpp"
#include "launcher/output/output.hpp"
#include "launcher/process/child.hpp"
#include "launcher/process/descriptors.hpp"
#include "launcher/process/machine.hpp"
#include "launcher/process/orphans.hpp"
#include "launcher/process/stack_tools.hpp"
#include "launcher/report/endings.hpp"
#include "launcher/report/failure_report.hpp"
#include "launcher/report/reporter.hpp"
#include "launcher/supervise/supervisor.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"
#include "lib/link/server.hpp"
#include "rendezvous/election/elected_link.hpp"
#include "rendezvous/net/lookup.hpp"
#include "rendezvous/net/node_link.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0::launcher {
namespace asio = boost::asio;
namespace {

constexpr Duration orphans_end_within = 2s;  // after SIGKILL the kernel needs microseconds, unless a driver hangs

std::uint64_t random_number() {
  std::uint64_t number = 0;
  random_bytes(std::as_writable_bytes(std::span{&number, 1}));
  return number;
}

// As a UUID looks, for programs that expect one.
RunId random_run() {
  const std::string hex = fmt::format("{:016x}{:016x}", random_number(), random_number());
  return RunId{fmt::format("{}-{}-{}-{}-{}", hex.substr(0, 8), hex.substr(8, 4), hex.substr(12, 4), hex.substr(16, 4), hex.substr(20))};
}

// Handles what asks a process to end. A SIGHUP that was ignored from the start (nohup) stays ignored.
void handle_ending_signals(asio::signal_set& signals, const std::vector<int>& numbers) {
  for (const int number : numbers) {
    struct sigaction hangup {};
    const bool ignored = number == SIGHUP && ::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    if (!ignored) signals.add(number);
  }
}

void tell_of_service(const Log& log, const std::string& endpoint, const std::string& listen, const Access& access) {
  log.info(fmt::format("serving the rendezvous at {}{}{}", endpoint, access.has_tls() ? ", with TLS" : "",
                       access.has_token() ? ", with a token" : ""));
  if (!is_loopback(listen) && access.is_open())
    log.warning(fmt::format(
        "there is neither TLS nor a token: anyone who can reach {} can join this job, read its data, corrupt its results and end it. Give all nodes a token "
        "(ELRUN_RDZV_TOKEN_FILE), or certificates (--rdzv_conf cacert=...,cert=...,key=...), or use a network that you trust",
        endpoint));
}

// What is wrong with the access is wrong before anything starts. Says it, and what is not wise.
bool access_is_sound(const Access& access, const Clock& clock, const Log& log) {
  for (const std::string& warning : access_warnings(access, clock.wall_ns() / 1'000'000'000)) log.warning(warning);
  const auto credentials = read_credentials(access);
  if (!credentials.ok()) log.error("access to the rendezvous: " + message(credentials.failure()));
  return credentials.ok();
}

class Agent {
 public:
  Agent(AgentSetting setting, const Guard& guard, const Clock& clock, LogStream& lines)
      : setting_{std::move(setting)},
        options_{setting_.options},
        guard_{guard},
        clock_{clock},
        lines_{lines},
        incarnation_{NodeId{fmt::format("{}.{:010x}", host_name(), random_number() >> 24)}, random_number()},
        run_{options_.run.value().empty() ? random_run() : options_.run},
        signals_{loop_},
        timer_{loop_},
        supervisor_{{options_.round, options_.workers, options_.timeouts, run_, incarnation_.node, options_.hang_timeout,
                     options_.hang_sign, endpoint_text()}},
        reporter_{options_, run_, incarnation_.node, host_name(), report_files(setting_.environment), clock_, lines_, log_},
        admin_endpoints_{loop_,
                         clock_,
                         log_,
                         {ELRUN_VERSION, run_, incarnation_.node, ::getpid(), options_.program.name, endpoint_text(), options_.round},
                         [this] { return hosted() != nullptr; }} {}

  int run() {
    log_context_->run = run_.value();
    log_context_->node = incarnation_.node.value();
    if (options_.log_format == LogFormat::json)
      lines_.set_format([context = log_context_](const LogLine& line) { return json_line(line, *context); });
    auto server = WorkerServer::listen_unix(loop_, socket(),
                                            {[this](auto from, const Message& m) {
                                               feed(WorkerSaid{from, m});
                                             },
                                             [this](auto from, const Failure&) { feed(WorkerHungUp{from}); }});
    if (!server) return log_.error(message(server.failure())), exit_code::internal;
    server_ = std::move(*server);
    auto output = Output::start(loop_, {options_, run_, host_name(), setting_.directory, temporary_directory(), lines_}, log_);
    if (!output) return log_.error(message(output.failure())), exit_code::contradiction;
    output_ = std::move(*output);
    handle_ending_signals(signals_, options_.signals_to_handle);
    wait_for_signal();
    watch_guard();
    admin_endpoints_.open_timers(options_.side, setting_.directory, setting_.environment,
                                 [this](pid_t group) { return is_worker_group(group); });
    if (const auto opened = admin_endpoints_.open(options_.side, setting_.directory); !opened.ok())
      return log_.error(message(opened.failure())), exit_code::contradiction;
    feed(Started{});
    connect();
    loop_.run();
    children_.clear();
    return exit_code_;
  }

 private:
  [[nodiscard]] Path socket() const { return setting_.directory / "agent.sock"; }
  [[nodiscard]] Path temporary_directory() const {
    const auto named = setting_.environment.find("TMPDIR");
    return named != setting_.environment.end() && !named->second.empty() ? named->second : "/tmp";
  }
  [[nodiscard]] std::string endpoint_text() const {
    if (!options_.etcd.empty()) return fmt::format("etcd ({}:{})", options_.etcd.front().host, options_.etcd.front().port);
    return options_.endpoint ? fmt::format("{}:{}", options_.endpoint->host, options_.endpoint->port) : "this process";
  }

  // --- the line to the coordinator ---

  void connect() {
    if (!options_.etcd.empty()) {
      auto elected = connect_through_etcd(loop_, clock_, coordinator_log_,
                                          {options_.etcd, run_, options_.host_rule != HostRule::never, options_.local_address,
                                           options_.timeouts, options_.access, setting_.generation_floor, random_number()},
                                          handler(), [this] { end_if_allowed(); });
      elected_ = elected.get();
      link_ = std::move(elected);
    } else if (!options_.endpoint) {
      link_ = coordinator(0).connect_in_process(handler());
    } else if (options_.host_rule == HostRule::never) {
      link_ = connect_to_endpoint();
    } else {
      look_up_endpoint([this](std::vector<std::string> leads_to) {
        if (finished_) return;
        const auto hosted = try_to_host(std::move(leads_to));
        if (hosted && !*hosted) link_ = connect_to_endpoint();
        if (hosted) return;
        log_.error(message(hosted.failure()));
        exit_code_ = exit_code::contradiction;
        loop_.stop();  // there is nothing yet to bring to its end
      });
    }
  }

  std::unique_ptr<NodeLink> connect_to_endpoint() {
    return connect_to_coordinator(loop_, *options_.endpoint, options_.timeouts, random_number(), handler(), options_.access);
  }

  Coordinator& coordinator(std::uint64_t generation_floor) {
    coordinator_ = Coordinator::create(loop_, clock_, options_.endpoint ? coordinator_log_ : quiet_,
                                       {.run = run_,
                                        .timeouts = options_.timeouts,
                                        .access = options_.access,
                                        .generation_floor = std::max(generation_floor, setting_.generation_floor)});
    coordinator_->on_may_exit([this] { end_if_allowed(); });
    return *coordinator_;
  }

  // True if this process serves the rendezvous now, false if it is somebody else's to do or done already.
  Result<bool> try_to_host(std::vector<std::string> leads_to) {
    const auto place = host_place(*options_.endpoint, options_.host_rule, {host_name(), own_addresses(), std::move(leads_to)});
    if (!place) return false;
    const auto served = coordinator(supervisor_.last_generation().number).serve(place->listen, options_.endpoint->port);
    if (!served) {
      coordinator_.reset();
      // Another agent of this machine, or `elrun store`, was first. Where this very node is to serve, a stranger is more likely.
      if (served.failure().code == Code::already_exists && options_.host_rule == HostRule::always &&
          !std::exchange(told_of_taken_port_, true))
        log_.warning(fmt::format(
            "port {} of this machine is taken already: this node does not serve the rendezvous, and joins the agent that does. If another program has the port, end it, or choose another port",
            options_.endpoint->port));
      if (served.failure().code == Code::already_exists) return false;
      return served.failure();
    }
    tell_of_service(log_, endpoint_text(), place->listen, options_.access);
    hosted_address_ = place->address;
    link_ = coordinator_->connect_in_process(handler());
    return true;
  }

  NodeLink::Handler handler() {
    return {[this] {
              link_is_up_ = true;
              feed(LinkUp{});
            },
            [this](const Failure& why) {
              link_is_up_ = false;
              feed(LinkDown{why});
              // The host may have been another process of this machine: whoever binds the port first goes on. Or the
              // name was not published yet, and leads here now.
              if (options_.endpoint && !coordinator_ && options_.host_rule != HostRule::never) asio::post(loop_, [this] { take_over(); });
            },
            [this](const CoordinatorMessage& m) { feed(CoordinatorSaid{m}); }, [this] { end_if_allowed(); }};
  }

  // The loop does not wait for name servers: signals come, and workers may run.
  template <class Call>
  void look_up_endpoint(Call call) {
    if (std::exchange(looking_up_, true)) return;
    Endpoint endpoint = *options_.endpoint;
    if (endpoint.host == "localhost") endpoint.host = "127.0.0.1";
    lookup_.start(endpoint, [this, call](const Resolved& found) {
      looking_up_ = false;
      std::vector<std::string> leads_to;
      for (const Address& address : found.addresses) leads_to.push_back(address.host);
      call(std::move(leads_to));
    });
  }

  void take_over() {
    if (coordinator_ || finished_) return;
    look_up_endpoint([this](std::vector<std::string> leads_to) {
      if (coordinator_ || finished_ || link_is_up_) return;
      if (const auto hosted = try_to_host(std::move(leads_to)); !hosted) log_.warning(message(hosted.failure()));
    });
  }

  [[nodiscard]] std::string address() const {
    if (!options_.local_address.empty()) return options_.local_address;
    return hosted_address_.empty() ? link_->local_address() : hosted_address_;
  }

  // --- events in, actions out ---

  void feed(Event event) {
    events_.push_back(std::move(event));
    if (events_.size() == 1 && !busy_) asio::post(loop_, [this] { work(); });
  }

  void work() {
    busy_ = true;
    while (!events_.empty()) {
      const Event event = std::move(events_.front());
      events_.pop_front();
      const Generation before = supervisor_.last_generation();
      const std::vector<Action> actions = supervisor_.on(event, clock_.now());
      log_context_->generation = supervisor_.last_generation().number;
      if (supervisor_.last_generation() != before) reporter_.began(std::get<World>(std::get<CoordinatorSaid>(event).message), supervisor_);
      admin_endpoints_.saw(event, actions, supervisor_);
      for (const Action& action : actions) std::visit([this](const auto& a) { perform(a); }, action);
    }
    busy_ = false;
    if (const auto at = supervisor_.wake_at(); at && !finished_) {
      timer_.expires_after(std::max(*at - clock_.now(), Duration{0}));
      timer_.async_wait([this](const boost::system::error_code& error) {
        if (!error) feed(Tick{});
      });
    } else if (!finished_) {
      timer_.cancel();
    }
  }

  void perform(const LookAgain&) {
    if (link_) link_->look_again();
  }
  void perform(const Send& a) {
    if (!link_) return;
    const auto* join = std::get_if<Join>(&a.message);
    if (join == nullptr) return link_->send(a.message);
    Join whole = *join;
    whole.who = incarnation_;
    whole.run = run_;
    whole.version = ELRUN_VERSION;
    // As long as workers run, what others were told of this node: a coordinator that did not tell them compares. A new port
    // for each generation, from the first Join for it on: peers of the old one that are slow to die find nobody there.
    if (!join->resuming) told_address_ = address(), reporter_.joining();
    if (port_.number() == 0 || (port_is_for_ != join->last && !join->resuming)) hold_port(), port_is_for_ = join->last;
    whole.address = told_address_;
    whole.master_port = port_.number();
    whole.hint = options_.node_rank;
    whole.topology = options_.topology;
    whole.role = options_.role;
    whole.place = place_;
    whole.confirms_verdict = true;
    link_->send(whole);
  }

  void hold_port() {
    const bool is_first = port_.number() == 0;
    port_ = options_.master_port ? HeldPort::exactly(*options_.master_port) : HeldPort::any(port_.number());
    if (!options_.master_port) return;
    // Of several agents on one machine, only that of rank 0 keeps it: its worker may not allow the reuse of addresses.
    const bool is_for_here = options_.node_rank <= 0;
    if (is_first && is_for_here && !port_.is_held())
      log_.warning(fmt::format(
          "--master_port {} is in use on this machine: the worker of rank 0 cannot listen there; end the program that has it, or choose another port",
          *options_.master_port));
    if (!is_for_here) port_.release();
  }

  void perform(const Spawn& a) {
    port_.release();
    // One attempt has the files of one process of each worker.
    if (std::exchange(spawned_for_, a.world.generation) != a.world.generation || spawned_.contains(a.worker))
      output_->begin_attempt(), spawned_.clear();
    spawned_.insert(a.worker);
    const Rank placed{a.world.seat.base_rank + a.place};
    const Path error_file = output_->error_file(a.worker);
    const WorkerSetting worker{options_, a.world, run_, incarnation_.node, a.worker, a.node_restarts, socket(), a.place, error_file};
    const WorkerStreams streams = output_->open(a.worker, placed);
    const Execution execution{setting_.command.path,
                              worker_arguments(setting_.command, options_.program, a.worker),
                              worker_environment(setting_.environment, worker),
                              streams.out.get(),
                              streams.err.get(),
                              setting_.cpus.empty() ? Cpus{} : setting_.cpus[a.worker.value()]};
    const LocalRank rank = a.worker;
    auto child = Child::start(loop_, guard_, execution, [this, rank](Ending ending) {
      output_->after_worker(rank, [this, rank, ending, ended_ns = clock_.wall_ns()] {  // its last words first
        feed(reporter_.ended(rank, ending, ended_ns, never_ran_[rank], output_->last_errors(rank)));
      });
    });
    std::string& never_ran = never_ran_[rank];
    never_ran.clear();
    if (!child) {
      log_.error(never_ran = message(child.failure()));
      return feed(reporter_.ended(rank, {.exit_code = exit_code::cannot_execute}, clock_.wall_ns(), never_ran, {}));
    }
    if (const int error = (*child)->exec_error(); error != 0)
      log_.error(never_ran = message(from_errno(error, fmt::format("execute {}", execution.path))));
    reporter_.started(rank, placed, (*child)->pid(), error_file, output_->layout().base() != setting_.directory);
    (*child)->on_held([this, rank](pid_t tracer) {
      log_.warning(fmt::format(
          "worker {} of this node has ended, but process {} (a debugger?) is attached to it: the job waits until that process detaches or ends",
          rank.value(), tracer));
    });
    feed(WorkerStarted{rank, (*child)->pid()});
    if (options_.hang_timeout > Duration{0} && options_.hang_sign == HangSign::output) watch_output();
    children_.insert_or_assign(rank, std::move(*child));
  }

  // Every worker's bytes are looked at a few times within the time after which silence is a hang.
  void watch_output() {
    output_watch_.expires_after(options_.hang_timeout / 8);
    output_watch_.async_wait([this](const boost::system::error_code& error) {
      if (error || children_.empty()) return;
      for (const auto& [worker, child] : children_)
        if (const std::uintmax_t bytes = output_->bytes_of(worker); std::exchange(bytes_seen_[worker], bytes) != bytes)
          feed(WorkerWrote{worker});
      watch_output();
    });
  }

  [[nodiscard]] bool is_worker_group(pid_t group) const {
    return std::any_of(children_.begin(), children_.end(), [&](const auto& child) { return child.second->pid() == group; });
  }

  void perform(const SignalGroup& a) {
    const auto child = children_.find(a.worker);
    if (child == children_.end()) return;
    stack_tools_.let_go(a.worker);
    child->second->signal(a.number);
    if (a.number == SIGABRT) child->second->signal(SIGCONT);  // who is stopped answers no other signal
  }
  void perform(const Release& a) {
    stack_tools_.let_go(a.worker);
    children_.erase(a.worker);
  }
  void perform(const EndOrphans& a) {
    const Orphans::Ended ended = orphans_.end(orphans_end_within, [&a](pid_t pid) {
      const auto owner = local_rank_of(pid);
      return owner && std::find(a.stay.begin(), a.stay.end(), *owner) != a.stay.end();
    });
    if (ended.killed > 0)
      log_.info(fmt::format("killed {} process{} that workers had left behind", ended.killed, ended.killed == 1 ? "" : "es"));
    if (!ended.remain.empty())
      log_.warning(fmt::format(
          "workers had left behind these processes, which are stuck in the kernel: {}; a device or port that they hold may be missing",
          fmt::join(ended.remain, ", ")));
  }
  void perform(const TakeStacks& a) {
    const auto child = children_.find(a.worker);
    if (child != children_.end()) stack_tools_.take(a.worker, child->second->pid());
  }
  void perform(const Answer& a) { server_->send(a.to, a.message); }
  void perform(const HangUp& a) { server_->close(a.connection); }
  void perform(const Say& a) {
    // What the coordinator has just said on the same terminal is not said twice.
    const bool said = a.is_of_job && hosted() != nullptr && (options_.endpoint || elected_ != nullptr);
    if (!said) log_(a.level, a.text);
  }

  void perform(const Finish& a) {
    finished_ = true;
    server_.reset();
    finish_ = a;
    output_->after_all([this] {
      report();
      end_if_allowed();
    });
    // The host of the rendezvous stays until the others have the verdict, and they until it knows that: a bounded time.
    timer_.expires_after(a.by_verdict ? std::max(options_.timeouts.verdict_linger, late_linger) + 1s : Duration{0});
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      lingered_ = true;
      end_if_allowed();
    });
  }

  void report() {
    if (std::exchange(reported_, true)) return;
    exit_code_ = reporter_.finished(finish_, hosted() != nullptr);
  }

  [[nodiscard]] bool is_known(pid_t pid) const {
    const auto is_it = [pid](const auto& child) { return child.second->pid() == pid; };
    return pid == guard_.pid() || std::any_of(children_.begin(), children_.end(), is_it) || stack_tools_.is_tool(pid);
  }

  // The coordinator, when it is here.
  [[nodiscard]] const Coordinator* hosted() const { return elected_ != nullptr ? elected_->coordinator() : coordinator_.get(); }

  void end_if_allowed() {
    if (finished_ && reported_ && (lingered_ || (hosted() != nullptr ? hosted()->may_exit() : !link_ || !link_->is_taking_leave()))) end();
  }

  void end() {
    if (elected_ != nullptr) elected_->resign([this] { loop_.stop(); });
    else asio::post(loop_, [this] { loop_.stop(); });
  }

  // The job does not need its guard, until this process is killed too.
  void watch_guard() {
    const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, guard_.pid(), 0));
    if (pidfd < 0) return;
    guard_watch_.assign(pidfd);
    guard_watch_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
      if (!error) log_.warning("the guard process was killed: the job goes on, but if this elrun is killed too, nobody ends its workers");
    });
  }

  void wait_for_signal() {
    signals_.async_wait([this](const boost::system::error_code& error, int number) {
      if (error) return;
      if (finished_) {  // the last output is being shown, or others are being told
        report();
        return loop_.stop();
      }
      feed(SignalCame{number});
      wait_for_signal();
    });
  }

  AgentSetting setting_;
  const LaunchOptions& options_;
  const Guard& guard_;
  const Clock& clock_;
  LogStream& lines_;
  const Log log_{lines_, "elrun"}, coordinator_log_{lines_, "elrun rendezvous"};
  const std::shared_ptr<LogContext> log_context_ = std::make_shared<LogContext>();
  const Log quiet_{"", [](Level, std::string_view) {}};  // of a single node all is said by its supervisor
  const Incarnation incarnation_;
  const RunId run_;
  const std::string place_ = place_of_agent({run_, boot_id(), host_name(), options_.node_rank});
  asio::io_context loop_{1};
  asio::signal_set signals_;
  asio::posix::stream_descriptor guard_watch_{loop_};
  asio::steady_timer timer_;
  Supervisor supervisor_;
  Reporter reporter_;
  AdminEndpoints admin_endpoints_;
  std::deque<Event> events_;
  bool busy_ = false, link_is_up_ = false;
  bool finished_ = false, reported_ = false, lingered_ = false;  // the end: no worker is left, all is said, others had their time
  NameLookup lookup_{loop_};                                     // whether the coordinator's name leads to this machine now
  bool looking_up_ = false, told_of_taken_port_ = false;
  Finish finish_;  // once finished_
  int exit_code_ = exit_code::internal;
  HeldPort port_;  // told in Join after the generation port_is_for_, and held until this node's workers start
  Generation port_is_for_{};
  std::string told_address_;
  std::string hosted_address_;  // of this node, when it serves the rendezvous for others
  std::map<LocalRank, std::unique_ptr<Child>> children_;
  StackTools stack_tools_{loop_, guard_, clock_, log_, {setting_.directory, setting_.environment, options_.timeouts.stacks}};
  std::unique_ptr<Output> output_;
  asio::steady_timer output_watch_{loop_};
  std::map<LocalRank, std::uintmax_t> bytes_seen_;
  std::map<LocalRank, std::string> never_ran_;  // why a worker could not be executed
  Generation spawned_for_{};                    // whose workers are the attempt at hand
  std::set<LocalRank> spawned_;
  Orphans orphans_{loop_, clock_, [this](pid_t pid) { return is_known(pid); }};
  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<Coordinator> coordinator_;
  ElectedLink* elected_ = nullptr;  // link_, when etcd elects
  std::unique_ptr<NodeLink> link_;  // goes before the coordinator that it may belong to
};

}  // namespace

int run_agent(AgentSetting setting, const Guard& guard, const Clock& clock, LogStream& lines) {
  const Log log{lines, "elrun"};
  for (const std::string& note : setting.options.notes) log.warning(note);
  const bool meets_others = setting.options.endpoint || !setting.options.etcd.empty();
  if (meets_others && !access_is_sound(setting.options.access, clock, log)) return exit_code::contradiction;
  if (meets_others && setting.options.host_rule != HostRule::never)
    if (const std::string warning = descriptors_warning(raise_descriptors(), setting.options.round.nodes_max); !warning.empty())
      log.warning(warning);
  return Agent{std::move(setting), guard, clock, lines}.run();
}

int run_store(const StoreOptions& options, std::uint64_t generation_floor, const Clock& clock, LogStream& lines) {
  const Log log{lines, "elrun"};
  for (const std::string& note : options.notes) log.warning(note);
  if (!access_is_sound(options.access, clock, log)) return exit_code::contradiction;
  raise_descriptors();
  asio::io_context loop{1};
  const auto coordinator = Coordinator::create(loop, clock, log,
                                               {.run = options.run,
                                                .nodes_min = options.nodes_min,
                                                .nodes_max = options.nodes_max,
                                                .timeouts = options.timeouts,
                                                .access = options.access,
                                                .generation_floor = generation_floor});
  const auto port = coordinator->serve(options.host, options.port);
  if (!port) return log.error(message(port.failure())), exit_code::contradiction;
  int code = 0;
  asio::signal_set signals{loop};
  handle_ending_signals(signals, {SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  tell_of_service(log, fmt::format("{}:{}", options.host, *port), options.host, options.access);
  signals.async_wait([&](const boost::system::error_code& error, int number) {
    if (error) return;
    code = 128 + number;
    log.info(fmt::format("{}: the rendezvous ends; exit code {}", signal_name(number), code));
    loop.stop();
  });
  coordinator->on_may_exit([&] {
    if (coordinator->may_exit()) loop.stop();
  });
  loop.run();
  if (const auto& verdict = coordinator->verdict(); verdict && verdict->exit_code != 0)  // the whole job's, also where no node ran
    log.error(box_report({.exit_code = verdict->exit_code, .cause = verdict->report, .deaths = verdict->deaths}));
  return code;
}

}  // namespace elrun::inline v0::launcher
