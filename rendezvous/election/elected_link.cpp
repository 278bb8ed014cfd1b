// The shell around the election. Events come from etcd, from timers and from the line that is followed; the election's actions are performed.
// One thing is decided here: a write to etcd is tried again until it is done or refused.

#include "rendezvous/election/elected_link.hpp"

#include <algorithm>
#include <charconv>
#include <deque>
#include <optional>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <fmt/format.h>

#include "rendezvous/election/election.hpp"
#include "rendezvous/election/etcd_client.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {
namespace {

using Loop = boost::asio::io_context;

static_assert(state_number_max == generation_number_max);
constexpr Duration resign_limit = 1s;
constexpr std::size_t address_size_max = 300;

std::string text_of(const Endpoint& endpoint) {
  return endpoint.host.find(':') == std::string::npos ? fmt::format("{}:{}", endpoint.host, endpoint.port)
                                                      : fmt::format("[{}]:{}", endpoint.host, endpoint.port);
}

std::optional<Endpoint> endpoint_of(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || text.size() > address_size_max) return {};
  std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  Endpoint endpoint{std::string{host}, 0};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (host.empty() || error != std::errc{} || end != port.data() + port.size() || endpoint.port == 0) return {};
  return endpoint;
}

// More fields than 15: the election, its timer and queue; the leadership that it won (key, lease, what is written down, the coordinator); the line that is
// followed; and what all of these need. What is decided is decided in Election; a write to the ledger is the one thing that is tried again here.
class Link final : public ElectedLink, public Ledger {
 public:
  Link(Loop& loop, const Clock& clock, const Log& log, ElectionSetting setting, Handler handler, std::function<void()> may_exit)
      : loop_{loop},
        clock_{clock},
        log_{log},
        setting_{std::move(setting)},
        keys_{setting_.run},
        handler_{std::make_shared<const Handler>(std::move(handler))},
        may_exit_{std::move(may_exit)},
        election_{{setting_.campaigns, setting_.timeouts.lease, setting_.seed}},
        rng_{setting_.seed + 1},
        timer_{loop},
        write_timer_{loop},
        resign_timer_{loop},
        etcd_{
            EtcdClient::create(loop, setting_.etcd, std::min(setting_.timeouts.etcd_call, setting_.timeouts.lease / 3), setting_.access)} {
    feed(election::Begin{});
  }

  // --- the agent's side ---

  void send(const NodeMessage& message) override {
    if (std::holds_alternative<Leave>(message)) feed(election::Withdraw{});
    if (!line_) return;
    const Join* const join = std::get_if<Join>(&message);
    if (join == nullptr) return line_->send(message);
    Join whole = *join;
    whole.may_coordinate = setting_.campaigns;
    line_->send(whole);
  }
  // The same whoever coordinates: to a new coordinator, a node with another address would be another node.
  [[nodiscard]] std::string local_address() const override {
    return setting_.local_address.empty() ? etcd_->local_address() : setting_.local_address;
  }
  [[nodiscard]] std::string leaves_from() const override { return line_ ? line_->leaves_from() : std::string{}; }
  [[nodiscard]] std::optional<LineTarget> leads_to() const override { return line_ ? line_->leads_to() : std::nullopt; }
  [[nodiscard]] bool is_taking_leave() const override { return line_ && line_->is_taking_leave(); }
  [[nodiscard]] const Coordinator* coordinator() const override { return coordinator_.get(); }
  void resign(std::function<void()> done) override {
    if (!coordinator_ && !election_.is_campaigning()) return boost::asio::post(loop_, std::move(done));
    resigned_ = std::move(done);
    resign_timer_.expires_after(resign_limit);
    resign_timer_.async_wait([this, alive = std::weak_ptr{alive_}](const boost::system::error_code& error) {
      if (!error && !alive.expired()) has_resigned();
    });
    feed(election::Resign{});
  }

  // --- the coordinator's side ---

  void clear(std::optional<Generation> generation, std::function<void()> cleared,
             std::function<void(const std::string& why)> delayed) override {
    write_ = Write{generation, std::move(cleared), std::move(delayed), {}, etcd_backoff_min};
    feed(election::WriteBegan{});
    write();
  }
  // The leader key goes first: a node that finds its stream ended looks for the next coordinator at once.
  void hand_over() override {
    if (resigned_) return;  // this agent ends already, and has given the leadership up
    log_.info("this agent leaves, and coordinates no longer: another one begins the next generation");
    resign([this] {
      line_.reset();
      coordinator_.reset();
      up_ = false;
    });
  }

