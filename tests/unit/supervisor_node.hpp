#pragma once
/// \file A supervisor whose actions are told in short words: "spawn 0", "signal 0 9", "join last 1", ...

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/ranges.h>

#include "launcher/supervise/supervisor.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {
using namespace elrun::launcher;

inline Generation generation(std::uint64_t number) { return {number, {{0xabc, 0xdef}}}; }

inline World world(std::uint64_t number, std::uint32_t workers, std::uint32_t nodes = 1) {
  World w;
  w.generation = generation(number);
  w.seat = {.group_rank = nodes - 1, .base_rank = (nodes - 1) * workers, .nodes = nodes, .world_size = nodes * workers};
  w.address = w.master_address = "127.0.0.1";
  w.master_port = 5000;
  w.restarts.generations = static_cast<std::uint32_t>(number - 1);
  w.takes_more = true;
  return w;
}

class Node {
 public:
  explicit Node(std::uint32_t workers = 2, std::int32_t max_restarts = -1) : Node{workers, Duration{0}, HangSign::progress, max_restarts} {}
  Node(std::uint32_t workers, Duration hang_timeout, HangSign sign, std::int32_t max_restarts = -1)
      : supervisor_{{.round = {.max_restarts = max_restarts},
                     .workers = workers,
                     .run = RunId{"job"},
                     .node = NodeId{"n"},
                     .hang_timeout = hang_timeout,
                     .hang_sign = sign,
                     .coordinator = "host:1"}} {
    on(Started{});
  }

  std::vector<std::string> on(const launcher::Event& event) {
    said.clear();
    std::vector<std::string> words;
    actions = supervisor_.on(event, now);
    for (const Action& a : actions) {
      if (const auto* send = std::get_if<Send>(&a)) {
        if (const auto* join = std::get_if<Join>(&send->message))
          wanted = join->workers,
          words.push_back(fmt::format("join{} last {}{}{}{}", join->resuming ? " resuming" : "", join->last.number,
                                      join->seat && join->resuming ? fmt::format(" seat {}", join->seat->group_rank) : "",
                                      (join->broken                                   ? " broken"
                                       : join->preparedness == Preparedness::starting ? " preparing"
                                                                                      : ""),
                                      join->coordinated_by ? fmt::format(" coordinated by {}", *join->coordinated_by) : ""));
        else if (std::holds_alternative<Acknowledge>(send->message))
          words.push_back(fmt::format("acknowledge {}", std::get<Acknowledge>(send->message).generation.number));
        else if (const auto* f = std::get_if<WorkerFailed>(&send->message))
          words.push_back(fmt::format("failed {} {}{}", f->local_rank, f->exit_code, f->is_job ? " job" : ""));
        else if (std::holds_alternative<WorkersDone>(send->message)) words.push_back("done");
        else if (std::holds_alternative<JobFinished>(send->message)) words.push_back("job finished");
        else if (const auto* p = std::get_if<Progress>(&send->message)) words.push_back(fmt::format("progress {}", p->step));
        else if (std::holds_alternative<Leave>(send->message)) words.push_back("leave");
        else if (const auto* call = std::get_if<StoreCall>(&send->message))
          words.push_back(fmt::format("call {}.{}", call->worker, call->request.id));
        else if (std::holds_alternative<StoreCallerGone>(send->message)) words.push_back("caller gone");
        else if (std::holds_alternative<MoreWorkers>(send->message)) words.push_back("more");
        else if (const auto* n = std::get_if<NotPrepared>(&send->message)) words.push_back(fmt::format("not prepared {}", n->exit_code));
        else if (const auto* u = std::get_if<PeerUnreachable>(&send->message))
          words.push_back(fmt::format("unreachable {} {}{}", u->rank, u->peer, u->is_job ? " job" : ""));
      } else if (std::holds_alternative<LookAgain>(a)) words.push_back("look again");
      else if (const auto* spawn = std::get_if<Spawn>(&a))
        words.push_back(fmt::format("spawn {}{}", spawn->worker.value(), spawn->is_pending ? " beside" : ""));
      else if (const auto* s = std::get_if<SignalGroup>(&a)) words.push_back(fmt::format("signal {} {}", s->worker.value(), s->number));
      else if (const auto* g = std::get_if<GiveUp>(&a)) words.push_back(fmt::format("give up {}", g->worker.value()));
      else if (const auto* r = std::get_if<Release>(&a)) words.push_back(fmt::format("release {}", r->worker.value()));
      else if (const auto* t = std::get_if<TakeStacks>(&a)) words.push_back(fmt::format("stacks {}", t->worker.value()));
      else if (const auto* answer = std::get_if<Answer>(&a)) {
        const auto& m = answer->message;
        if (const auto* reply = std::get_if<StoreReply>(&m))
          words.push_back(fmt::format("reply {}.{} {}", answer->to, reply->id, reply->ok ? "ok" : to_string(reply->code)));
        else
          words.push_back(fmt::format("{} {}",
                                      std::holds_alternative<Welcome>(m)          ? "welcome"
                                      : std::holds_alternative<Refusal>(m)        ? "refuse"
                                      : std::holds_alternative<JobOver>(m)        ? "over"
                                      : std::holds_alternative<PrepareToLeave>(m) ? "prepare"
                                                                                  : "revoke",
                                      answer->to));
      } else if (const auto* f = std::get_if<Finish>(&a))
        words.push_back(fmt::format("finish {}", f->exit_code)), report = f->first_failure, after_signal = f->after_signal;
      else if (const auto* say = std::get_if<Say>(&a)) said += say->text + "\n";
    }
    return words;
  }
  std::vector<std::string> hear(CoordinatorMessage m) { return on(FromCoordinator{std::move(m)}); }
  std::vector<std::string> ended(std::uint32_t worker, Ending e = {}) { return on(WorkerEnded{LocalRank{worker}, e}); }
  std::vector<std::string> tell(ConnectionId from, Message m) { return on(FromWorker{from, std::move(m)}); }
  std::vector<std::string> wait(Duration d) {
    now += d;
    return on(Tick{});
  }
  void start(std::uint64_t number = 1, std::uint32_t workers = 2, bool job = false) {
    if (number == 1) on(LinkUp{});
    hear(world(number, workers));
    for (std::uint32_t i = 0; i < workers; ++i) {
      on(WorkerStarted{LocalRank{i}, 100 + i});
      if (job) tell(10 * number + i, Hello{.rank = i, .world = workers, .is_job = true});
    }
  }
  [[nodiscard]] std::optional<Instant> wake_at() const { return supervisor_.wake_at(); }

  Instant now{};
  std::string said, report, after_signal;
  std::uint32_t wanted = 0;  ///< Places, by the last Join.
  std::vector<Action> actions;

 private:
  Supervisor supervisor_;
};

using Words = std::vector<std::string>;
inline const Failure revoked{Code::peer_lost, Remedy::rejoin, "rank 1 died"};

}  // namespace elrun::test
