#include "tests/fakegpu/nccl/communicator.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "tests/fakegpu/nccl/settings.hpp"

namespace fakenccl {
namespace {

std::atomic<std::uint64_t> started{0};

/// As it stands in a mailbox: whole where it has room, otherwise its beginning and a hash of all.
std::string bounded(const std::string& text) {
  constexpr std::size_t room = sizeof(Mailbox::text) - 32;
  if (text.size() <= room) return text;
  std::uint64_t hash = 1469598103934665603u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return text.substr(0, room) + " #" + std::to_string(hash);
}

void pause() { std::this_thread::sleep_for(std::chrono::microseconds{100}); }

}  // namespace

// --- Exchange ---

void Exchange::start() {
  if (++started == settings().kill_at) ::kill(::getpid(), SIGKILL);
  const std::size_t ranks = moves_.out.size();
  staged_.resize(ranks);
  posted_.assign(ranks, false);
  for (std::size_t r = 0; r < ranks; ++r) {
    for (const PieceOut& piece : moves_.out[r]) staged_[r].insert(staged_[r].end(), piece.from, piece.from + piece.bytes);
  }
}

void Exchange::post(std::size_t to) {
  Mailbox& box = world_->mailbox(me_, static_cast<int>(to));
  if (box.taken + 1 != out_numbers[to]) return;  // the one before is still there
  std::memcpy(world_->data(me_, static_cast<int>(to)), staged_[to].data(), staged_[to].size());
  std::strcpy(box.text, bounded(moves_.sends[to]).c_str());
  box.posted = out_numbers[to];
  posted_[to] = true;
  staged_[to] = {};
}

bool Exchange::agrees(std::size_t from) {
  const Mailbox& box = world_->mailbox(static_cast<int>(from), me_);
  if (bounded(moves_.expects[from]) == box.text) return true;
  fakegpu::report("NCCL: rank " + std::to_string(me_) + " makes " + moves_.expects[from].substr(0, 300) + "and rank " +
                  std::to_string(from) + " makes " + std::string{box.text}.substr(0, 300) + "in its place; both hang");
  mismatched_ = true;
  return false;
}

bool Exchange::is_buffered(std::size_t to) const {
  std::size_t bytes = 0;
  for (const PieceOut& piece : moves_.out[to]) bytes += piece.bytes;
  const auto sent = static_cast<std::size_t>(std::ranges::count(moves_.to, static_cast<int>(to)));
  return sent == moves_.out[to].size() && bytes <= settings().buffer;
}

bool Exchange::ready() {
  if (mismatched_ || (before_ && !*before_)) return false;
  bool all = true;
  for (std::size_t r = 0; r < moves_.in.size(); ++r)
    if (!moves_.in[r].empty()) world_->mailbox(static_cast<int>(r), me_).wanted = in_numbers[r];
  for (std::size_t r = 0; r < moves_.out.size(); ++r) {
    if (!moves_.out[r].empty()) {
      if (!posted_[r]) post(r);
      all = all && posted_[r] && (is_buffered(r) || world_->mailbox(me_, static_cast<int>(r)).wanted >= out_numbers[r]);
    }
    if (!moves_.in[r].empty()) {
      const Mailbox& box = world_->mailbox(static_cast<int>(r), me_);
      all = all && box.posted >= in_numbers[r];
      if (box.posted >= in_numbers[r] && !agrees(r)) return false;
    }
  }
  return all;
}

void Exchange::run() {
  std::vector<std::vector<const std::byte*>> pieces(moves_.in.size());
  for (std::size_t r = 0; r < moves_.in.size(); ++r) {
    const std::byte* from = world_->data(static_cast<int>(r), me_);
    for (const PieceIn& piece : moves_.in[r]) {
      if (piece.to != nullptr) std::memcpy(piece.to, from, piece.bytes);
      pieces[r].push_back(from);
      from += piece.bytes;
    }
  }
  for (const Moves::Fold& fold : moves_.folds) {
    std::vector<const std::byte*> arrived;
    for (std::size_t r = 0; r < pieces.size(); ++r) arrived.push_back(pieces[r][fold.pieces[r]]);
    fold.run(arrived);
  }
  for (std::size_t r = 0; r < moves_.in.size(); ++r)
    if (!moves_.in[r].empty()) world_->mailbox(static_cast<int>(r), me_).taken = in_numbers[r];
  *has_run_ = true;
  fakegpu::wake();
}

// --- Communicator ---

Communicator::Communicator(std::string path, int ranks, int rank, bool blocking)
    : path_{std::move(path)}, ranks_{ranks}, rank_{rank}, blocking_{blocking} {
  (void)cudaGetDevice(&device_);
  polls_left_ = 1 + static_cast<int>(fakegpu::random_below(3));
  if (!path_.empty()) join();
}

Communicator::~Communicator() {
  if (world_) world_->forget_name();
}

void Communicator::join() {
  world_ = SharedWorld::open(path_, ranks_, settings().slot);
  if (!world_) {
    error_ = ncclSystemError;
    return;
  }
  out_count_.resize(static_cast<std::size_t>(ranks_));
  in_count_.resize(static_cast<std::size_t>(ranks_));
  RankWords& mine = world_->rank(rank_);
  (void)cudaDeviceGetPCIBusId(mine.device, sizeof mine.device, device_);
  // The real one compares devices of one host alone, and this variable says which host that is.
  if (const char* host = std::getenv("NCCL_HOSTID"); host != nullptr)
    std::strncat(mine.device, (std::string{"@"} + host).c_str(), sizeof mine.device - std::strlen(mine.device) - 1);
  if (mine.joined.exchange(1) != 0) {
    fakegpu::report("NCCL: two come as rank " + std::to_string(rank_) + " of one communicator");
    error_ = ncclInvalidUsage;
  }
}

ncclResult_t Communicator::shared_device() const {
  const char* const allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool may_share = settings().version >= 23000 && allowed != nullptr && std::strcmp(allowed, "0") != 0;
  for (int a = 0; a < ranks_ && !may_share; ++a)
    for (int b = 0; b < a; ++b)
      if (std::strcmp(world_->rank(a).device, world_->rank(b).device) == 0) return ncclInvalidUsage;
  return ncclSuccess;
}

bool Communicator::advance_split() {
  const Child& child = *unsplit_;
  for (int r = 0; r < child.parent_ranks; ++r)
    if (child.parent->rank(r).splits < child.number) return false;
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int r = 0; r < child.parent_ranks; ++r)
    if (child.parent->rank(r).color == child.color) members.emplace_back(child.parent->rank(r).key, r);
  std::ranges::sort(members);
  ranks_ = static_cast<int>(members.size());
  rank_ = static_cast<int>(std::ranges::find(members, child.parent_rank, &std::pair<int, int>::second) - members.begin());
  path_ = child.path;
  unsplit_.reset();
  join();
  return true;
}

