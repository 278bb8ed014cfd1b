#pragma once
/// \file Streams that no program has made: CUDA's own names for one, and what a refusal calls it.

#include <cstdint>

#include <elrun/device.hpp>

namespace elrun::inline v0 {

/// What CUDA calls the stream that this handle stands for, where nobody has made it: null, cudaStreamLegacy (1) and cudaStreamPerThread (2), numbers of CUDA's ABI. Null: it was made.
/// The last means another stream on each thread, and elrun gives work to a stream from threads of its own; the other two wait for the streams of others.
[[nodiscard]] inline const char* default_stream(Stream stream) {
  switch (reinterpret_cast<std::uintptr_t>(stream.handle())) {
    case 0: return "CUDA's default stream";
    case 1: return "CUDA's default stream (cudaStreamLegacy)";
    case 2: return "CUDA's default stream of each thread (cudaStreamPerThread)";
    default: return nullptr;
  }
}

}  // namespace elrun::inline v0
