// The parts of tests/gpu.sh that need a program: facts of the device, rates, kernels beside them, NCCL, memory shared between processes. Each prints a line as
// soon as it knows it. Exit code 77: no device.
//
//   gpu_suite facts|rates|kernels|nccl|ipc [--small]        --small: sizes for the fake devices, whose rates say nothing
//   gpu_suite library nccl|cublas_lt [FILE]                 whether a part's library is there: 76, and what to install, where it is not. What else is wrong with it, the part says itself

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/philox.hpp>
#include <elrun/process_group.hpp>

#include "kernels/convert.hpp"
#include "kernels/cuda/check.hpp"
#include "kernels/fold.hpp"
#include "kernels/granule.hpp"
#include "kernels/reduce.hpp"
#include "kernels/state_hash.hpp"
#include "kernels/update.hpp"
#ifdef SUITE_WITH_NCCL
#include "lib/comm/nccl/library.hpp"
#endif
#include "lib/device/handles.hpp"
#ifdef SUITE_IN_BF16
#include "samples/nn/bf16_engine.hpp"
#include "samples/nn/cublas_lt.hpp"
#include "samples/nn/layers.hpp"
#endif
#include "tests/gpu/update_table.hpp"

using namespace elrun;

namespace {

struct Sizes {
  std::uint64_t elements = std::uint64_t{1} << 28;  // many times any cache; one GiB of floats
  int repeats = 20, matrix = 8192;
  bool fake = false;
};

const Stream legacy{{DeviceKind::cuda, 0}, nullptr};

/// Milliseconds, the median of `repeats` after a warm-up.
template <class Work>
float median_ms(int repeats, const Work& work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  ELRUN_CUDA_CHECK(cudaEventCreate(&begin));
  ELRUN_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = -3; i < repeats; ++i) {
    ELRUN_CUDA_CHECK(cudaEventRecord(begin));
    work();
    ELRUN_CUDA_CHECK(cudaEventRecord(end));
    ELRUN_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    ELRUN_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 0) times.push_back(std::max(ms, 1e-6f));
  }
  ELRUN_CUDA_CHECK(cudaEventDestroy(begin));
  ELRUN_CUDA_CHECK(cudaEventDestroy(end));
  std::ranges::sort(times);
  return times[times.size() / 2];
}

template <class T>
DeviceSpan<T> on_device(const std::vector<T>& from) {
  T* data = nullptr;
  ELRUN_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data), from.size() * sizeof(T)));
  ELRUN_CUDA_CHECK(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  return {data, from.size()};
}

/// Random numbers: with zeros some devices are faster than with real data. One part of them, many times.
template <class T>
DeviceSpan<T> random_on_device(std::uint64_t count, std::uint64_t seed) {
  Rng rng{seed};
  std::vector<T> part(std::min<std::uint64_t>(count, 1u << 20));
  for (T& x : part) {
    const float value = unit_float(rng.next()) * 0.5f + 0.25f;
    if constexpr (std::is_same_v<T, bf16>) x = to_bf16(value);
    else x = value;
  }
  T* data = nullptr;
  ELRUN_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T)));
  for (std::uint64_t begin = 0; begin < count; begin += part.size())
    ELRUN_CUDA_CHECK(
        cudaMemcpy(data + begin, part.data(), std::min<std::uint64_t>(part.size(), count - begin) * sizeof(T), cudaMemcpyHostToDevice));
  return {data, count};
}

double gb_per_s(std::uint64_t bytes, float ms) { return static_cast<double>(bytes) / static_cast<double>(ms) * 1e-6; }

