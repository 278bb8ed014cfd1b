#pragma once
/// \file What layers compute with: threads, one instruction set's kernels, and scratch memory. None of it moves a bit.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "samples/nn/kernels.hpp"

namespace nn {

/// A matrix that is only read: element (i, j) is `data[i * row + j * column]`.
struct View {
  const float* data;
  std::size_t row, column = 1;
  [[nodiscard]] View transposed() const { return {data, column, row}; }
};
/// A matrix that is only read, and whose rows and columns lie where two tables say: element (i, j) is
/// `data[rows[i] + columns[j]]`. Both ascend, each number once. An image seen through a window is one (conv.hpp).
struct Gathered {
  const float* data;
  const std::uint32_t *rows, *columns;
  [[nodiscard]] Gathered transposed() const { return {data, columns, rows}; }
};
/// A matrix that is written: element (i, j) is `data[i * stride + j]`.
struct Target {
  float* data;
  std::size_t stride;
};
struct Extent {
  std::size_t rows, columns, k;
};
enum class Into { fresh, sum };  ///< Overwrite the target, or add to it.

/// Token ids where layers read them: on the host where they are given.
struct HostIds {
  const std::int32_t* hold(std::span<const std::int32_t> ids) { return ids.data(); }
};

/// Use from one thread. Work is cut by the problem's size alone and every piece is computed by one thread, so that the
/// number of threads shows in the time only. DeviceEngine (device_engine.hpp) stands in for it on a device, so what a model needs of either has
/// the same names there.
class Engine {
 public:
  using Value = float;  ///< Of weights and of what goes through layers.
  using Array = std::vector<float>;
  using Floats = Array;  ///< Of what stays in float whatever Value is.
  using Ids = HostIds;
  using Loss = float;
  /// Starts `threads - 1` threads that block all signals; the caller is the last one. Throws std::runtime_error with the remedy where they cannot all be started.
  explicit Engine(std::size_t threads = 1, Isa isa = available().back());
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Calls `task(index, worker)` for every index below `count`, each once, and returns when all have ended. Tasks do
  /// not throw. At any time at most one task has a given `worker`, a number below `threads()`.
  template <class Task>
  void parallel_for(std::size_t count, Task&& task) {
    using Plain = std::remove_reference_t<Task>;
    run(
        count, [](void* t, std::size_t index, std::size_t worker) { (*static_cast<Plain*>(t))(index, worker); },
        const_cast<std::remove_const_t<Plain>*>(&task));
  }
  /// The same in chunks: `task(first, last)` over [0, count).
  template <class Task>
  void parallel_chunks(std::size_t count, std::size_t chunk, Task&& task) {
    parallel_for((count + chunk - 1) / chunk, [&](std::size_t index, std::size_t) {
      const std::size_t first = index * chunk;
      task(first, count - first < chunk ? count : first + chunk);
    });
  }

  /// c (+)= a · b, cut into tiles that are spread over the threads.
  void product(Extent extent, View a, View b, Target c, Into into = Into::fresh);
  /// The same on the calling thread, inside a task of `worker`.
  void product_here(std::size_t worker, Extent extent, View a, View b, Target c, Into into = Into::fresh);
  void product_here(std::size_t worker, Extent extent, Gathered a, View b, Target c, Into into = Into::fresh);
  void product_here(std::size_t worker, Extent extent, Gathered a, Gathered b, Target c, Into into = Into::fresh);

  [[nodiscard]] Array array(std::size_t count) const { return Array(count); }
  [[nodiscard]] Floats floats(std::size_t count) const { return array(count); }
  [[nodiscard]] Ids ids(std::size_t) const { return {}; }
  void fill_with_zeros(float* data, std::size_t count);
  void write(std::span<const float> from, float* to);
  void read(const float* from, std::span<float> to);

  [[nodiscard]] std::size_t threads() const;
  [[nodiscard]] const Kernels& kernels() const { return kernels_; }

 private:
  using Call = void (*)(void* task, std::size_t index, std::size_t worker);
  void run(std::size_t count, Call call, void* task);
  template <class A, class B>
  void multiply(std::size_t worker, Extent extent, const A& a, const B& b, Target c, Into into);

  class Pool;
  const Kernels& kernels_;
  std::vector<std::vector<float>> scratch_;  // per worker: panels of a, then of b
  std::unique_ptr<Pool> pool_;
};

}  // namespace nn
