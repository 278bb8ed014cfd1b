// A stream of calls in, a stream of answers out, each message a batch: whatever came together while the last message was
// still being written goes with the next. The loop reads on when it has dealt with a whole batch.

#include "rendezvous/store/store_service.hpp"

#include <deque>
#include <utility>

#include <fmt/format.h>

#include "lib/link/message.hpp"
#include "rendezvous.grpc.pb.h"
#include "rendezvous/net/grpc.hpp"
#include "rendezvous/net/grpc_stream.hpp"

namespace elrun::inline v0 {
namespace {

class StoreStream final : public GrpcStream, public StreamEnd {
 public:
  StoreStream(std::unique_ptr<GrpcCall> call, std::weak_ptr<void> open, std::weak_ptr<StreamOwner*> owner, StoreClients::Place place)
      : GrpcStream{std::move(call), std::move(open)}, owner_{std::move(owner)}, place_{std::move(place)} {}
  void open(StreamOwner& owner) {
    number_ = owner.opened_outside(std::static_pointer_cast<StoreStream>(shared_from_this()));
    start();
  }
  void send(const CoordinatorMessage& message) override {
    const auto* result = std::get_if<StoreResult>(&message);
    if (result == nullptr || is_finished()) return;
    --under_way_;
    answer(*result);
  }
  void close() override { finish(); }

 private:
  void answer(const StoreResult& result) {
    const ByteVector reply = encode_payload(result.reply);
    queued_ += reply.size();
    if (queued_ > stream_queue_max.value()) return abort();  // it does not read; the failing read reports that
    if (queue_.empty() || queue_.back().bytes + reply.size() > store_batch_max.value()) queue_.emplace_back();
    queue_.back().bytes += reply.size();
    wire::StoreResult& out = *queue_.back().results.add_results();
    out.set_worker(result.worker);
    out.set_reply(reply.data(), reply.size());
    if (!reading_batch_) write_next();
  }
  void write_next() {
    if (is_writing() || is_finished() || queue_.empty()) return;
    being_written_ = queue_.front().bytes;
    write(to_bytes(queue_.front().results));
    queue_.pop_front();
  }
  void written() override {
    queued_ -= being_written_;
    write_next();
  }
  void broken() override {
    if (const auto owner = std::exchange(owner_, {}).lock()) (*owner)->broken(number_);
  }
  void received(grpc::ByteBuffer& bytes) override {
    wire::StoreCalls in;
    if (!read_bytes(bytes, in)) return end_of_nonsense();
    reading_batch_ = true;  // the answers of a batch go together
    for (const wire::StoreCall& call : in.calls()) {
      Result<StoreRequest> request = decode_store_request(as_bytes(call.request()));
      if (!request.ok() || request->replay || call.worker() != 0) return end_of_nonsense();
      if (under_way_ >= store_calls_per_stream_max) {
        answer({call.worker(),
                {.id = request->id,
                 .ok = false,
                 .code = Code::exhausted,
                 .what = fmt::format("{} calls are under way on this stream", under_way_)}});
        continue;
      }
      ++under_way_;
      if (const auto owner = owner_.lock()) (*owner)->received(number_, StoreCall{call.worker(), *std::move(request)});
      if (is_finished()) return;
    }
    reading_batch_ = false;
    write_next();
  }
  // No client sends that.
  void end_of_nonsense() {
    broken();
    abort();
  }

  struct Batch {
    wire::StoreResults results;
    std::uint64_t bytes = 0;
  };
  std::weak_ptr<StreamOwner*> owner_;
  const StoreClients::Place place_;
  StreamNumber number_{};
  std::deque<Batch> queue_;
  std::uint64_t queued_ = 0, being_written_ = 0;  // bytes; those being written are queued, too
  std::size_t under_way_ = 0;
  bool reading_batch_ = false;
};

}  // namespace

void open_store_stream(std::unique_ptr<GrpcCall> call, std::weak_ptr<void> open, const std::shared_ptr<StreamOwner*>& owner,
                       StoreClients& clients) {
  auto place = clients.take_place();
  if (!place)
    return refuse(std::move(call), std::move(open),
                  {grpc::StatusCode::RESOURCE_EXHAUSTED, fmt::format("{} clients use this store already", store_streams_max)});
  std::make_shared<StoreStream>(std::move(call), std::move(open), owner, std::move(place))->open(**owner);
}

}  // namespace elrun::inline v0
