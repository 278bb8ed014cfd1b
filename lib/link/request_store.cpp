#include "lib/link/request_store.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t unanswered_max = 4096;  // names whose last answer is missing; beyond it one more is not remembered

ByteVector copy(ByteSpan bytes) { return {bytes.begin(), bytes.end()}; }

/// All that breaks a bound of the store, before a byte is sent.
std::vector<std::string> problems_of(const StoreRequest& request) {
  std::vector<std::string> problems;
  if (request.keys.size() > store_keys_per_call_max) {
    problems.push_back(fmt::format("{} keys in one call; {} are possible", request.keys.size(), store_keys_per_call_max));
  }
  for (const std::string& key : request.keys) {
    if (key.size() <= store_key_max.value()) continue;
    problems.push_back(
        fmt::format("the key \"{}\"... has {} bytes; {} are possible", key.substr(0, 32), key.size(), store_key_max.value()));
  }
  const std::size_t bytes = request.value.size() + request.expected.size();
  const std::size_t most = store_value_max.value() / (request.op == StoreOp::all_gather ? std::max(request.count, 1u) : 1u);
  if (bytes > most)
    problems.push_back(
        fmt::format("a value of {} bytes for \"{}\"; {} are possible", bytes, request.keys.empty() ? "" : request.keys.front(), most));
  return problems;
}

Remedy remedy_of(Code code) {
  switch (code) {
    case Code::generation_over: return Remedy::rejoin;
    case Code::invalid_argument: return Remedy::fix_config;
    default: return Remedy::retry;
  }
}

Result<Store::Value> only_value(StoreReply reply) {
  if (reply.values.size() == 1) return std::move(reply.values.front());
  return Failure{Code::protocol, Remedy::abort_group,
                 fmt::format("the store answered with {} values where one belongs", reply.values.size())};
}

}  // namespace

RequestStore::RequestStore(const Clock& clock, const Generation& generation)
    : clock_{clock}, generation_{generation}, caller_{[] {
        std::uint64_t drawn = 0;
        random_bytes(std::as_writable_bytes(std::span{&drawn, 1}));
        return drawn | 1;  // 0 means that the caller has no number
      }()} {}

// A call whose answer did not come in time may have been answered: the next one of that name asks for the same answer,
// so that no caller is ever one gathering behind the others.
Result<StoreReply> RequestStore::gather(StoreRequest request, Deadline deadline) {
  const GatheringName name{request.op, request.keys.front(), request.count, request.rank};
  request.caller = caller_;
  {
    const std::lock_guard lock{mutex_};
    const auto unanswered = unanswered_.find(name);
    request.turn = unanswered != unanswered_.end() ? unanswered->second : ++turns_;
    if (unanswered != unanswered_.end()) unanswered_.erase(unanswered);  // another thread's call is a call of its own
  }
  const std::uint64_t turn = request.turn;
  auto reply = call(std::move(request), deadline);
  if (!reply.ok() && reply.failure().remedy == Remedy::retry) {
    const std::lock_guard lock{mutex_};
    if (unanswered_.size() < unanswered_max) unanswered_.emplace(name, turn);
  }
  return reply;
}

Result<StoreReply> RequestStore::call(StoreRequest request, Deadline deadline) {
  if (const auto problems = problems_of(request); !problems.empty()) return invalid(problems);
  request.generation = generation_;
  const Duration left = deadline.left(clock_.now());
  // The store knows who is missing: it is given a little less time, so that its answer arrives before the deadline.
  request.wait = left - std::min<Duration>(left / 8, 200ms);
  ELRUN_TRY_ASSIGN(StoreReply reply, ask(std::move(request), deadline));
  if (reply.ok) return reply;
  Failure failure{.code = reply.code, .remedy = remedy_of(reply.code), .what = std::move(reply.what)};
  if (generation_.number == 0) return failure;  // a client outside is nobody's rank
  failure.rank = Rank{rank()};
  failure.generation = generation_;
  return failure;
}

Result<void> RequestStore::set(std::string_view key, ByteSpan value, Deadline deadline) {
  ELRUN_TRY(call({.op = StoreOp::set, .keys = {std::string{key}}, .value = copy(value)}, deadline));
  return {};
}

Result<Store::Value> RequestStore::get(std::string_view key, Deadline deadline) {
  ELRUN_TRY_ASSIGN(StoreReply reply, call({.op = StoreOp::get, .keys = {std::string{key}}}, deadline));
  return only_value(std::move(reply));
}

Result<std::int64_t> RequestStore::add(std::string_view key, std::int64_t amount, Deadline deadline) {
  ELRUN_TRY_ASSIGN(const StoreReply reply, call({.op = StoreOp::add, .keys = {std::string{key}}, .amount = amount}, deadline));
  return reply.number;
}

