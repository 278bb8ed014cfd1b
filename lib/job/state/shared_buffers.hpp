#pragma once
/// \file SharedBuffers: makes memory that peers on the same host read in place (zero-copy), and shows it to them. Where none can be had
/// the caller takes `private_memory`, in which all else of a job lies as well. No result depends on which it is, so ranks need not agree.

#include <cstdint>
#include <functional>
#include <optional>

#include <elrun/process_group.hpp>

#include "lib/base/log.hpp"
#include "lib/device/memory.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

class SharedBuffers {
 public:
  using Make = std::function<Result<SharedBuffer>(Bytes)>;
  /// `make`: none where nobody is there to read.
  SharedBuffers(Make make, const Log& log, Memory& memory = host_memory()) : make_{std::move(make)}, log_{log}, memory_{memory} {}

  [[nodiscard]] Memory& private_memory() { return memory_; }
  /// On a device nothing is shared in this way.
  [[nodiscard]] bool on_host() const { return memory_.device().kind == DeviceKind::host; }

  /// Whether a child that the program forks has the memory, too: then it sees what its parent writes, and could write there itself.
  enum class InChildren : bool { absent, present };
  /// Filled with zeros. Nothing: take private memory. The first failure is logged.
  [[nodiscard]] std::optional<SharedBuffer> make(std::uint64_t bytes, InChildren in_children);
  /// Makes memory that is absent in children, for a thread that may outlive this object: it says nothing of a failure. Empty: private memory is taken here.
  [[nodiscard]] std::function<std::optional<SharedBuffer>(std::uint64_t bytes)> maker() const;
  /// Shows it to the peers of this generation. Each generation has a new group, which has to be shown everything anew.
  void show(JobWorld& world, const std::optional<SharedBuffer>& memory);

 private:
  void tell_once(const Failure& why);
  Make make_;
  const Log& log_;
  Memory& memory_;
  bool told_ = false;
};

}  // namespace elrun::inline v0