ncclResult_t Communicator::poll() {
  if (error_ != ncclSuccess) return error_;
  if (stage_ == Stage::idle) return ncclSuccess;
  if (polls_left_ > 0) --polls_left_;
  if (polls_left_ > 0) return ncclInProgress;
  switch (stage_) {
    case Stage::joining:
      if (unsplit_ && !advance_split()) return ncclInProgress;
      if (error_ != ncclSuccess) return error_;
      if (!world_->all_joined()) return ncclInProgress;
      world_->forget_name();
      if (error_ = shared_device(); error_ != ncclSuccess) return error_;
      break;
    case Stage::issuing:
      if (!connected()) return ncclInProgress;
      if (error_ = enqueue_pending(); error_ != ncclSuccess) return error_;
      break;
    case Stage::finalizing:
      if (!ended() || !world_->all_finalized()) return ncclInProgress;
      break;
    case Stage::revoking:
      if (!ended()) return ncclInProgress;
      tell_ended();
      break;
    case Stage::idle: break;
  }
  stage_ = Stage::idle;
  return ncclSuccess;
}

ncclResult_t Communicator::wait() {
  for (;; pause())
    if (const ncclResult_t answer = poll(); answer != ncclInProgress) return answer;
}

ncclResult_t Communicator::check_usable() {
  if (error_ != ncclSuccess) return error_;
  if (stage_ != Stage::idle) return ncclInvalidArgument;  // before the last call was done
  if (revoked_ || finalizing_) return ncclInvalidUsage;
  return ncclSuccess;
}

ncclResult_t Communicator::begin(Moves moves, cudaStream_t stream) {
  for (const auto& lists : {moves.reads, moves.writes})
    for (const Range& range : lists)
      if (range.bytes > 0 && fakegpu::device_of(range.begin) != device_) {
        fakegpu::report("NCCL: " + moves.name + " on device " + std::to_string(device_) + " with memory that is not that device's");
        return ncclInvalidArgument;
      }
  if (fakegpu::device_of_stream(stream) != device_) {
    fakegpu::report("NCCL: " + moves.name + " of a communicator of device " + std::to_string(device_) + " on a stream of another device");
    return ncclInvalidArgument;
  }
  auto exchange = std::make_shared<Exchange>(world_, rank_, std::move(moves), last_has_run_);
  last_has_run_ = exchange->has_run();
  const std::size_t ranks = static_cast<std::size_t>(ranks_);
  exchange->out_numbers.resize(ranks);
  exchange->in_numbers.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    std::size_t bytes = 0;
    for (const PieceOut& piece : exchange->moves().out[r]) bytes += piece.bytes;
    if (bytes > settings().slot) {
      fakegpu::report("NCCL: " + exchange->moves().name + ": the fake has room for FAKEGPU_NCCL_SLOT_MIB between two ranks");
      return ncclInternalError;
    }
    if (!exchange->moves().out[r].empty()) exchange->out_numbers[r] = ++out_count_[r];
    if (!exchange->moves().in[r].empty()) exchange->in_numbers[r] = ++in_count_[r];
  }
  pending_.push_back({std::move(exchange), stream});
  stage_ = Stage::issuing;
  polls_left_ = 1 + static_cast<int>(fakegpu::random_below(3));
  if (!blocking_) return ncclInProgress;
  return wait();
}