 private:
  /// What the coordinator waits for.
  struct Write {
    std::optional<Generation> generation;
    std::function<void()> cleared;
    std::function<void(const std::string& why)> delayed;
    std::string told;
    Duration backoff;
  };

  template <class Call>
  void post(Call call) {
    boost::asio::post(loop_, [alive = std::weak_ptr{alive_}, call = std::move(call)]() mutable {
      if (!alive.expired()) call();
    });
  }
  // The handler may destroy this.
  void tell_down(std::string why) {
    post([this, failure = Failure{Code::unreachable, Remedy::retry, std::move(why)}] {
      const std::shared_ptr<const Handler> handler = handler_;
      handler->disconnected(failure);
    });
  }

  // --- the election ---

  // An action may put the next event in the queue, but never runs it inside itself.
  void feed(election::Event event) {
    events_.push_back(std::move(event));
    if (events_.size() == 1) post([this] { work(); });
  }
  void work() {
    for (std::size_t i = 0; i < events_.size(); ++i)
      for (const election::Action& action : election_.on(election::Event{events_[i]}, clock_.now()))
        std::visit([this](const auto& a) { perform(a); }, action);
    events_.clear();
    timer_.cancel();
    const auto at = election_.wake_at();
    if (!at) return;
    timer_.expires_after(std::max(*at - clock_.now(), Duration{0}));
    timer_.async_wait([this, alive = std::weak_ptr{alive_}](const boost::system::error_code& error) {
      if (!error && !alive.expired()) feed(election::Tick{});
    });
  }

  static std::optional<Leader> leader_from(const std::optional<EtcdValue>& value) {
    if (!value) return {};
    return Leader{value->created, value->lease, value->value};
  }
  // Feeds what `event` makes of the answer, or that there was none.
  template <class Value, class Make>
  auto answered(Make make) {
    return [this, make](Result<Value> result) {
      if (result.ok()) feed(make(std::move(result).value()));
      else feed(election::Unanswered{result.failure().what});
    };
  }

  void perform(const election::Look&) {
    etcd_->read(keys_.leader, answered<std::optional<EtcdValue>>([](const auto& found) { return election::Found{leader_from(found)}; }));
  }
  void perform(const election::Grant& a) {
    etcd_->grant(a.lease, answered<Lease>([](const Lease& lease) { return election::Granted{lease}; }));
  }
  void perform(const election::Campaign& a) {
    etcd_->transact(
        {.guard = keys_.leader, .created = {}, .lease = {}, .writes = {{keys_.leader, "", a.lease}}, .reads = {keys_.leader, keys_.state}},
        answered<EtcdOutcome>([](const EtcdOutcome& outcome) {
          return election::Counted{leader_from(outcome.read[0]), outcome.read[1] ? std::optional{outcome.read[1]->value} : std::nullopt};
        }));
  }
  void perform(const election::Publish& a) {
    etcd_->transact({.guard = keys_.leader, .created = a.created, .lease = a.lease, .writes = {{keys_.leader, a.address, a.lease}}},
                    answered<EtcdOutcome>([](const EtcdOutcome& outcome) { return election::Published{outcome.written}; }));
  }
  void perform(const election::KeepAlive& a) {
    etcd_->keep_alive(a.lease, answered<Duration>([](Duration left) { return election::Kept{left}; }));
  }
  void perform(const election::Revoke& a) {
    etcd_->revoke(a.lease, [this](const Result<Lease>&) {
      if (resigned_) has_resigned();
    });
  }
  void perform(const election::Say& a) { log_(a.level, a.text); }
  void perform(const election::Explain& a) {
    if (!up_) tell_down(a.why);
  }

