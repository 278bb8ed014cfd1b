// Everything here runs on one thread. Whatever is seen becomes an event in a queue; the supervisor answers with
// actions; an action may put the next event in the queue, but never runs it inside itself.
#include "launcher/agent.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/ckptd/checkpoint_writer.hpp"
#include "launcher/http/admin_endpoints.hpp"
#include "launcher/output/log_json.hpp"
#include "launcher/process/agent_directory.hpp"
#include "launcher/process/descriptors.hpp"
#include "launcher/process/ending_signals.hpp"
#include "launcher/process/first_process.hpp"
#include "launcher/process/machine.hpp"
#include "launcher/process/notice_poll.hpp"
#include "launcher/process/worker_processes.hpp"
#include "launcher/rendezvous_line.hpp"
#include "launcher/report/evidence.hpp"
#include "launcher/report/reporter.hpp"
#include "launcher/report/train_job_post.hpp"
#include "launcher/supervise/supervisor.hpp"
#include "lib/base/failure.hpp"
#include "lib/link/server.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0::launcher {
namespace asio = boost::asio;
namespace {

/// How far the end of this agent has come.
struct AgentEnd {
  bool finished = false;  ///< No worker is left.
  bool reported = false;  ///< All is said.
  bool lingered = false;  ///< Others had their time.
  Finish finish;          ///< Once finished
  int exit_code = exit_code::internal;
};

constexpr const char* socket_name = "agent.sock";
constexpr std::size_t first_process_status_max = 64 << 10;  // bytes; it has some 1,500

// Conducts: events in, to the supervisor; its actions out, to the part that can do them. Its fields are those parts, and what they are made
// with. Most of its methods perform one kind of action each, in a line.
class Agent {
 public:
  Agent(AgentSetting setting, const Guard& guard, const StartRefusal& refuse, const Clock& clock, LogStream& lines)
      : setting_{std::move(setting)},
        guard_{guard},
        refuse_{refuse},
        clock_{clock},
        lines_{lines},
        who_{NodeId{fmt::format("{}.{:010x}", host_name(), random_number() >> 24)}, random_number()},
        run_{options().run.value().empty() ? random_run() : options().run},
        signals_{loop_},
        timer_{loop_},
        supervisor_{{.round = options().round,
                     .workers = options().workers,
                     .timeouts = options().timeouts,
                     .run = run_,
                     .node = who_.node,
                     .hang_timeout = options().hang_timeout,
                     .hang_sign = options().hang_sign,
                     .coordinator = endpoint_text()}},
        reporter_{options(), run_, who_.node, host_name(), report_files(setting_.environment), clock_, lines_, log_},
        admin_endpoints_{loop_,
                         clock_,
                         log_,
                         {ELRUN_VERSION, run_, who_.node, ::getpid(), options().program.name, endpoint_text(), options().round},
                         [this] { return rendezvous_.coordinates(); }},
        notice_poll_{make_notice_poll()},
        checkpoint_writer_{loop_, guard_, clock_, log_, {setting_, socket()}},
        processes_{loop_,
                   guard_,
                   clock_,
                   log_,
                   {setting_, run_, who_.node, socket(), [this] { return move_socket(); },
                    [this](pid_t pid) { return (notice_poll_ && notice_poll_->is_command(pid)) || checkpoint_writer_.is(pid); },
                    [this](LocalRank worker) { return supervisor_.can_stay(worker); }},
                   reporter_,
                   [this](Event event) { feed(std::move(event)); }},
        rendezvous_{loop_, clock_, log_, lines_, {setting_, who_, run_, endpoint_text(), guard_}, line_handler()} {}

  int run() {
    log_context_->run = run_.value();
    log_context_->node = who_.node.value();
    if (options().log_format == LogFormat::json)
      lines_.set_format([context = log_context_](const LogLine& line) { return json_line(line, *context); });
    auto server = WorkerServer::listen_unix(loop_, socket(),
                                            {[this](auto from, const Message& m) {
                                               if (checkpoint_writer_.takes(from, m)) feed(FromWriter{from, m});
                                               else feed(FromWorker{from, m});
                                               if (std::holds_alternative<Hello>(m)) processes_.has_session();
                                             },
                                             [this](auto from, const Failure&) {
                                               checkpoint_writer_.hung_up(from);
                                               feed(WorkerHungUp{from});
                                             }});
    if (!server) return refuse_(exit_code::internal, message(server.failure()));
    server_ = std::move(*server);
    if (const auto listens = checkpoint_writer_.listen(); !listens.ok())
      log_.warning("no checkpoint can be saved asynchronously: " + message(listens.failure()));
    if (const auto opened = processes_.open_output(host_name(), lines_); !opened.ok())
      return refuse_(exit_code::contradiction, message(opened.failure()));
    handle_ending_signals(signals_, options().signals_to_handle);
    wait_for_signal();
    watch_guard();
    open_train_job();
    warn_of_first_process();
    open_timers(setting_.directory);
    if (const auto opened = admin_endpoints_.open(options().side, setting_.directory); !opened.ok())
      return refuse_(exit_code::contradiction, message(opened.failure()));
    feed(Started{});
    if (notice_poll_) notice_poll_->start();
    rendezvous_.connect();
    loop_.run();
    checkpoint_writer_.clear();
    processes_.clear();
    notice_poll_.reset();
    std::error_code ignored;
    for (const Path& directory : later_directories_) std::filesystem::remove_all(directory, ignored);
    return end_.exit_code;
  }

