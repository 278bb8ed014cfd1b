#include "launcher/rendezvous_line.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/post.hpp>

#include "launcher/death_notice.hpp"
#include "launcher/options/host.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration take_over_interval = 1s;  // between two tries to serve where the endpoint leads here and nobody answers

}  // namespace

std::uint64_t random_number() {
  std::uint64_t number = 0;
  random_bytes(std::as_writable_bytes(std::span{&number, 1}));
  return number;
}

RunId random_run() {
  const std::string hex = fmt::format("{:016x}{:016x}", random_number(), random_number());
  return RunId{fmt::format("{}-{}-{}-{}-{}", hex.substr(0, 8), hex.substr(8, 4), hex.substr(12, 4), hex.substr(16, 4), hex.substr(20))};
}

void tell_of_service(const Log& log, const std::string& endpoint, const std::string& listen, const Access& access) {
  log.info(fmt::format("serving the rendezvous at {}{}{}", endpoint, access.has_tls() ? ", with TLS" : "",
                       access.has_token() ? ", with a token" : ""));
  if (!is_loopback(listen) && access.is_open()) log.warning(open_access_warning(endpoint));
}

std::optional<std::string> problem_of_access(const Access& access, const Clock& clock, const Log& log) {
  for (const std::string& warning : access_warnings(access, clock.wall_ns() / 1'000'000'000)) log.warning(warning);
  const auto credentials = read_credentials(access);
  if (credentials.ok()) return std::nullopt;
  return "access to the rendezvous: " + message(credentials.failure());
}

std::uint16_t GenerationPort::hold(const Generation& last, bool resuming) {
  const bool is_new = held_.number() == 0;
  if (!is_new && (after_ == last || resuming)) return held_.number();
  after_ = last;
  held_ = wanted_ ? HeldPort::exactly(*wanted_) : HeldPort::any(held_.number());
  if (!wanted_) return held_.number();
  // Of several agents on one machine, only that of rank 0 keeps it: its worker may not allow the reuse of addresses.
  if (is_new && is_first_ && !held_.is_held())
    log_.warning(fmt::format(
        "--master_port {} is in use on this machine: the worker of rank 0 cannot listen there; end the program that has it, or choose another port",
        *wanted_));
  if (!is_first_) held_.release();
  return held_.number();
}

RendezvousLine::RendezvousLine(boost::asio::io_context& loop, const Clock& clock, const Log& log, LogStream& lines, Setting setting,
                               Handler handler)
    : loop_{loop},
      clock_{clock},
      log_{log},
      coordinator_log_{lines, "elrun rendezvous"},
      setting_{std::move(setting)},
      handler_{std::move(handler)},
      place_{place_of_agent({setting_.run, boot_id(), host_name(), options().node_rank})},
      lookup_{loop},
      take_over_timer_{loop},
      port_{options().master_port, options().node_rank <= 0, log} {}

// --- the way to the coordinator ---

void RendezvousLine::connect() {
  if (!options().etcd.empty()) {
    auto elected = connect_through_etcd(loop_, clock_, coordinator_log_,
                                        {options().etcd, setting_.run, options().host_rule != HostRule::never, options().local_address,
                                         options().timeouts, options().access, setting_.agent.generation_floor, random_number()},
                                        link_handler(), handler_.may_end);
    elected_ = elected.get();
    link_ = std::move(elected);
  } else if (!options().endpoint) {
    link_ = make_coordinator(0).connect_in_process(link_handler());
  } else if (options().host_rule == HostRule::never) {
    link_ = connect_to_endpoint();
  } else {
    look_up_endpoint([this](std::vector<std::string> leads_to) {
      if (is_finished_) return;
      const auto hosted = try_to_host(std::move(leads_to));
      if (hosted && !*hosted) link_ = connect_to_endpoint();
      if (!hosted) handler_.failed(hosted.failure());
    });
  }
}

std::unique_ptr<NodeLink> RendezvousLine::connect_to_endpoint() {
  return connect_to_coordinator(loop_, *options().endpoint, options().timeouts, random_number(), link_handler(), options().access);
}

Coordinator& RendezvousLine::make_coordinator(std::uint64_t generation_floor) {
  coordinator_ = Coordinator::create(loop_, clock_, options().endpoint ? coordinator_log_ : quiet_,
                                     {.run = setting_.run,
                                      .timeouts = options().timeouts,
                                      .access = options().access,
                                      .generation_floor = std::max(generation_floor, setting_.agent.generation_floor)});
  coordinator_->on_may_exit(handler_.may_end);
  return *coordinator_;
}

// True if this process serves the rendezvous now, false if it is somebody else's to do or done already.
Result<bool> RendezvousLine::try_to_host(std::vector<std::string> leads_to) {
  const auto place = host_place(*options().endpoint, options().host_rule, {host_name(), own_addresses(), std::move(leads_to)});
  if (!place) return false;
  const auto served = make_coordinator(newest_.number).serve(place->listen, options().endpoint->port);
  if (!served) {
    coordinator_.reset();
    // Another agent of this machine, or `elrun store`, was first. Where this very node is to serve, another program is more likely.
    if (served.failure().code == Code::already_exists && options().host_rule == HostRule::always &&
        !std::exchange(reported_taken_port_, true))
      log_.warning(fmt::format(
          "port {} of this machine is taken already: this node does not serve the rendezvous until it is free, and joins the agent that does. If another program has the port, end it, or choose another port",
          options().endpoint->port));
    const auto& health = options().side.health;
    if (served.failure().code == Code::already_exists && health && health->is_needed && health->port == options().endpoint->port)
      return Failure{
          Code::invalid_argument, Remedy::fix_config,
          fmt::format("port {} of this machine, where this node would serve the rendezvous, is its own --health_port; give that another "
                      "port, or 0 for any",
                      health->port)};
    if (served.failure().code == Code::already_exists) return false;
    return served.failure();
  }
  tell_of_service(log_, setting_.endpoint, place->listen, options().access);
  hosted_address_ = place->address;
  link_ = coordinator_->connect_in_process(link_handler());
  return true;
}

NodeLink::Handler RendezvousLine::link_handler() {
  return {[this] {
            is_up_ = true;
            not_hosted_.clear();
            leave_death_notice();
            handler_.up();
          },
          [this](const Failure& why) {
            is_up_ = false;
            handler_.down(why);
            if (options().endpoint && options().host_rule != HostRule::never) boost::asio::post(loop_, [this] { take_over(); });
          },
          handler_.message, handler_.may_end};
}

void RendezvousLine::saw_generation(const Generation& generation) {
  if (std::exchange(newest_, generation) != generation && is_up_) leave_death_notice();
}

void RendezvousLine::finish() {
  is_finished_ = true;
  take_over_timer_.cancel();
  leave_death_notice();
}

// While the line is down, the guard keeps the death notice for the coordinator that this node had: it may still count it as a node.
void RendezvousLine::leave_death_notice() {
  const std::optional<LineTarget> target = link_ && !is_finished_ ? link_->leads_to() : std::nullopt;
  setting_.guard.set_death_notice(encoded(target ? std::optional{DeathNotice{*target, {setting_.who, newest_}}} : std::nullopt));
}

// The loop does not wait for name servers: signals come, and workers may run.
void RendezvousLine::look_up_endpoint(std::function<void(std::vector<std::string>)> call) {
  if (std::exchange(looking_up_, true)) return;
  Endpoint endpoint = *options().endpoint;
  if (endpoint.host == "localhost") endpoint.host = "127.0.0.1";
  lookup_.start(endpoint, [this, call = std::move(call)](const Resolved& found) {
    looking_up_ = false;
    std::vector<std::string> leads_to;
    for (const Address& address : found.addresses) leads_to.push_back(address.host);
    call(std::move(leads_to));
  });
}

// The host may have been another process of this machine: whoever binds the port first goes on. Or the name was not published yet, and leads here
// now. It is tried as long as the line is down, whether or not the line has news: what was in the way (a connection that had the port, an old
// answer of a name server) may be gone.
void RendezvousLine::take_over() {
  if (coordinator_ || is_finished_ || is_up_) return;
  take_over_timer_.expires_after(take_over_interval);
  take_over_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) take_over();
  });
  look_up_endpoint([this](std::vector<std::string> leads_to) {
    if (coordinator_ || is_finished_ || is_up_) return;
    const auto hosted = try_to_host(std::move(leads_to));
    const std::string problem = hosted ? std::string{} : message(hosted.failure());
    if (std::exchange(not_hosted_, problem) != problem && !problem.empty()) log_.warning(problem);
  });
}

