// A stream of calls in, a stream of answers out, each message a batch: whatever came together while the last message was
// still being written goes with the next. The loop reads on when it has dealt with a whole batch.

#include "rendezvous/store_service.hpp"

#include <grpcpp/grpcpp.h>

#include <boost/asio/post.hpp>

#include <deque>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include "lib/link/message.hpp"
#include "rendezvous.grpc.pb.h"
#include "rendezvous/grpc.hpp"

namespace elrun::inline v0 {
namespace {

using Loop = boost::asio::io_context;

// One stream: made by a gRPC thread, used by the loop alone from then on.
class StoreStream final : public grpc::ServerBidiReactor<wire::StoreCalls, wire::StoreResults>, public StreamEnd {
 public:
  StoreStream(Loop& loop, grpc::CallbackServerContext* context) : loop_{loop}, context_{context} {}
  void keep(std::shared_ptr<StoreStream> self) { self_ = std::move(self); }

  void open(const std::shared_ptr<StoreStream>& self, std::weak_ptr<StreamOwner*> owner) {
    const auto alive = owner.lock();
    if (!alive || finished_) return finish();
    owner_ = std::move(owner);
    number_ = (*alive)->opened_outside(self);
    StartSendInitialMetadata();  // tells the client that somebody is there
    StartRead(&in_);
  }
  void send(const CoordinatorMessage& message) override {
    const auto* result = std::get_if<StoreResult>(&message);
    if (result == nullptr || finished_) return;
    --under_way_;
    answer(*result);
  }
  void close() override { finish(); }
  /// Instead of `open`, on gRPC's thread.
  void refuse(const grpc::Status& why) { Finish(why); }
  /// At once, whatever is still to be written.
  void abort() {
    if (finished_) return;
    context_->TryCancel();
    finish();
  }

 private:
  void answer(const StoreResult& result) {
    const ByteVector reply = encode_payload(result.reply);
    queued_ += reply.size();
    if (queued_ > stream_queue_max.value()) return abort();  // it does not read; the read that fails says the rest
    if (queue_.empty() || (queue_.size() == 1 && writing_) || queue_.back().bytes + reply.size() > store_batch_max.value()) queue_.emplace_back();
    queue_.back().bytes += reply.size();
    wire::StoreResult& out = *queue_.back().results.add_results();
    out.set_worker(result.worker);
    out.set_reply(reply.data(), reply.size());
    if (!reading_batch_) write();
  }
  void write() {
    if (writing_ || finished_ || queue_.empty()) return;
    writing_ = true;
    StartWrite(&queue_.front().results);
  }
  void finish() {
    if (finished_) return;
    finished_ = true;
    Finish(grpc::Status::OK);
  }
  void broken() {
    const auto owner = std::exchange(owner_, {}).lock();
    if (owner) (*owner)->broken(number_);
  }
  void read(bool ok) {
    if (!ok) {
      broken();
      return finish();
    }
    reading_batch_ = true;  // the answers of a batch go together
    for (const wire::StoreCall& call : in_.calls()) {
      Result<StoreRequest> request = decode_store_request(as_bytes(call.request()));
      if (!request.ok() || request->replay || call.worker() != 0) {  // it speaks what no client speaks
        broken();
        return abort();
      }
      if (under_way_ >= store_calls_per_stream_max) {
        answer({call.worker(), {.id = request->id, .ok = false, .code = Code::exhausted,
                                .what = fmt::format("{} calls are under way on this stream", under_way_)}});
        continue;
      }
      ++under_way_;
      if (const auto owner = owner_.lock()) (*owner)->received(number_, StoreCall{call.worker(), *std::move(request)});
      if (finished_) return;
    }
    reading_batch_ = false;
    write();
    StartRead(&in_);
  }
  void written(bool ok) {
    writing_ = false;
    queued_ -= queue_.front().bytes;
    queue_.pop_front();
    if (ok) write();
    else finish();
  }

  // gRPC's threads: they read `loop_` and `self_`, which the loop leaves alone.
  void OnReadDone(bool ok) override {
    boost::asio::post(loop_, [self = self_, ok] { self->read(ok); });
  }
  void OnWriteDone(bool ok) override {
    boost::asio::post(loop_, [self = self_, ok] { self->written(ok); });
  }
  void OnDone() override {
    boost::asio::post(loop_, [self = std::move(self_)] { self->broken(); });
  }

  struct Batch {
    wire::StoreResults results;
    std::uint64_t bytes = 0;
  };
  Loop& loop_;
  grpc::CallbackServerContext* context_;
  std::shared_ptr<StoreStream> self_;  // until gRPC is done with it
  std::weak_ptr<StreamOwner*> owner_;
  StreamNumber number_{};
  wire::StoreCalls in_;
  std::deque<Batch> queue_;  // a deque: the one being written stays where it is
  std::uint64_t queued_ = 0;
  std::size_t under_way_ = 0;
  bool reading_batch_ = false, writing_ = false, finished_ = false;
};

class GrpcStoreService final : public StoreService, wire::JobStore::CallbackService {
 public:
  GrpcStoreService(Loop& loop, StreamOwner& owner, StoreRefusal refusal)
      : loop_{loop}, refusal_{std::move(refusal)}, owner_{std::make_shared<StreamOwner*>(&owner)} {}
  [[nodiscard]] grpc::Service& service() override { return *this; }
  void close() override {
    std::vector<std::weak_ptr<StoreStream>> streams;
    {
      const std::lock_guard lock{mutex_};
      owner_.reset();  // letters that are on their way find nobody
      closed_ = true;
      streams.swap(streams_);
    }
    for (const auto& weak : streams)
      if (const auto stream = weak.lock()) stream->abort();
  }

 private:
  grpc::ServerBidiReactor<wire::StoreCalls, wire::StoreResults>* Calls(grpc::CallbackServerContext* context) override {
    const auto stream = std::make_shared<StoreStream>(loop_, context);
    stream->keep(stream);
    const std::lock_guard lock{mutex_};
    if (closed_) {
      stream->abort();
      return stream.get();
    }
    if (const auto refusal = refusal_(*context)) {
      stream->refuse({grpc::StatusCode::UNAUTHENTICATED, *refusal});
      return stream.get();
    }
    if (streams_.size() >= 2 * living_ || streams_.size() >= store_streams_max) {  // now and then, not at every one of many
      std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
      living_ = std::max<std::size_t>(streams_.size(), 64);
    }
    if (streams_.size() >= store_streams_max) {
      stream->refuse({grpc::StatusCode::RESOURCE_EXHAUSTED, fmt::format("{} clients use this store already", store_streams_max)});
      return stream.get();
    }
    streams_.push_back(stream);
    boost::asio::post(loop_, [stream, owner = std::weak_ptr{owner_}] { stream->open(stream, owner); });
    return stream.get();
  }

  Loop& loop_;
  const StoreRefusal refusal_;
  std::shared_ptr<StreamOwner*> owner_;  // streams and letters hold it weakly
  std::mutex mutex_;                     // of those below, which gRPC's threads use as well
  std::vector<std::weak_ptr<StoreStream>> streams_;
  std::size_t living_ = 64;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<StoreService> make_store_service(Loop& loop, StreamOwner& owner, StoreRefusal refusal) {
  return std::make_unique<GrpcStoreService>(loop, owner, std::move(refusal));
}

}  // namespace elrun::inline v0
