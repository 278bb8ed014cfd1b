#pragma once
/// \file An access of memory by the code of a twin.

#include <cstddef>
#include <string>

#include "tests/fakegpu/runtime/checker.hpp"

namespace fakegpu {

/// Tells the checker. Does not return where the access must not be made: the kernel is stopped.
void access_to(const void* p, std::size_t bytes, Access access);
/// A pointer of `type` that is not aligned to `alignment` is used at `where`. The kernel is stopped.
void misaligned_access(const void* p, std::size_t alignment, const std::string& type, const std::string& where);

}  // namespace fakegpu