int facts() {
  cudaDeviceProp p{};
  int driver = 0, runtime = 0;
  ELRUN_CUDA_CHECK(cudaGetDeviceProperties(&p, 0));
  ELRUN_CUDA_CHECK(cudaDriverGetVersion(&driver));
  ELRUN_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  std::printf("device: %s, compute capability %d.%d, %d multiprocessors\n", p.name, p.major, p.minor, p.multiProcessorCount);
  std::printf("memory: %.1f GiB, L2 %d MiB\n", static_cast<double>(p.totalGlobalMem) / (1u << 30), p.l2CacheSize >> 20);
  std::printf("versions: driver for CUDA %d.%d, runtime %d.%d\n", driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  return 0;
}

double copy_rate(const Sizes& sizes) {
  const auto from = random_on_device<float>(sizes.elements, 1), to = random_on_device<float>(sizes.elements, 2);
  const float ms = median_ms(sizes.repeats, [&] {
    ELRUN_CUDA_CHECK(cudaMemcpyAsync(to.data, from.data, sizes.elements * sizeof(float), cudaMemcpyDeviceToDevice));
  });
  ELRUN_CUDA_CHECK(cudaFree(from.data));
  ELRUN_CUDA_CHECK(cudaFree(to.data));
  return gb_per_s(2 * sizes.elements * sizeof(float), ms);
}

/// bf16 by the machine's own cuBLAS, which is no part of elrun: found by its name. Returns the exit code: where it is there it has to work, but not on fake devices.
int matrix_rate(const Sizes& sizes) {
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"})
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return std::puts(
               "matrix rate: not run: no libcublas.so here: install cuBLAS (libcublas, of the CUDA toolkit), or name its folder in LD_LIBRARY_PATH"),
           0;
  using Create = int (*)(void**);
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*, int,
                       int, int, int);
  const auto create = reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"));
  const auto gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
  void* handle = nullptr;
  if (create == nullptr || gemm == nullptr || create(&handle) != 0)
    return std::puts(sizes.fake ? "matrix rate: not run: cuBLAS knows no fake devices" : "matrix rate: cuBLAS does not start"),
           sizes.fake ? 0 : 1;
  const auto n = sizes.matrix;
  const std::uint64_t count = static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(n);
  const auto a = random_on_device<bf16>(count, 3), b = random_on_device<bf16>(count, 4), c = random_on_device<bf16>(count, 5);
  constexpr int bf16_type = 14, compute_32f = 68, default_algorithm = -1;  // CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
  const float one = 1, zero = 0;
  int said = 0;
  const float ms = median_ms(sizes.repeats, [&] {
    said |= gemm(handle, 0, 0, n, n, n, &one, a.data, bf16_type, n, b.data, bf16_type, n, &zero, c.data, bf16_type, n, compute_32f,
                 default_algorithm);
  });
  if (said != 0) return std::printf("matrix rate: cublasGemmEx gave %d\n", said), 1;
  std::printf("matrix rate, bf16, %d x %d x %d: %.0f TFLOP/s\n", n, n, n,
              2.0 * static_cast<double>(count) * n / static_cast<double>(ms) * 1e-9);
  return 0;
}

int rates(const Sizes& sizes) {
  std::printf("copy rate, read and written: %.0f GB/s median of %d\n", copy_rate(sizes), sizes.repeats);
  return matrix_rate(sizes);
}

/// One line for each kernel: bytes that it must move for an element, its rate, and its part of the copy rate of this run.
class Lines {
 public:
  Lines(const Sizes& sizes, double copy) : sizes_{sizes}, copy_{copy} {}
  template <class Work>
  void print(const char* what, double bytes, const Work& work) const {
    const float ms = median_ms(sizes_.repeats, work);
    const double rate = gb_per_s(static_cast<std::uint64_t>(bytes * static_cast<double>(sizes_.elements)), ms);
    std::printf("%s: %.4g bytes per element, %.0f GB/s, %.1f %% of the copy rate\n", what, bytes, rate, rate / copy_ * 100);
  }

 private:
  const Sizes& sizes_;
  double copy_;
};