 private:
  [[nodiscard]] const LaunchOptions& options() const { return setting_.options; }
  [[nodiscard]] Path socket() const { return setting_.directory / socket_name; }
  [[nodiscard]] std::string endpoint_text() const {
    if (!options().etcd.empty()) return fmt::format("etcd ({}:{})", options().etcd.front().host, options().etcd.front().port);
    return options().endpoint ? fmt::format("{}:{}", options().endpoint->host, options().endpoint->port) : "this process";
  }

  RendezvousLine::Handler line_handler() {
    return {[this] { feed(LinkUp{}); }, [this](const Failure& why) { feed(LinkDown{why}); },
            [this](const CoordinatorMessage& m) { feed(FromCoordinator{m}); }, [this] { end_if_allowed(); },
            [this](const Failure& why) {
              end_.exit_code = refuse_(exit_code::contradiction, message(why));
              loop_.stop();  // there is nothing yet to bring to its end
            }};
  }

  std::unique_ptr<NoticePoll> make_notice_poll() {
    if (!options().preempt_notice) return nullptr;
    return std::make_unique<NoticePoll>(loop_, guard_, clock_, log_, NoticePoll::Setting{*options().preempt_notice, setting_.environment},
                                        [this](std::string words) {
                                          if (!was_asked_) signal_is_expected_ = true;
                                          feed(NoticeCame{std::move(words)});
                                        });
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
      rendezvous_.saw_generation(supervisor_.last_generation());
      if (supervisor_.last_generation() != before) began(std::get<World>(std::get<FromCoordinator>(event).message));
      for (const JudgedEnd& end : supervisor_.judged_ends()) reporter_.judged(end);
      admin_endpoints_.saw(event, actions, supervisor_);
      for (const Action& action : actions) std::visit([this](const auto& a) { perform(a); }, action);
    }
    busy_ = false;
    if (const auto at = supervisor_.wake_at(); at && !end_.finished) {
      timer_.expires_after(std::max(*at - clock_.now(), Duration{0}));
      timer_.async_wait([this](const boost::system::error_code& error) {
        if (!error) feed(Tick{});
      });
    } else if (!end_.finished) {
      timer_.cancel();
    }
  }

  void began(const World& world) {
    reporter_.began(world, supervisor_);
    if (train_job_) train_job_->began(world);
  }

  void perform(const LookAgain&) { rendezvous_.look_again(); }
  void perform(const Send& a) {
    if (const auto* join = std::get_if<Join>(&a.message); join != nullptr && !join->resuming && rendezvous_.has_line()) reporter_.joining();
    if (std::holds_alternative<Progress>(a.message) && train_job_) train_job_->decided(supervisor_.newest_step());
    if (const auto* failed = std::get_if<WorkerFailed>(&a.message)) {
      WorkerFailed whole = *failed;
      reporter_.complete(whole.death);
      return rendezvous_.send(std::move(whole));
    }
    rendezvous_.send(a.message);
  }
  void perform(const Spawn& a) {
    rendezvous_.release_port();
    processes_.start(a);
  }
  void perform(const SignalGroup& a) { processes_.signal(a); }
  void perform(const GiveUp& a) { processes_.give_up(a.worker); }
  void perform(const Release& a) { processes_.release(a.worker); }
  void perform(const EndOrphans& a) { processes_.end_orphans(a); }
  void perform(const TakeStacks& a) { processes_.take_stacks(a.worker); }
  void perform(const Answer& a) { server_->send(a.to, a.message); }
  void perform(const HangUp& a) { server_->close(a.connection); }
  void perform(const Say& a) {
    // What the coordinator has just said on the same terminal is not said twice.
    if (!a.is_of_job || !rendezvous_.logs_job()) log_(a.level, a.text);
  }

