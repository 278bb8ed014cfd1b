#pragma once
/// \file SlotWriter: what a rank's Staging gets from its process: memory for its slot, the line to the process that writes it to the storage, and copies that go on beside the job.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "lib/base/bytes.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread, but for `say`, which a copy calls as well. At most one line is open. It breaks when the other end is gone: then what was said may never have been heard.
class SlotWriter {
 public:
  virtual ~SlotWriter() = default;

  /// There is one that writes slots of this version.
  [[nodiscard]] virtual bool is_there() const = 0;
  /// Fails with `exhausted` where there is no such memory. It is shared with the writer once it is passed, and lives as long as either of them holds it.
  [[nodiscard]] virtual Result<StagingSlot> take_memory(std::uint64_t record_bytes, std::uint64_t data_bytes) {
    return StagingSlot::make(record_bytes, data_bytes);
  }

  /// Opens the line, which is closed.
  [[nodiscard]] virtual Result<void> connect() = 0;
  /// Closes it; the writer lets go of the slot. Does nothing where it is closed.
  virtual void hang_up() = 0;
  [[nodiscard]] virtual bool is_connected() const = 0;
  /// The line is open here, and the writer is gone.
  [[nodiscard]] virtual bool has_ended() const = 0;
  /// `SlotWord::slot`, with this slot.
  [[nodiscard]] virtual Result<void> pass(const StagingSlot& slot) = 0;
  /// Any other word. Never waits.
  [[nodiscard]] virtual Result<void> say(SlotWord word) = 0;
  /// The next packet; nothing where none is there. The end of the line is a failure.
  [[nodiscard]] virtual Result<std::optional<ByteVector>> packet() = 0;
  /// Until a packet may be there or the line has ended, at most for this long.
  virtual void wait_for_packet(Duration at_most) = 0;

  /// Calls `copy` once, beside the job, or at once. `finish_copy` follows before the next one.
  virtual void copy_beside(std::function<void()> copy) = 0;
  /// Returns when it has returned; at once where there is none, and in a forked child, which lets go of it.
  virtual void finish_copy() = 0;
};

/// `elrun ckptd` of this node, which listens at `socket`; empty: there is none. Copies have a thread.
[[nodiscard]] std::unique_ptr<SlotWriter> slot_writer_at(Path socket);

}  // namespace elrun::inline v0