void optimizers(const Sizes& sizes, const Lines& lines) {
  const std::uint64_t n = sizes.elements;
  const auto p = random_on_device<float>(n, 1), m = random_on_device<float>(n, 2), v = random_on_device<float>(n, 3),
             g = random_on_device<float>(n, 4);
  const auto rounded = random_on_device<bf16>(n, 5);
  std::vector<UpdateRun> runs;  // as the runs of 12 layers lie: 51, every other one without decay
  for (std::uint64_t begin = 0, i = 0; begin < n; begin += runs.back().size, ++i) {
    const std::uint64_t size = std::min(n - begin, i % 2 == 0 ? n / 26 + 64 : std::uint64_t{768});
    runs.push_back({begin, begin, begin, size, i % 2 == 0});
  }
  const test::UpdateTableOnDevice table{runs};
  const OptimizerStep adamw =
      AdamWStep{.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .bias1 = 0.1f, .bias2 = 0.05f};
  const UpdateArrays arrays{p.data, {m.data, v.data}, g.data}, with_copy{p.data, {m.data, v.data}, g.data, rounded.data};
  lines.print("adamw", 28, [&] { update_async(arrays, table.view(), adamw, legacy); });
  lines.print("adamw with bf16 copy", 30, [&] { update_async(with_copy, table.view(), adamw, legacy); });
  lines.print("lion with bf16 copy", 22,
              [&] { update_async(with_copy, table.view(), LionStep{.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.99f}, legacy); });
  ELRUN_CUDA_CHECK(cudaDeviceSynchronize());
  for (void* array : {static_cast<void*>(p.data), static_cast<void*>(m.data), static_cast<void*>(v.data), static_cast<void*>(g.data),
                      static_cast<void*>(rounded.data)})
    ELRUN_CUDA_CHECK(cudaFree(array));
}

void reductions(const Sizes& sizes, const Lines& lines) {
  const std::uint64_t n = sizes.elements;
  std::vector<ReducePiece> pieces{{0, 0, n}};
  const std::uint64_t tiles = count_tiles(pieces);
  const auto piece = on_device(pieces);
  std::vector<ReduceOperand> floats, halves;
  for (std::uint64_t o = 0; o < 4; ++o) {
    const std::uint32_t additions = o == 1 ? 1 : o == 3 ? 2 : 0;
    floats.push_back({random_on_device<float>(n, o).data, additions, false, true});
    halves.push_back({o == 0 ? floats[0].base : random_on_device<bf16>(n, o).data, additions, o != 0, true});
  }
  const auto four_floats = on_device(floats), three_halves = on_device(halves);
  const auto result = random_on_device<float>(n, 9), sums = random_on_device<float>(tiles, 9);
  const auto table = [&](const DeviceSpan<ReduceOperand>& operands, const std::vector<ReduceOperand>& same) {
    return ReduceTable{operands.data, piece.data, 4, 1, tiles, depth_of(same)};
  };
  lines.print("canonical reduce of 4 fp32, with squares", 20,
              [&] { reduce_async(table(four_floats, floats), result.data, sums.data, legacy); });
  lines.print("canonical reduce of 1 fp32 and 3 bf16, with squares", 14,
              [&] { reduce_async(table(three_halves, halves), result.data, sums.data, legacy); });
  const DeviceSpan<float> left{static_cast<float*>(floats[0].base), n}, right{static_cast<float*>(floats[1].base), n};
  const DeviceSpan<bf16> half{static_cast<bf16*>(halves[1].base), n};
  const auto sum = on_device(std::vector<std::uint64_t>{0});
  lines.print("fold", 12, [&] { add_into_async(left, right, legacy); });
  lines.print("fold of bf16", 10, [&] { add_into_async(left, half, legacy); });
  lines.print("to bf16", 6, [&] { to_bf16_async(left, half, legacy); });
  lines.print("to float", 6, [&] { to_float_async(half, left, legacy); });
  lines.print("sums of squares", 4, [&] { sums_of_squares_async(right, sums, legacy); });
  lines.print("state hash", 4, [&] { mix_sum_async(as_bytes(right), 0, 0, sum.data, legacy); });
  ELRUN_CUDA_CHECK(cudaDeviceSynchronize());
}