bool Communicator::connected() {
  bool all = true;
  for (const Pending& each : pending_) {
    for (const int peer : each.exchange->moves().to) {
      Mailbox& pair = world_->mailbox(rank_, peer);
      pair.sender_came = 1;
      all = all && pair.receiver_came != 0;
    }
    for (const int peer : each.exchange->moves().from) {
      Mailbox& pair = world_->mailbox(peer, rank_);
      pair.receiver_came = 1;
      all = all && pair.sender_came != 0;
    }
  }
  return all;
}

ncclResult_t Communicator::enqueue_pending() {
  std::erase_if(tickets_, [](const fakegpu::TicketPtr& ticket) { return fakegpu::is_over(ticket); });
  int before = 0;
  (void)cudaGetDevice(&before);
  (void)cudaSetDevice(device_);  // the real one launches on threads of its own
  ncclResult_t result = ncclSuccess;
  for (const Pending& each : pending_) {
    fakegpu::ExternalOperation operation;
    operation.name = "NCCL: " + each.exchange->moves().name;
    for (const Range& range : each.exchange->moves().reads)
      if (range.bytes > 0) operation.reads.push_back({range.begin, range.bytes});
    for (const Range& range : each.exchange->moves().writes)
      if (range.bytes > 0) operation.writes.push_back({range.begin, range.bytes});
    operation.start = [exchange = each.exchange] { exchange->start(); };
    operation.ready = [exchange = each.exchange] { return exchange->ready(); };
    operation.run = [exchange = each.exchange] { exchange->run(); };
    fakegpu::TicketPtr ticket;
    if (fakegpu::enqueue(each.stream, std::move(operation), &ticket) != cudaSuccess) result = ncclUnhandledCudaError;
    else tickets_.push_back(std::move(ticket));
  }
  pending_.clear();
  (void)cudaSetDevice(before);
  return result;
}

ncclResult_t Communicator::finalize() {
  finalizing_ = true;
  stage_ = Stage::finalizing;
  polls_left_ = 1 + static_cast<int>(fakegpu::random_below(3));
  world_->rank(rank_).finalized = 1;
  return blocking_ ? wait() : ncclInProgress;
}

void Communicator::give_up() {
  pending_.clear();
  // The last first: otherwise one that still runs would read what the one before it has left behind.
  for (auto ticket = tickets_.rbegin(); ticket != tickets_.rend(); ++ticket) fakegpu::give_up(*ticket);
  fakegpu::wake();
}

bool Communicator::ended() const {
  return std::ranges::all_of(tickets_, [](const fakegpu::TicketPtr& ticket) { return fakegpu::is_over(ticket); });
}

void Communicator::tell_ended() const {
  for (const fakegpu::TicketPtr& ticket : tickets_) fakegpu::host_has_waited(ticket);
}

ncclResult_t Communicator::revoke() {
  if (revoked_ || finalizing_) return ncclInvalidArgument;
  give_up();
  revoked_ = true;
  stage_ = Stage::revoking;
  polls_left_ = 1 + static_cast<int>(fakegpu::random_below(3));
  return blocking_ ? wait() : ncclInProgress;
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  RankWords& mine = world_->rank(rank_);
  mine.color = color;
  mine.key = key;
  mine.splits = ++splits_;
  if (color < 0) return nullptr;
  auto child = std::make_unique<Communicator>("", 1, 0, blocking_);
  child->device_ = device_;
  child->unsplit_ = Child{world_, rank_, ranks_, splits_, color, path_ + ".split" + std::to_string(splits_) + "." + std::to_string(color)};
  return child;
}

std::unique_ptr<Communicator> Communicator::shrink(const std::vector<int>& excluded) {
  int rank = 0, ranks = 0;
  for (int r = 0; r < ranks_; ++r) {
    if (std::ranges::find(excluded, r) != excluded.end()) continue;
    if (r < rank_) ++rank;
    ++ranks;
  }
  return std::make_unique<Communicator>(path_ + ".shrink" + std::to_string(++shrinks_), ranks, rank, blocking_);
}

}  // namespace fakenccl