  void perform(const Finish& a) {
    end_.finished = true;
    end_.finish = a;
    rendezvous_.finish();
    if (train_job_) train_job_->finish();
    server_.reset();
    processes_.after_output([this] {
      report();
      end_if_allowed();
    });
    // The host of the rendezvous stays until the others have the verdict, and they until it knows that: a bounded time.
    timer_.expires_after(a.by_verdict ? std::max(options().timeouts.verdict_linger, late_linger) + 1s : Duration{0});
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      end_.lingered = true;
      end_if_allowed();
    });
  }

  // What in it was open stays so for those that have it: connections, and the writer of checkpoints with the saves that it has.
  Result<Path> move_socket() {
    if (!server_) return Failure{Code::internal, Remedy::exit_process, "the job has ended here"};
    ELRUN_TRY_ASSIGN(const Path directory, make_agent_directory(setting_.environment));
    later_directories_.push_back(directory);
    const Path moved = directory / socket_name;
    ELRUN_TRY(server_->listen_also(moved));
    admin_endpoints_.open_socket(directory);
    open_timers(directory);
    return moved;
  }

  void open_timers(const Path& directory) {
    admin_endpoints_.open_timers(options().side, directory, setting_.environment,
                                 [this](pid_t group) { return processes_.is_group(group); });
  }

  void report() {
    if (std::exchange(end_.reported, true)) return;
    end_.exit_code = reporter_.finished(end_.finish, rendezvous_.coordinates(), admin_endpoints_.record().ledger);
  }

  void end_if_allowed() {
    if (end_.finished && end_.reported && (end_.lingered || (rendezvous_.may_end() && !is_posting())))
      rendezvous_.resign([this] { loop_.stop(); });
  }

  // Kubeflow Trainer wants to know how far the job is; the variables that say where are put into the pods of a TrainJob.
  void open_train_job() {
    std::vector<std::string> notes;
    auto server = train_job_server(
        [this](std::string_view name) -> std::optional<std::string> {
          const auto found = setting_.environment.find(name);
          return found == setting_.environment.end() || found->second.empty() ? std::nullopt : std::optional{found->second};
        },
        notes);
    for (const std::string& note : notes) log_.warning(note);
    if (server) train_job_ = std::make_unique<TrainJobPost>(loop_, clock_, log_, *std::move(server), [this] { end_if_allowed(); });
  }
  [[nodiscard]] bool is_posting() const { return train_job_ && train_job_->is_awaited(); }

  // The job does not need its guard, until this process is killed too.
  void watch_guard() {
    const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, guard_.pid(), 0));
    if (pidfd < 0) return;
    guard_watch_.assign(pidfd);
    guard_watch_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
      if (!error) log_.warning("the guard process was killed: the job goes on, but if this elrun is killed too, nobody ends its workers");
    });
  }

  // In a pod, where others decide when the container ends; elsewhere a shell may be process 1 for good reasons.
  void warn_of_first_process() const {
    if (!setting_.environment.contains("KUBERNETES_SERVICE_HOST")) return;
    if (const auto status = read_regular_file("/proc/1/status", first_process_status_max))
      if (const std::string warning = first_process_warning(*status, ::getpid()); !warning.empty()) log_.warning(warning);
  }

  void wait_for_signal() {
    signals_.async_wait([this](const boost::system::error_code& error, int number) {
      if (error) return;
      was_asked_ = true;
      if (std::exchange(signal_is_expected_, false) && end_.finished) return wait_for_signal();  // it belongs to the notice
      if (end_.finished) {  // the last output is being shown, or others are being told
        report();
        return loop_.stop();
      }
      feed(SignalCame{number});
      wait_for_signal();
    });
  }

  AgentSetting setting_;
  std::vector<Path> later_directories_;  // in place of one that was removed
  const Guard& guard_;
  const StartRefusal& refuse_;
  const Clock& clock_;
  LogStream& lines_;
  const Log log_{lines_, "elrun"};
  const std::shared_ptr<LogContext> log_context_ = std::make_shared<LogContext>();
  const Incarnation who_;
  const RunId run_;
  asio::io_context loop_{1};
  asio::signal_set signals_;
  asio::posix::stream_descriptor guard_watch_{loop_};
  asio::steady_timer timer_;
  Supervisor supervisor_;
  Reporter reporter_;
  AdminEndpoints admin_endpoints_;
  std::unique_ptr<TrainJobPost> train_job_;  // none: nobody asked for it
  std::deque<Event> events_;
  bool busy_ = false;
  bool was_asked_ = false, signal_is_expected_ = false;  // to end, by a signal; by one that follows a preempt notice
  AgentEnd end_;
  std::unique_ptr<NoticePoll> notice_poll_;  // none: no notice is looked for
  CheckpointWriter checkpoint_writer_;
  WorkerProcesses processes_;
  std::unique_ptr<WorkerServer> server_;
  RendezvousLine rendezvous_;
};

}  // namespace

int run_agent(AgentSetting setting, const Guard& guard, const StartRefusal& refuse, const Clock& clock, LogStream& lines) {
  const Log log{lines, "elrun"};
  for (const std::string& note : setting.options.notes) log.warning(note);
  const bool meets_others = setting.options.endpoint || !setting.options.etcd.empty();
  if (meets_others)
    if (const auto problem = problem_of_access(setting.options.access, clock, log)) return refuse(exit_code::contradiction, *problem);
  if (meets_others && setting.options.host_rule != HostRule::never)
    if (const std::string warning = descriptors_warning(raise_descriptors(), setting.options.round.nodes_max); !warning.empty())
      log.warning(warning);
  return Agent{std::move(setting), guard, refuse, clock, lines}.run();
}

}  // namespace elrun::inline v0::launcher
