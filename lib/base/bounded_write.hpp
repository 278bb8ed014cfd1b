#pragma once
/// \file Writing to a pipe or a terminal whose reader may have stopped reading.

#include <string_view>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// How long to wait for room. Signals lengthen no wait.
struct WriteTimeout {
  Duration first;  ///< Before the first piece.
  Duration next;   ///< Before each later one: a reader has it for the rest of what was begun.
};

/// Writes all of `bytes` in pieces that poll promises room for. False: there was no room in time, and the rest is not written. True also where
/// writing fails: nobody is there to read it. No SIGPIPE comes of that.
[[nodiscard]] bool write_within(int fd, std::string_view bytes, WriteTimeout timeout);

}  // namespace elrun::inline v0
