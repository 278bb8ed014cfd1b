#pragma once
/// \file Streams, events, and the operations between them. All under the runtime's lock.

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/fakegpu/runtime/clock.hpp"
#include "tests/fakegpu/runtime/external.hpp"
#include "tests/fakegpu/runtime/history.hpp"
#include "tests/fakegpu/runtime/ipc.hpp"

namespace fakegpu {

struct Stream;

class Ticket {
 public:
  bool given_up = false, over = false;
  Clock clock;  ///< Once it is over: what had happened then, itself included.
};

/// One recording of an event. A wait keeps the recording that was the last when the wait was enqueued.
struct Recording {
  bool done = false;
  SharedEventPtr shared;     ///< Of an event that other processes know: this is its `number`-th recording,
  std::uint64_t number = 0;  ///< which may be another process's.
  /// Whether it has happened, here or in another process.
  [[nodiscard]] bool happened() const { return done || (shared != nullptr && shared->done >= number); }
  Clock clock;  ///< What had happened before it.
  std::chrono::steady_clock::time_point when;
};

struct Event {
  int device = 0;
  unsigned flags = 0;
  std::shared_ptr<Recording> latest;  ///< Null: never recorded.
  SharedEventPtr shared;              ///< Null: no other process knows it.
  int file = -1;                      ///< The memory file of `shared`, in the process that made it.
  ~Event();
  /// The recording that a wait means which is enqueued now. Null: none yet.
  [[nodiscard]] std::shared_ptr<Recording> last_recording() const;
};

/// Work on a stream.
struct Operation {
  enum class Kind : std::uint8_t { kernel, copy, record, wait, host_function, external };
  Kind kind = Kind::copy;
  std::string name;                  ///< In words, for reports.
  std::uint64_t number = 0;          ///< Of all operations of the process, in order of enqueuing.
  std::vector<Range> reads, writes;  ///< Whole ranges; a kernel's accesses are seen as they happen.
  std::function<void()> start;
  std::function<bool()> ready;
  std::function<void()> run;
  std::shared_ptr<Recording> recording;      ///< What a wait waits for, or a record completes.
  std::shared_ptr<const Clock> enqueued_at;  ///< What the host knew to have ended.
  std::shared_ptr<Ticket> ticket;            ///< Of an external operation.
  History::Index past = 0;                   ///< Its entry in the history, once started.
  bool started = false;
};

struct Stream {
  Actor actor = 0;
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  std::uint64_t number = 0;  ///< For reports; the legacy streams are 0.
  bool legacy = false;
  bool of_thread = false;  ///< cudaStreamPerThread of some thread.
  bool destroyed = false;  ///< Gone for the program; what is enqueued still runs.
  Clock clock;             ///< What happened before whatever comes next on it.
  std::deque<Operation> queue;
  std::uint64_t pushed = 0, done = 0;
  std::uint64_t work = 0;           ///< What the program enqueued, without what the order with the legacy stream needs.
  std::uint64_t legacy_waited = 0;  ///< How much of it the legacy stream was made to wait for.
  std::uint64_t waited_legacy = 0;  ///< How much of the legacy stream it was made to wait for.

  [[nodiscard]] bool blocking() const { return !legacy && (flags & cudaStreamNonBlocking) == 0; }
  [[nodiscard]] std::string name() const;
};

/// All streams and events of the process.
class Streams {
 public:
  Stream& create(int device, unsigned flags, int priority);
  /// Null for a handle that is no stream, or was destroyed. A null handle is the legacy stream of `device`.
  [[nodiscard]] Stream* find(cudaStream_t handle, int device);
  [[nodiscard]] Stream& legacy(int device);
  void destroy(Stream& stream);
  /// Destroyed streams whose queue is empty go.
  void sweep();
  /// As cudaDeviceReset: nothing that is enqueued runs, and no handle is valid any more.
  void drop_all_of(int device);

  cudaEvent_t create_event(int device, unsigned flags);
  [[nodiscard]] Event* find_event(cudaEvent_t handle);
  void destroy_event(cudaEvent_t handle);

  [[nodiscard]] const std::vector<std::unique_ptr<Stream>>& all() const { return all_; }
  [[nodiscard]] std::size_t created() const { return created_; }
  [[nodiscard]] std::size_t events() const { return events_.size(); }

 private:
  Stream& add(int device, unsigned flags, int priority, bool legacy);
  std::vector<std::unique_ptr<Stream>> all_;
  struct FormerActor {
    Actor actor;
    std::uint32_t operations;
  };
  std::vector<FormerActor> former_;  ///< Of streams that are gone, to be used again.
  Actor actors_ = host_actor + 1;
  std::uint64_t numbered_ = 0;
  std::size_t created_ = 0;  ///< Not destroyed, legacy streams not counted.
  std::vector<Stream*> legacy_;
  std::unordered_map<cudaEvent_t, std::unique_ptr<Event>> events_;
};

}  // namespace fakegpu
