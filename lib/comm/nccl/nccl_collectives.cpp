#include "lib/comm/nccl/nccl_collectives.hpp"

#include <vector>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/comm/call_queue.hpp"
#include "lib/comm/fold.hpp"
#include "lib/comm/overlap.hpp"
#include "lib/device/default_stream.hpp"

namespace elrun::inline v0 {
namespace {

Work over(Result<void> result) {
  const WorkPromise promise;
  promise.end(std::move(result));
  return promise.work();
}

ncclDataType_t nccl_type(DType type) {
  switch (type) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f64: return ncclFloat64;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
    case DType::u32: return ncclUint32;
    case DType::u64: return ncclUint64;
  }
  return ncclNumTypes;  // NCCL refuses it
}

ncclRedOp_t nccl_operation(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::avg: return ncclAvg;
  }
  return ncclNumOps;  // NCCL refuses it
}

constexpr ncclDataType_t bytes = ncclUint8;

/// The first answer that is no success, of several calls.
class Answers {
 public:
  void operator()(ncclResult_t answer) {
    if (first_ == ncclSuccess || first_ == ncclInProgress) first_ = answer;
  }
  [[nodiscard]] ncclResult_t first() const { return first_; }

 private:
  ncclResult_t first_ = ncclSuccess;
};

}  // namespace

Work NcclCollectives::begin(const char* name, const Result<void>& fits, const DeviceCall& call, NcclCommunicator::Body body) {
  if (!fits.ok()) return over(fits);
  const Device of = call.stream.device();
  const char* const unmade = default_stream(call.stream);
  if (of != device_ || unmade != nullptr)
    return over(invalid(fmt::format("{} on cuda:{} needs a stream that the program has made there (cudaStreamCreateWithFlags), and got {}",
                                    name, device_.index,
                                    of.kind == DeviceKind::host ? std::string{"the host's program order"}
                                    : of != device_             ? fmt::format("one of cuda:{}", of.index)
                                                                : std::string{unmade})));
  return communicator_->call(name, call.stream, call.limit, std::move(body));
}

Work NcclCollectives::all_reduce(std::byte* data, std::uint64_t count, DType type, ReduceOp op, const DeviceCall& call) {
  return begin("ncclAllReduce", check_reduction(type, op), call, [=](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t stream) {
    return nccl.all_reduce(data, data, count, nccl_type(type), nccl_operation(op), comm, stream);
  });
}

Work NcclCollectives::reduce_scatter(const std::byte* in, std::uint64_t in_count, std::byte* out, std::uint64_t out_count, DType type,
                                     ReduceOp op, const DeviceCall& call) {
  Result<void> fits = check_reduction(type, op);
  if (in_count != out_count * world())
    fits = invalid(fmt::format("reduce_scatter of {} elements to {} per rank in a world of {}", in_count, out_count, world()));
  const std::uint64_t size = out_count * size_of(type);
  if (fits.ok()) fits = check_apart("reduce_scatter", {in, size * world()}, {out, size}, out == in + me() * size);
  return begin("ncclReduceScatter", fits, call, [=](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t stream) {
    return nccl.reduce_scatter(in, out, out_count, nccl_type(type), nccl_operation(op), comm, stream);
  });
}

Work NcclCollectives::all_gather(DeviceSpan<const std::byte> in, DeviceSpan<std::byte> out, const DeviceCall& call) {
  Result<void> fits;
  if (out.size != in.size * world())
    fits = invalid(fmt::format("all_gather of {} bytes from {} ranks into {} bytes", in.size, world(), out.size));
  if (fits.ok()) fits = check_apart("all_gather", {in.data, in.size}, {out.data, out.size}, in.data == out.data + me() * in.size);
  return begin("ncclAllGather", fits, call, [=](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t stream) {
    return nccl.all_gather(in.data, out.data, in.size, bytes, comm, stream);
  });
}