Result<Store::Value> RequestStore::compare_set(std::string_view key, ByteSpan expected, ByteSpan desired, Deadline deadline) {
  ELRUN_TRY_ASSIGN(
      StoreReply reply,
      call({.op = StoreOp::compare_set, .keys = {std::string{key}}, .value = copy(desired), .expected = copy(expected)}, deadline));
  return only_value(std::move(reply));
}

Result<void> RequestStore::wait(std::span<const std::string> keys, Deadline deadline) {
  ELRUN_TRY(call({.op = StoreOp::wait, .keys = {keys.begin(), keys.end()}}, deadline));
  return {};
}

Result<bool> RequestStore::remove(std::string_view key, Deadline deadline) {
  ELRUN_TRY_ASSIGN(const StoreReply reply, call({.op = StoreOp::remove, .keys = {std::string{key}}}, deadline));
  return reply.number != 0;
}

Result<std::optional<Store::Value>> RequestStore::watch(std::string_view key, std::optional<ByteSpan> known, Deadline deadline) {
  ELRUN_TRY_ASSIGN(
      StoreReply reply,
      call({.op = StoreOp::watch, .keys = {std::string{key}}, .expected = copy(known.value_or(ByteSpan{})), .absent = !known}, deadline));
  if (reply.values.empty()) return std::optional<Value>{};
  ELRUN_TRY_ASSIGN(Value value, only_value(std::move(reply)));
  return std::optional{std::move(value)};
}

Result<std::uint64_t> RequestStore::num_keys(std::string_view prefix, Deadline deadline) {
  StoreRequest request{.op = StoreOp::num_keys};
  if (!prefix.empty()) request.keys.emplace_back(prefix);
  ELRUN_TRY_ASSIGN(const StoreReply reply, call(std::move(request), deadline));
  return static_cast<std::uint64_t>(reply.number);
}

Result<void> RequestStore::barrier(std::string_view name, WorldSize count, Deadline deadline) {
  ELRUN_TRY(gather({.op = StoreOp::barrier, .keys = {std::string{name}}, .rank = rank(), .count = count.value()}, deadline));
  return {};
}

Result<std::vector<Store::Value>> RequestStore::all_gather(std::string_view name, Rank from, WorldSize count, ByteSpan value,
                                                           Deadline deadline) {
  ELRUN_TRY_ASSIGN(
      StoreReply reply,
      gather({.op = StoreOp::all_gather, .keys = {std::string{name}}, .value = copy(value), .rank = from.value(), .count = count.value()},
             deadline));
  if (reply.values.size() == count.value()) return std::move(reply.values);
  return Failure{Code::protocol, Remedy::abort_group,
                 fmt::format("the store gathered {} values where {} belong", reply.values.size(), count.value())};
}

class SharedStore::Caller final : public RequestStore {
 public:
  Caller(SharedStore& store, Rank rank) : RequestStore{store.clock_, store.generation_}, store_{store}, rank_{rank} {}

 protected:
  Result<StoreReply> ask(StoreRequest request, Deadline deadline) override { return store_.ask(rank_, std::move(request), deadline); }
  [[nodiscard]] std::uint32_t rank() const override { return rank_.value(); }

 private:
  SharedStore& store_;
  Rank rank_;
};

SharedStore::SharedStore(const Clock& clock, const Generation& generation) : clock_{clock}, generation_{generation} {
  (void)core_.begin_generation(generation);
}

std::unique_ptr<Store> SharedStore::of(Rank rank) {
  const std::lock_guard lock{mutex_};
  return std::make_unique<Caller>(*this, rank);
}

void SharedStore::begin_generation(const Generation& generation) {
  const std::lock_guard lock{mutex_};
  generation_ = generation;
  deliver(core_.begin_generation(generation));
}

void SharedStore::deliver(std::vector<StoreAnswer> answers) {
  if (answers.empty()) return;
  for (StoreAnswer& answer : answers) replies_.insert_or_assign(answer.reply.id, std::move(answer.reply));
  answered_.notify_all();
}

Result<StoreReply> SharedStore::ask(Rank from, StoreRequest request, Deadline deadline) {
  std::unique_lock lock{mutex_};
  const std::uint64_t id = request.id = ++last_id_;
  deliver(core_.call(StoreCaller{from.value()}, request, clock_.now()));
  for (;;) {
    const Instant now = clock_.now();
    deliver(core_.expire(now));
    if (auto reply = replies_.extract(id)) return std::move(reply.mapped());
    if (deadline.passed(now)) break;
    const Instant next = std::min(deadline.at, core_.next_expiry().value_or(deadline.at));
    answered_.wait_for(lock, std::max<Duration>(next - now, 1us));
  }
  return Failure{Code::deadline_passed, Remedy::retry, "the store did not answer in time"};
}

}  // namespace elrun::inline v0