#ifdef SUITE_IN_BF16
/// gpt's: logits of GPT-2's vocabulary in bf16, of which each moves twice.
void cross_entropies(const Sizes& sizes, const Lines& lines) {
  constexpr std::uint64_t classes = 50304;
  const std::uint64_t rows = 4 * sizes.elements / classes, count = rows * classes;  // 5 for the fake devices, 21,345 else
  const auto logits = random_on_device<bf16>(count, 1);
  const auto targets = on_device(std::vector<std::int32_t>(rows, 1000));
  const auto losses = random_on_device<float>(rows + 1, 2);
  nn::Bf16Engine engine{legacy, 256};
  const double logits_of_element = static_cast<double>(count) / static_cast<double>(sizes.elements);
  lines.print("cross-entropy of bf16 logits, read and written once", 4 * logits_of_element,
              [&] { nn::cross_entropy(engine, rows, classes, targets.data, logits.data, losses.data); });
  ELRUN_CUDA_CHECK(cudaDeviceSynchronize());
}
#endif

int kernels(const Sizes& sizes) {
  const double copy = copy_rate(sizes);
  std::printf("copy rate of this run: %.0f GB/s\n", copy);
  const Lines lines{sizes, copy};
  optimizers(sizes, lines);
  reductions(sizes, lines);
#ifdef SUITE_IN_BF16
  cross_entropies(sizes, lines);
#endif
  return 0;
}

