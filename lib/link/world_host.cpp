#include "lib/link/world_host.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/timeouts.hpp"

namespace elrun::inline v0 {
using ErrorCode = boost::system::error_code;

Result<std::unique_ptr<WorldHost>> WorldHost::open(boost::asio::io_context& loop, const Clock& clock, const Log& log,
                                                   const std::string& address, std::uint16_t port, WorldSize world, std::string proof,
                                                   Deadline deadline) {
  const bool open = proof.empty();
  std::unique_ptr<WorldHost> host{new WorldHost{loop, clock, log, world, std::move(proof), deadline}};
  WorkerServer::Handler handler{[self = host.get()](auto from, const Message& message) { self->on_message(from, message); },
                                [self = host.get()](auto from, const Failure& why) { self->on_closed(from, why); }};
  ELRUN_TRY_ASSIGN(const auto addresses, resolve(address, port));
  auto server = WorkerServer::listen_tcp(loop, addresses, std::move(handler));
  if (!server.ok()) {
    Failure why = std::move(server).failure();
    why.what +=
        ". Rank 0 serves its world at MASTER_ADDR and MASTER_PORT; where torchrun has started this worker, its agent may serve a store of its own there: start the program with elrun in its place";
    return why;
  }
  host->server_ = std::move(*server);
  if (open && world.value() > 1 && !host->server_->is_loopback())
    log.warning(fmt::format(
        "there is no token: until all {} ranks are here, whoever reaches {}:{} can take one of them, and gets the key of this world. Give all ranks "
        "the same token (ELRUN_RDZV_TOKEN_FILE), or keep it inside a network that you trust",
        world.value(), address, host->server_->port()));
  host->beat();
  return host;
}

WorldHost::WorldHost(boost::asio::io_context& loop, const Clock& clock, const Log& log, WorldSize world, std::string proof,
                     Deadline deadline)
    : clock_{clock}, log_{log}, world_{world}, roll_{world, std::move(proof)}, heartbeat_{loop}, expiry_{loop}, deadline_timer_{loop} {
  random_bytes(std::as_writable_bytes(std::span{generation_.lineage.bits}));
  random_bytes(key_);
  (void)store_.begin_generation(generation_);
  deadline_timer_.expires_after(deadline.left(clock.now()));
  deadline_timer_.async_wait([this](const ErrorCode& error) {
    if (!error && !roll_.complete()) give_up();
  });
}

// A timer's handler may already be on its way when the host goes; but the host goes with its loop, after the loop's
// thread has ended, so no handler runs any more.

void WorldHost::beat() {
  for (const auto& [rank, member] : roll_.members()) server_->send(member.visitor, Alive{});
  if (!roll_.complete() && !given_up_ && ++beats_ > 1) {  // a quick start needs no word
    const auto missing = roll_.missing();
    waiting_(log_, Level::info, fmt::format("waiting for {} of {} workers: {}", missing.size(), world_.value(), list_ranks(missing)));
  }
  heartbeat_.expires_after(Timeouts{}.heartbeat);
  heartbeat_.async_wait([this](const ErrorCode& error) {
    if (!error) beat();
  });
}

void WorldHost::on_message(WorkerServer::Connection from, const Message& message) {
  if (const auto* hello = std::get_if<Hello>(&message)) {
    if (given_up_) return refuse(from, *given_up_);  // the others have gone, although nobody has seen them leave
    if (const auto earlier = roll_.earlier_of(*hello); earlier && *earlier != from) {
      server_->close(*earlier);
      on_closed(*earlier, {});
    }
    if (auto failure = roll_.arrive(from, *hello, server_->peer(from))) {
      refused_(log_, clock_.now(), Level::warning, failure->what);
      refuse(from, std::move(*failure));
    } else {
      server_->expect(from);
      if (roll_.complete()) welcome_all();
    }
    return;
  }
  const auto rank = roll_.rank_of(from);
  if (!rank || !roll_.complete()) return;  // there is no generation yet, and a connection without a rank is in none
  if (const auto* request = std::get_if<StoreRequest>(&message)) {
    deliver(store_.call(StoreCaller{from}, *request, clock_.now()));
  } else if (const auto* over = std::get_if<JobOver>(&message); over != nullptr && over->generation == generation_) {
    on_job_over(from, *rank);
  }
}

void WorldHost::refuse(WorkerServer::Connection from, Failure why) {
  server_->send(from, Refusal{std::move(why)});
  server_->close(from);
  on_closed(from, {});
}

void WorldHost::welcome_all() {
  deadline_timer_.cancel();
  for (const auto& [rank, member] : roll_.members()) {
    Place place;
    place.membership = {generation_, rank, world_};
    place.key = key_;
    server_->trust(member.visitor);
    server_->send(member.visitor, Welcome{std::move(place)});
  }
}

void WorldHost::give_up() {
  const auto missing = roll_.missing();
  const Failure why{
      .code = Code::deadline_passed,
      .remedy = Remedy::retry,
      .what = fmt::format("{} of {} workers have come in time; missing: {}. Are they started, with the same MASTER_ADDR and MASTER_PORT?",
                          world_.value() - missing.size(), world_.value(), list_ranks(missing)),
      .rank = Rank{0}};
  for (const auto& [rank, member] : roll_.members()) {
    server_->send(member.visitor, Refusal{why});
    server_->close(member.visitor);
  }
  given_up_ = why;
}

void WorldHost::on_closed(WorkerServer::Connection from, const Failure& why) {
  store_.forget(StoreCaller{from});
  const auto lost = roll_.leave(from);
  if (lost && !end_.has_begun()) {  // once one has said that all decided the end, the verdict is success whatever dies
    const Failure failure{.code = Code::peer_lost,
                          .remedy = Remedy::exit_process,
                          .what = fmt::format("the process of rank {} is gone: {}", lost->value(), why.what),
                          .peer = *lost,
                          .generation = generation_};
    deliver(store_.end_generation(failure.what));
    for (const auto& [rank, member] : roll_.members()) server_->send(member.visitor, GenerationOver{generation_, failure});
  }
  release_host();
}

void WorldHost::on_job_over(WorkerServer::Connection from, Rank rank) {
  end_.say(rank, from);
  if (rank != Rank{0}) server_->send(from, JobOver{generation_});
  release_host();
}

void WorldHost::release_host() {
  if (const auto host = end_.release_host(roll_.members())) server_->send(*host, JobOver{generation_});
}

void WorldHost::deliver(const std::vector<StoreAnswer>& answers) {
  for (const StoreAnswer& answer : answers) server_->send(answer.to.value(), answer.reply);
  const auto next = store_.next_expiry();
  if (!next) return void(expiry_.cancel());
  expiry_.expires_after(std::max<Duration>(*next - clock_.now(), 0ns));
  expiry_.async_wait([this](const ErrorCode& error) {
    if (!error) deliver(store_.expire(clock_.now()));
  });
}

}  // namespace elrun::inline v0
