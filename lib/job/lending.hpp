#pragma once
/// \file Lending: memory of the job that peers of its host read where it lies. Where there is none, private memory does, and no
/// bit depends on it: ranks need not agree.

#include <cstdint>
#include <functional>
#include <optional>

#include <elrun/process_group.hpp>

#include "lib/base/log.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

class Lending {
 public:
  using Make = std::function<Result<SharedBuffer>(Bytes)>;
  /// `make`: none where nobody is there to read.
  Lending(Make make, const Log& log) : make_{std::move(make)}, log_{log} {}

  /// Zeros. Nothing: it is to be private. The first failure is told.
  [[nodiscard]] std::optional<SharedBuffer> memory(std::uint64_t bytes);
  /// To the peers of a generation, in which it was not shown yet: a group forgets what another one knew.
  void show(JobWorld& world, const std::optional<SharedBuffer>& memory);

 private:
  void tell_once(const Failure& why);
  Make make_;
  const Log& log_;
  bool told_ = false;
};

}  // namespace elrun::inline v0