// --- what is sent ---

void RendezvousLine::look_again() {
  if (link_) link_->look_again();
}

void RendezvousLine::send(const NodeMessage& message) {
  if (!link_) return;
  if (const auto* asked = std::get_if<Join>(&message)) join(*asked);
  else link_->send(message);
}

void RendezvousLine::join(Join join) {
  // As long as workers run, what others were told of this node: a coordinator that did not tell them compares.
  if (!join.resuming) advertised_address_ = address();
  join.who = setting_.who;
  join.run = setting_.run;
  join.version = ELRUN_VERSION;
  join.address = advertised_address_;
  join.master_port = port_.hold(join.last, join.resuming);
  join.hint = options().node_rank;
  join.topology = options().topology;
  join.role = options().role;
  join.place = place_;
  join.confirms_verdict = true;
  join.heartbeat = std::min(options().timeouts.heartbeat, heartbeat_told_max);
  join.stop_grace = std::min(options().timeouts.stop_grace, stop_grace_told_max);
  join.prepares = true;
  join.liveness = liveness_.at(link_->leaves_from());
  link_->send(join);
}

std::string RendezvousLine::address() const {
  if (!options().local_address.empty()) return options().local_address;
  return hosted_address_.empty() ? link_->local_address() : hosted_address_;
}

// --- the coordinator, when it is here; the end ---

const Coordinator* RendezvousLine::hosted() const { return elected_ != nullptr ? elected_->coordinator() : coordinator_.get(); }

bool RendezvousLine::logs_job() const { return hosted() != nullptr && (options().endpoint || elected_ != nullptr); }

bool RendezvousLine::may_end() const { return hosted() != nullptr ? hosted()->may_exit() : !link_ || !link_->is_taking_leave(); }

void RendezvousLine::resign(std::function<void()> done) {
  if (elected_ != nullptr) elected_->resign(std::move(done));
  else boost::asio::post(loop_, std::move(done));
}

}  // namespace elrun::inline v0::launcher
