#pragma once
/// \file Loader: reads the samples of coming slots ahead, on a thread of its own, while this one computes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <elrun/export.hpp>
#include <elrun/job.hpp>

namespace elrun::inline v0 {

/// Batches of bytes by lists of ids: what is under every Loader<T>. Use from one thread.
class ELRUN_API BatchLoader {
 public:
  using Ids = std::vector<std::uint64_t>;
  struct Options {
    std::size_t item_bytes = 0;
    std::size_t items_max = 0;  ///< Of one batch; a longer list is an Error (invalid_argument).
    std::size_t ahead = 2;      ///< Batches that are read ahead; there is memory for two more.
  };
  /// Fills one item, which is all zero bytes before. Called on the loader's thread and on that of `get`, at times on both at once.
  using Fetch = std::function<void(std::uint64_t id, std::span<std::byte> item)>;
  /// The lists that will probably be asked for next, in order, at most so many. Called inside `get`.
  using Next = std::function<std::vector<Ids>(std::size_t count)>;

  /// Allocates all memory. Throws Error (invalid_argument) for options without size, or beyond what can be allocated.
  BatchLoader(const Options& options, Fetch fetch, Next next);
  BatchLoader(BatchLoader&&) noexcept;
  BatchLoader& operator=(BatchLoader&&) = delete;
  /// Waits for at most one item that is being fetched. In a forked child it waits for nothing.
  ~BatchLoader();

  /// The items of `ids` in order, valid until the next call. They depend on `ids` alone: what was not foreseen is
  /// fetched now. Throws what `fetch` threw; and Error (`refused`) in a forked child, where the loader's thread is not.
  [[nodiscard]] std::span<const std::byte> get(std::span<const std::uint64_t> ids);
  /// Batches that `get` found read, or being read, so far.
  [[nodiscard]] std::uint64_t foreseen() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Samples of type T. `fetch(id, sample)` fills one, and `sample` is all zero bytes before, so all memory of a loader becomes resident: (ahead + 2) batches of T. It may wait for a disk, and must not depend on anything but the id. It is
/// called on the loader's thread and on that of `get`, at times on both at once. Use the loader itself from one thread.
/// A loader for the samples of steps, and another one for those of evaluations, where these are other data.
///
///     elrun::Loader<Digit> digits{job, [&](std::uint64_t id, Digit& digit) { read(id, digit); }};
///     for (auto& slot : step->slots()) train(digits.get(slot.samples()));
template <class T>
class Loader {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 64);

 public:
  /// After `job.configure`. The job outlives the loader; so does all that `fetch` refers to.
  Loader(const Job& job, std::function<void(std::uint64_t, T&)> fetch, std::size_t ahead = 2)
      : batches_{{.item_bytes = sizeof(T), .items_max = static_cast<std::size_t>(job.plan().micro_batch), .ahead = ahead},
                 [call = std::move(fetch)](std::uint64_t id, std::span<std::byte> item) { call(id, *reinterpret_cast<T*>(item.data())); },
                 [&job](std::size_t count) { return job.samples_ahead(count); }} {}
  /// One sample per id, in order, valid until the next call. Throws what `fetch` threw.
  [[nodiscard]] std::span<const T> get(std::span<const std::uint64_t> ids) {
    return {reinterpret_cast<const T*>(batches_.get(ids).data()), ids.size()};
  }
  /// Batches that `get` found read, or being read, so far.
  [[nodiscard]] std::uint64_t foreseen() const { return batches_.foreseen(); }

 private:
  BatchLoader batches_;
};

}  // namespace elrun::inline v0
