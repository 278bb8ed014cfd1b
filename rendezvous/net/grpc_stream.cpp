#include "rendezvous/net/grpc_stream.hpp"

#include <boost/asio/post.hpp>

namespace elrun::inline v0 {
namespace {

// From so many waiting events on, the loop is woken once in a while instead of for each. On few cores a wake-up costs more than handling
// most events.
constexpr std::size_t crowd = 8;
constexpr std::int64_t crowd_pause_us = 1000;

}  // namespace

GrpcEvents::GrpcEvents(boost::asio::io_context& loop, std::unique_ptr<grpc::ServerCompletionQueue> queue)
    : loop_{loop}, queue_{std::move(queue)}, thread_{[this, open = open()] { carry(open); }} {}

void GrpcEvents::close() {
  if (!open_) return;
  open_.reset();
  queue_->Shutdown();
  thread_.join();
  take_what_came();
  while (!due_.empty()) finish_first();
}

void GrpcEvents::carry(const std::weak_ptr<void>& open) {
  using Queue = grpc::CompletionQueue;
  void* operation = nullptr;
  bool ok = false;
  std::vector<Event> collected;
  for (gpr_timespec until = gpr_inf_past(GPR_CLOCK_MONOTONIC);;) {
    const auto what = queue_->AsyncNext(&operation, &ok, collected.empty() ? gpr_inf_future(GPR_CLOCK_MONOTONIC) : until);
    if (what == Queue::GOT_EVENT) {
      collected.push_back({static_cast<GrpcOperation*>(operation), ok});
      if (gpr_time_cmp(gpr_now(GPR_CLOCK_MONOTONIC), until) < 0) continue;
    }
    if (hand_over(collected, open) >= crowd)
      until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(crowd_pause_us, GPR_TIMESPAN));
    collected.clear();
    if (what == Queue::SHUTDOWN) return;
  }
}

std::size_t GrpcEvents::hand_over(const std::vector<Event>& events, const std::weak_ptr<void>& open) {
  const std::lock_guard lock{mutex_};
  const bool on_its_way = !came_.empty();
  came_.insert(came_.end(), events.begin(), events.end());
  if (!events.empty() && !on_its_way)
    boost::asio::post(loop_, [this, open] {
      if (!open.expired()) deliver();
    });
  return came_.size();
}

void GrpcEvents::deliver() {
  const std::weak_ptr<void> open = this->open();
  take_what_came();
  while (!open.expired() && !due_.empty()) finish_first();  // each of them may destroy this
}

void GrpcEvents::take_what_came() {
  const std::lock_guard lock{mutex_};
  due_.insert(due_.end(), came_.begin(), came_.end());
  came_.clear();
}

void GrpcEvents::finish_first() {
  const Event event = due_.front();
  due_.pop_front();
  event.operation->finished(event.ok);
}

template <class Begin>
void GrpcStream::begin(Begin operation) {
  if (open_.expired()) return;
  if (++operations_ == 1) self_ = shared_from_this();
  operation(call_->line);
}

void GrpcStream::end_of_operation() {
  if (--operations_ > 0) return;
  call_.reset();  // nobody reads or writes any more
  self_.reset();
}

void GrpcStream::start() {
  begin([this](auto& line) { line.SendInitialMetadata(&greeting_); });
  read();
}

void GrpcStream::read() {
  if (!finished_) begin([this](auto& line) { line.Read(&in_, &reading_); });
}

void GrpcStream::write(const grpc::ByteBuffer& message) {
  if (finished_) return;
  writing_ = true;
  begin([&](auto& line) { line.Write(message, &write_); });
}

void GrpcStream::finish(const grpc::Status& status) {
  if (finished_) return;
  finished_ = true;
  begin([&](auto& line) { line.Finish(status, &end_); });
}

void GrpcStream::abort() {
  if (finished_) return;
  call_->context.TryCancel();
  finish();
}

void GrpcStream::after_greeting(bool) { end_of_operation(); }

void GrpcStream::after_read(bool ok) {
  if (ok) {
    received(in_);
    read();
  } else {
    broken();
    finish();
  }
  end_of_operation();
}

void GrpcStream::after_write(bool ok) {
  writing_ = false;
  if (ok) written();
  else finish();
  end_of_operation();
}

void GrpcStream::after_finish(bool) {
  broken();
  end_of_operation();
}

namespace {

class RefusedStream final : public GrpcStream {
 public:
  using GrpcStream::GrpcStream;

 private:
  void received(grpc::ByteBuffer&) override {}
  void broken() override {}
  void written() override {}
};

}  // namespace

void refuse(std::unique_ptr<GrpcCall> call, std::weak_ptr<void> open, const grpc::Status& why) {
  std::make_shared<RefusedStream>(std::move(call), std::move(open))->finish(why);
}

}  // namespace elrun::inline v0
