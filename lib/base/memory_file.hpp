#pragma once
/// \file A file that lies in memory alone, for what processes of one machine show each other.

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/fd.hpp"

namespace elrun::inline v0 {

/// An empty file that may be sealed and never executed, and that may get `size` bytes. `name`: how /proc shows it. Fails with `no_space` where the process's
/// limit of file sizes (`ulimit -f`) is less: a file that grows beyond that ends the process by a signal.
[[nodiscard]] Result<Fd> memory_file(const char* name, Bytes size);

}  // namespace elrun::inline v0