/// A world of one, made and ended a hundred times.
int nccl() {
  constexpr int rounds = 100;
  auto session = Session::open(WorkerKind::program, deadline_in(std::chrono::seconds{60}));
  if (!session.ok()) return std::printf("session: %s\n", message(session.failure()).c_str()), 1;
  const Device device{DeviceKind::cuda, 0};
  std::size_t free_first = 0, free_last = 0, total = 0;
  for (int round = 0; round < rounds; ++round) {
    auto group = ProcessGroup::join(**session, {.name = "round " + std::to_string(round), .device = device});
    if (!group.ok()) return std::printf("round %d: %s\n", round, message(group.failure()).c_str()), 1;
    {
      const OwnedStream stream{device};
      const auto data = on_device(std::vector<float>(1000, static_cast<float>(round)));
      if (const auto sum = group->on(stream.view()).all_reduce(data).wait(deadline_in(std::chrono::seconds{60})); !sum.ok())
        return std::printf("round %d: %s\n", round, message(sum.failure()).c_str()), 1;
      std::vector<float> out(1000);
      ELRUN_CUDA_CHECK(cudaMemcpy(out.data(), data.data, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
      if (out[999] != static_cast<float>(round)) return std::printf("round %d: a wrong sum\n", round), 1;
      ELRUN_CUDA_CHECK(cudaFree(data.data));
    }
    if (const auto over = group->finish(); !over.ok()) return std::printf("round %d: %s\n", round, message(over.failure()).c_str()), 1;
    if (round == 9) ELRUN_CUDA_CHECK(cudaMemGetInfo(&free_first, &total));
    if (round % 10 == 9) std::printf("NCCL: a world of one made and ended %d times\n", round + 1);
  }
  ELRUN_CUDA_CHECK(cudaMemGetInfo(&free_last, &total));
  std::printf("memory of the device after 10 rounds and after %d: %.1f MiB less is free\n", rounds,
              (static_cast<double>(free_first) - static_cast<double>(free_last)) / (1u << 20));
  if (const auto told = (*session)->finished(deadline_in(std::chrono::seconds{20})); !told.ok())
    return std::printf("the end: %s\n", message(told.failure()).c_str()), 1;
  return 0;
}

constexpr std::size_t shared_words = 1u << 18;

/// The other process: adds 1 to each word that it finds behind the handle.
int ipc_child(const char* hex) {
  cudaIpcMemHandle_t handle;
  for (std::size_t i = 0; i < sizeof handle; ++i) {
    unsigned byte = 0;
    if (std::sscanf(hex + 2 * i, "%2x", &byte) != 1) return 2;
    reinterpret_cast<unsigned char*>(&handle)[i] = static_cast<unsigned char>(byte);
  }
  void* at = nullptr;
  ELRUN_CUDA_CHECK(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
  std::vector<std::uint32_t> words(shared_words);
  ELRUN_CUDA_CHECK(cudaMemcpy(words.data(), at, words.size() * 4, cudaMemcpyDeviceToHost));
  for (std::uint32_t& word : words) ++word;
  ELRUN_CUDA_CHECK(cudaMemcpy(at, words.data(), words.size() * 4, cudaMemcpyHostToDevice));
  ELRUN_CUDA_CHECK(cudaIpcCloseMemHandle(at));
  return 0;
}

int ipc() {
  std::vector<std::uint32_t> words(shared_words);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint32_t>(i * 7);
  const auto memory = on_device(words);
  cudaIpcMemHandle_t handle;
  ELRUN_CUDA_CHECK(cudaIpcGetMemHandle(&handle, memory.data));
  std::string command = "/proc/" + std::to_string(getpid()) + "/exe ipc_child ";
  for (std::size_t i = 0; i < sizeof handle; ++i) {
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", reinterpret_cast<const unsigned char*>(&handle)[i]);
    command += byte;
  }
  if (const int said = std::system(command.c_str()); said != 0) return std::printf("ipc: the other process ended with %d\n", said), 1;
  std::vector<std::uint32_t> out(shared_words);
  ELRUN_CUDA_CHECK(cudaMemcpy(out.data(), memory.data, out.size() * 4, cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < out.size(); ++i)
    if (out[i] != words[i] + 1) return std::printf("ipc: word %zu is wrong\n", i), 1;
  std::printf("ipc: two processes of one device see each other's writes, %zu KiB\n", shared_words * 4 / 1024);
  ELRUN_CUDA_CHECK(cudaFree(memory.data));
  return 0;
}

constexpr int library_is_absent = 76;

int library(std::string_view name, [[maybe_unused]] const char* file) {
  if (name == "nccl") {
#ifdef SUITE_WITH_NCCL
    const auto nccl = *file == '\0' ? NcclLibrary::load() : NcclLibrary::load(file);
    if (nccl.ok() || nccl.failure().code != Code::not_found) return 0;
    return std::puts(nccl.failure().what.c_str()), library_is_absent;
#else
    return std::puts("this suite was built without NCCL: build it where nccl.h is (libnccl-dev)"), library_is_absent;
#endif
  }
  if (name != "cublas_lt") return 64;
#ifdef SUITE_IN_BF16
  try {
    (void)nn::CublasLt::version();
  } catch (const Error& error) {
    if (error.failure().code == Code::not_found) return std::puts(error.failure().what.c_str()), library_is_absent;
  }
  return 0;
#else
  return std::puts("this suite was built without cuBLASLt: build it where cublasLt.h is (libcublas-dev)"), library_is_absent;
#endif
}

int run(std::string_view part, const char* argument, const Sizes& sizes) {
  if (part == "facts") return facts();
  if (part == "rates") return rates(sizes);
  if (part == "kernels") return kernels(sizes);
  if (part == "nccl") return nccl();
  if (part == "ipc") return ipc();
  if (part == "ipc_child") return ipc_child(argument);
  return std::puts("gpu_suite facts|rates|kernels|nccl|ipc [--small]"), 64;
}

}  // namespace

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int devices = 0;
  const std::string_view part = argc > 1 ? argv[1] : "";
  if (part == "library") return library(argc > 2 ? argv[2] : "", argc > 3 ? argv[3] : "");
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0)
    return std::printf("no device here: %s\n", error != cudaSuccess ? cudaGetErrorString(error) : "none is visible"), 77;
  const char* const argument = argc > 2 ? argv[2] : "";
  const Sizes small{.elements = 70'000, .repeats = 1, .matrix = 64, .fake = true};
  return run(part, argument, std::string_view{argument} == "--small" ? small : Sizes{});
} catch (const Error& e) {
  std::printf("FAILED: %s\n", message(e.failure()).c_str());
  return 1;
}
