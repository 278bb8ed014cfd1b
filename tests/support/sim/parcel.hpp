#pragma once
/// \file Parcel: what programs of one generation send each other.

#include <cstdint>

#include <elrun/ids.hpp>

#include "lib/base/bytes.hpp"

namespace elrun::sim {

/// What one rank sends another in one exchange of one generation.
struct Parcel {
  Generation generation;
  std::uint32_t group = 0;  ///< How often the program had joined its peers there: once more when the job begins again.
  std::uint32_t from = 0;
  std::uint64_t exchange = 0;  ///< The number of the exchange in this generation, on the sender.
  ByteVector bytes;
};
/// The connection to a peer has ended; group 0: of whatever group.
struct PeerLost {
  Generation generation;
  std::uint32_t group = 0, rank = 0;
};

}  // namespace elrun::sim
