#include "samples/nn/engine.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

namespace nn {

// Threads that wait for a round of tasks, take the next index until there is none, and report back.
class Engine::Pool {
 public:
  explicit Pool(std::size_t threads) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // new threads inherit it: signals are the program's business
    std::string why;
    try {
      for (std::size_t worker = 1; worker < threads; ++worker) helpers_.emplace_back([this, worker] { help(worker); });
    } catch (const std::exception& error) {
      why = error.what();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (why.empty()) return;
    const std::size_t started = this->threads();
    stop();  // a thread that is not joined would end the process without a word
    throw std::runtime_error{
        "of " + std::to_string(threads) + " threads to compute with only " + std::to_string(started) + " could be started (" + why +
        "): set OMP_NUM_THREADS to what this process may have, or raise the limit (pids.max, ulimit -u, the container's memory)"};
  }
  ~Pool() { stop(); }
  [[nodiscard]] std::size_t threads() const { return helpers_.size() + 1; }

  void run(std::size_t count, Call call, void* task) {
    if (helpers_.empty() || count <= 1) {
      for (std::size_t index = 0; index < count; ++index) call(task, index, 0);
      return;
    }
    {
      const std::lock_guard lock{mutex_};
      count_ = count, call_ = call, task_ = task, busy_ = helpers_.size();
      next_.store(0, std::memory_order_relaxed);
      ++round_;
    }
    begin_.notify_all();
    take(0);
    std::unique_lock lock{mutex_};
    end_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void stop() {
    {
      const std::lock_guard lock{mutex_};
      stop_ = true;
    }
    begin_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }
  void take(std::size_t worker) {
    for (std::size_t index; (index = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) call_(task_, index, worker);
  }
  void help(std::size_t worker) {
    std::unique_lock lock{mutex_};
    for (std::size_t seen = 0;;) {
      begin_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      lock.unlock();
      take(worker);
      lock.lock();
      if (--busy_ == 0) end_.notify_one();
    }
  }

  std::mutex mutex_;  // over everything below but next_, which is only ever counted up within a round
  std::condition_variable begin_, end_;
  std::size_t round_ = 0, busy_ = 0, count_ = 0;
  Call call_ = nullptr;
  void* task_ = nullptr;
  bool stop_ = false;
  std::atomic<std::size_t> next_{0};
  std::vector<std::thread> helpers_;
};

namespace {

constexpr std::size_t tile_max = 256;  // rows and columns of a task; also how much of k is packed at a time
constexpr std::size_t tile_min = 64, tasks_wanted = 8, panel_max = 64;

typedef float Quad __attribute__((vector_size(16)));  // NOLINT: `using` drops the attribute in g++

// Four rows of four become four columns, in registers.
inline void transpose_quad(const float* const in[4], float* out, std::size_t out_stride) {
  Quad r[4];
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(&r[i], in[i], sizeof(Quad));
  const Quad a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const Quad c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7), d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  const Quad t[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                     __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(out + i * out_stride, &t[i], sizeof(Quad));
}

// Panels are short: a call of memcpy for each costs more than the copy.
inline void copy(const float* in, std::size_t n, float* out) {
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    Quad q;
    std::memcpy(&q, in + i, sizeof q);
    std::memcpy(out + i, &q, sizeof q);
  }
  for (; i < n; ++i) out[i] = in[i];
}

// What packing and cutting ask of a matrix: where an element is, whether `n` elements of a column (of a row) adjoin in
// memory, and the same matrix without its first rows and columns.
const float* at(const View& m, std::size_t i, std::size_t p) { return m.data + i * m.row + p * m.column; }
bool column_adjoins(const View& m, std::size_t, std::size_t) { return m.row == 1; }
bool row_adjoins(const View& m, std::size_t, std::size_t) { return m.column == 1; }
View from(const View& m, std::size_t i, std::size_t p) { return {at(m, i, p), m.row, m.column}; }

const float* at(const Gathered& m, std::size_t i, std::size_t p) { return m.data + m.rows[i] + m.columns[p]; }
bool column_adjoins(const Gathered& m, std::size_t i, std::size_t n) { return m.rows[i + n - 1] - m.rows[i] == n - 1; }
bool row_adjoins(const Gathered& m, std::size_t p, std::size_t n) { return m.columns[p + n - 1] - m.columns[p] == n - 1; }
Gathered from(const Gathered& m, std::size_t i, std::size_t p) { return {m.data, m.rows + i, m.columns + p}; }

// Copies m(i, p), i below `count`, p below `k`, into panels of `panel` values of i, p after p; the last panel is padded
// with zero.
template <class Matrix>
void pack(const Matrix& m, std::size_t count, std::size_t k, std::size_t panel, float* out) {
  for (std::size_t i = 0; i < count; i += panel, out += panel * k) {
    const std::size_t n = std::min(panel, count - i);
    if (n < panel) std::fill(out, out + panel * k, 0.0f);
    if (column_adjoins(m, i, n)) {
      for (std::size_t p = 0; p < k; ++p) copy(at(m, i, p), n, out + p * panel);
      continue;
    }
    for (std::size_t r = 0; r < n; r += 4) {
      const std::size_t rows = std::min<std::size_t>(4, n - r);
      for (std::size_t p = 0; p < k;) {
        if (rows == 4 && k - p >= 4 && row_adjoins(m, p, 4)) {
          const float* const in[4] = {at(m, i + r, p), at(m, i + r + 1, p), at(m, i + r + 2, p), at(m, i + r + 3, p)};
          transpose_quad(in, out + p * panel + r, panel);
          p += 4;
        } else {
          for (std::size_t q = 0; q < rows; ++q) out[p * panel + r + q] = *at(m, i + r + q, p);
          ++p;
        }
      }
    }
  }
}

// How a product is cut: smaller tiles for smaller products, so that several threads find work. By size alone.
struct Cut {
  std::size_t rows = tile_max, columns = tile_max;
  explicit Cut(Extent e) {
    const auto tiles = [&] { return ((e.rows + rows - 1) / rows) * ((e.columns + columns - 1) / columns); };
    while (tiles() < tasks_wanted && (rows > tile_min || columns > tile_min)) (rows > columns ? rows : columns) /= 2;
  }
};

const Kernels& checked(Isa isa) {
  const Kernels* found = nn::kernels(isa);
  if (found == nullptr)
    throw std::runtime_error{std::string{"this processor or this build has no "} + to_string(isa) + "; use one of nn::available()"};
  return *found;
}

}  // namespace

Engine::Engine(std::size_t threads, Isa isa)
    : kernels_{checked(isa)},
      scratch_(std::max<std::size_t>(threads, 1), std::vector<float>(2 * (tile_max + panel_max) * tile_max)),
      pool_{std::make_unique<Pool>(scratch_.size())} {}
Engine::~Engine() = default;

void Engine::fill_with_zeros(float* data, std::size_t count) { std::fill_n(data, count, 0.0f); }
void Engine::write(std::span<const float> from, float* to) { std::copy_n(from.data(), from.size(), to); }
void Engine::read(const float* from, std::span<float> to) { std::copy_n(from, to.size(), to.data()); }

std::size_t Engine::threads() const { return pool_->threads(); }
void Engine::run(std::size_t count, Call call, void* task) { pool_->run(count, call, task); }

void Engine::product(Extent e, View a, View b, Target c, Into into) {
  const Cut cut{e};
  const std::size_t across = (e.columns + cut.columns - 1) / cut.columns, down = (e.rows + cut.rows - 1) / cut.rows;
  parallel_for(across * down, [&](std::size_t index, std::size_t worker) {
    const std::size_t i = index / across * cut.rows, j = index % across * cut.columns;
    product_here(worker, {std::min(cut.rows, e.rows - i), std::min(cut.columns, e.columns - j), e.k}, {a.data + i * a.row, a.row, a.column},
                 {b.data + j * b.column, b.row, b.column}, {c.data + i * c.stride + j, c.stride}, into);
  });
}

// Packs a block of a and of b, multiplies, and goes on along k. Between blocks the sums rest in c: an fp32 number that
// is stored and loaded again is the same number, so each element stays one chain.
template <class A, class B>
void Engine::multiply(std::size_t worker, Extent e, const A& a, const B& b, Target c, Into into) {
  float* const panels_a = scratch_[worker].data();
  float* const panels_b = panels_a + (tile_max + panel_max) * tile_max;
  for (std::size_t j = 0; j < e.columns; j += tile_max)
    for (std::size_t p = 0; p < e.k; p += tile_max) {
      const std::size_t n = std::min(tile_max, e.columns - j), k = std::min(tile_max, e.k - p);
      pack(from(b, p, j).transposed(), n, k, kernels_.tile_columns, panels_b);
      for (std::size_t i = 0; i < e.rows; i += tile_max) {
        const std::size_t m = std::min(tile_max, e.rows - i);
        pack(from(a, i, p), m, k, kernels_.tile_rows, panels_a);
        kernels_.product(panels_a, panels_b, m, n, k, c.data + i * c.stride + j, c.stride, p > 0 || into == Into::sum);
      }
    }
}

void Engine::product_here(std::size_t worker, Extent e, View a, View b, Target c, Into into) { multiply(worker, e, a, b, c, into); }
void Engine::product_here(std::size_t worker, Extent e, Gathered a, View b, Target c, Into into) { multiply(worker, e, a, b, c, into); }
void Engine::product_here(std::size_t worker, Extent e, Gathered a, Gathered b, Target c, Into into) { multiply(worker, e, a, b, c, into); }

}  // namespace nn