Work NcclCollectives::broadcast(DeviceSpan<std::byte> data, Rank root, const DeviceCall& call) {
  Result<void> fits;
  if (root.value() >= world()) fits = invalid(fmt::format("broadcast from rank {} in a world of {}", root.value(), world()));
  return begin("ncclBroadcast", fits, call, [=](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t stream) {
    return nccl.broadcast(data.data, data.data, data.size, bytes, static_cast<int>(root.value()), comm, stream);
  });
}

Work NcclCollectives::all_to_all(DeviceSpan<const std::byte> in, DeviceSpan<std::byte> out, const DeviceCall& call) {
  Result<void> fits;
  if (in.size != out.size || in.size % world() != 0)
    fits = invalid(
        fmt::format("all_to_all of {} bytes into {} bytes among {} ranks: both are equal, in equal parts", in.size, out.size, world()));
  if (fits.ok()) fits = check_apart("all_to_all", {in.data, in.size}, {out.data, out.size});
  const std::uint64_t part = in.size / world();
  return begin("ncclAlltoAll", fits, call, [=, ranks = world()](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t stream) {
    if (nccl.all_to_all != nullptr) return nccl.all_to_all(in.data, out.data, part, bytes, comm, stream);
    Answers answers;
    for (std::uint32_t r = 0; r < ranks && part > 0; ++r) {
      answers(nccl.send(in.data + r * part, part, bytes, static_cast<int>(r), comm, stream));
      answers(nccl.receive(out.data + r * part, part, bytes, static_cast<int>(r), comm, stream));
    }
    return answers.first();
  });
}

Work NcclCollectives::exchange(std::span<const DeviceSendList> sends, std::span<const DeviceReceiveList> receives, const DeviceCall& call) {
  Result<void> fits;
  if (sends.size() != world() || receives.size() != world()) {
    fits = invalid(fmt::format("an exchange needs one list per rank: {} to send and {} to receive in a world of {}", sends.size(),
                               receives.size(), world()));
  } else {
    const auto same_size = [](const auto& sent, const auto& received) { return sent.size == received.size; };
    if (!std::ranges::equal(sends[me()], receives[me()], same_size))
      fits = invalid("what this rank sends itself does not agree, piece by piece, with what it receives of it");
  }
  // Copies: where NCCL does not come back, the caller returns before the body has ended.
  const std::vector<DeviceSendList> out(sends.begin(), sends.end());
  const std::vector<DeviceReceiveList> in(receives.begin(), receives.end());
  return begin("an exchange", fits, call, [out, in](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t stream) {
    Answers answers;
    for (std::size_t r = 0; r < out.size(); ++r) {
      for (const auto& piece : out[r])
        if (piece.size > 0) answers(nccl.send(piece.data, piece.size, bytes, static_cast<int>(r), comm, stream));
      for (const auto& piece : in[r])
        if (piece.size > 0) answers(nccl.receive(piece.data, piece.size, bytes, static_cast<int>(r), comm, stream));
    }
    return answers.first();
  });
}

Work NcclCollectives::send_receive(DeviceSpan<const std::byte> out, DeviceSpan<std::byte> in, Rank peer, const DeviceCall& call) {
  Result<void> fits;
  if (peer.value() >= world()) fits = invalid(fmt::format("rank {} in a world of {}", peer.value(), world()));
  else if (peer == membership_.rank) fits = invalid("a rank cannot send to itself, or receive from itself, in a call between two");
  const char* name = in.size == 0 ? "ncclSend" : out.size == 0 ? "ncclRecv" : "ncclSend and ncclRecv";
  return begin(name, fits, call, [=, to = static_cast<int>(peer.value())](const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t stream) {
    Answers answers;
    if (out.size > 0) answers(nccl.send(out.data, out.size, bytes, to, comm, stream));
    if (in.size > 0) answers(nccl.receive(in.data, in.size, bytes, to, comm, stream));
    return answers.first();
  });
}

}  // namespace elrun::inline v0
