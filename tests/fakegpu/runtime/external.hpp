#pragma once
/// \file How another fake library (NCCL) puts operations on the streams of the fake devices. Link with the fake libcudart.so.13.
///
/// An operation has three moments, all on the thread that runs the streams, one operation at a time:
///   start()  once, when everything before it on the stream is done and every event it waits for has happened. `reads` are readable.
///   ready()  asked again and again until it says that the operation can end. Other streams go on in between.
///   run()    once. `reads` are readable and `writes` writable.
/// None of them may call the CUDA runtime, or block: they run under the runtime's lock.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fakegpu {

/// Device or pinned memory that an operation reads or writes as a whole.
struct Range {
  const void* begin = nullptr;
  std::size_t bytes = 0;
};

struct ExternalOperation {
  std::string name;                  ///< For reports, as "ncclAllGather of 4096 bytes per rank (call 7)".
  std::vector<Range> reads, writes;  ///< Each within one allocation; a range outside of any is reported, and refused.
  std::function<void()> start;       ///< May be empty.
  std::function<bool()> ready;       ///< May be empty: the operation is ready at once.
  std::function<void()> run;         ///< May be empty.
};

/// An operation that was enqueued.
class Ticket;
using TicketPtr = std::shared_ptr<Ticket>;

/// Puts the operation behind what is on `stream`. As for a kernel, the stream's device has to be the current one. `ticket` may be null.
cudaError_t enqueue(cudaStream_t stream, ExternalOperation operation, TicketPtr* ticket);

/// The operation is given up, as by ncclCommAbort: run() will not be called, its stream goes on, and `writes` become garbage. Whoever
/// reads that before it is written again is reported. Nothing happens where it has already run. From any thread.
void give_up(const TicketPtr& ticket);

/// Whether run() has ended, or the operation was given up and its stream went on.
[[nodiscard]] bool is_over(const TicketPtr& ticket);

/// The host has waited for this operation, which is over, as by an ncclCommAbort that returned: what it used may be freed.
void host_has_waited(const TicketPtr& ticket);

/// Something that a ready() depends on has changed. Without this call it is asked again within a millisecond.
void wake();

/// Runs what can run, at most `operations` of it. For a call of the other library that makes progress, such as a query.
void make_progress(std::size_t operations);

/// The device whose memory this is; -1 for memory of the host, pinned memory among it.
[[nodiscard]] int device_of(const void* pointer);
/// The device of a stream; -1 for what is no stream.
[[nodiscard]] int device_of_stream(cudaStream_t stream);

/// A problem that the other library found: counted, printed and exit code as for one of the runtime's own.
void report(const std::string& what);

/// Below `bound`, from the seed of the process (FAKEGPU_SEED).
[[nodiscard]] std::uint64_t random_below(std::uint64_t bound);

}  // namespace fakegpu