  void perform(const election::Follow& a) {
    const auto endpoint = endpoint_of(a.address);
    if (!endpoint) return tell_down(fmt::format("the leader key in etcd holds `{}`, which is no HOST:PORT", a.address.substr(0, 80)));
    // The line was up, to a coordinator that is not elected any more.
    if (std::exchange(up_, false)) tell_down(fmt::format("another agent was elected, at {}", a.address));
    // The line pings after half of the heartbeat limit, and waits the other half for the answer. A coordinator that is silent for so long is not
    // elected any more.
    Timeouts timeouts = setting_.timeouts;
    timeouts.heartbeat_limit = std::max(timeouts.heartbeat_limit / 2, timeouts.heartbeat);
    line_ = connect_to_coordinator(loop_, *endpoint, timeouts, rng_.next64(), line_handler(), setting_.access);
  }
  void perform(const election::Lead& a) {
    created_ = a.created;
    written_ = a.generation_floor;
    const std::string address = local_address();
    const bool loopback = address.starts_with("127.") || address == "::1" || address == "localhost";
    const std::string listen = address.find(':') != std::string::npos ? (loopback ? "::1" : "::") : loopback ? "127.0.0.1" : "0.0.0.0";
    line_.reset();
    lease_ = a.lease;
    coordinator_ = Coordinator::create(loop_, clock_, log_,
                                       {.run = setting_.run,
                                        .timeouts = setting_.timeouts,
                                        .access = setting_.access,
                                        .generation_floor = std::max(a.generation_floor, setting_.generation_floor),
                                        .ledger = this});
    coordinator_->on_may_exit(may_exit_);
    const Result<std::uint16_t> port = coordinator_->serve(listen, 0);
    if (!port.ok()) return feed(election::CannotServe{message(port.failure())});
    log_.info(fmt::format("elected to coordinate; serving at {}", text_of({address, *port})));
    if (!loopback && setting_.access.is_open()) log_.warning(open_access_warning(text_of({address, *port})));
    line_ = coordinator_->connect_in_process(line_handler());
    feed(election::Serving{text_of({address, *port})});
  }
  void perform(const election::StepDown& a) {
    log_.warning(fmt::format("this agent coordinates no longer: {}", a.why));
    write_.reset();
    write_timer_.cancel();
    line_.reset();
    coordinator_.reset();
    up_ = false;
    tell_down(fmt::format("this agent was elected, and is no longer: {}", a.why));
  }

  Handler line_handler() {
    return {[this, handler = handler_] {
              up_ = true;
              feed(election::LineUp{});
              handler->connected();
            },
            [this, handler = handler_](const Failure& why) {
              up_ = false;
              feed(election::LineDown{});
              handler->disconnected(why);
            },
            [handler = handler_](const CoordinatorMessage& m) { handler->message(m); },
            [handler = handler_] {
              if (handler->took_leave) handler->took_leave();
            }};
  }
  void has_resigned() {
    resign_timer_.cancel();
    if (resigned_) std::exchange(resigned_, {})();
  }

  // --- writing down ---

  void write() {
    std::vector<EtcdTransaction::Write> writes;
    // An adopted generation may have a smaller number than the one in etcd. Then it is not written: the number never falls.
    const bool newer = write_->generation && write_->generation->number > written_;
    if (newer) writes.push_back({keys_.state, state_text(*write_->generation)});
    etcd_->transact({.guard = keys_.leader, .created = created_, .lease = lease_, .writes = std::move(writes)},
                    [this, lease = lease_](const Result<EtcdOutcome>& outcome) {
                      if (!write_ || lease != lease_) return;  // of a leadership that is over
                      if (!outcome.ok()) return write_later(outcome.failure().what);
                      if (!outcome->written) return feed(election::WriteRefused{});
                      if (write_->generation) written_ = std::max(written_, write_->generation->number);
                      const auto cleared = std::move(write_->cleared);
                      write_.reset();
                      feed(election::WriteDone{});
                      cleared();
                    });
  }
  void write_later(const std::string& why) {
    if (why != std::exchange(write_->told, why)) write_->delayed(why);
    const Duration wait =
        write_->backoff / 2 + Duration{static_cast<Duration::rep>(rng_.below(static_cast<std::uint64_t>((write_->backoff / 2).count())))};
    write_->backoff = std::min(write_->backoff * 2, etcd_backoff_max);
    write_timer_.expires_after(wait);
    write_timer_.async_wait([this, alive = std::weak_ptr{alive_}](const boost::system::error_code& error) {
      if (!error && !alive.expired() && write_) write();
    });
  }

  Loop& loop_;
  const Clock& clock_;
  const Log& log_;
  const ElectionSetting setting_;
  const ElectionKeys keys_;
  std::shared_ptr<const Handler> handler_;
  std::function<void()> may_exit_;
  Election election_;
  std::deque<election::Event> events_;
  Rng rng_;
  boost::asio::steady_timer timer_, write_timer_, resign_timer_;
  std::function<void()> resigned_;
  Revision created_{};         // of our leader key, and
  LeaseId lease_{};            // what it is held by
  std::uint64_t written_ = 0;  // the generation in `state`
  std::optional<Write> write_;
  bool up_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // posted tasks hold it weakly
  std::unique_ptr<EtcdClient> etcd_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<NodeLink> line_;  // goes before the coordinator that it may belong to
};

}  // namespace

std::unique_ptr<ElectedLink> connect_through_etcd(Loop& loop, const Clock& clock, const Log& log, ElectionSetting setting,
                                                  NodeLink::Handler handler, std::function<void()> may_exit) {
  return std::make_unique<Link>(loop, clock, log, std::move(setting), std::move(handler), std::move(may_exit));
}

}  // namespace elrun::inline v0
