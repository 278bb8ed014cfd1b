// A program that is written for devices, as a user builds it: with libelrun alone, and copies for kernels. Prints where it computes, and how it ended.
//
//   job_worker                        written for devices
//   job_worker host                   it does not say so
//   job_worker once NAME=VALUE FILE [RANK]   the first process that makes FILE begins anew with this in its environment: one worker's fault, once. RANK: that of this LOCAL_RANK
//
// With ANY_MODEL in its environment it says that its bits are those of each model of GPU. UNTIL=FILE: it trains until that file is there, in place of 5 steps.

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <elrun/job.hpp>

namespace {

void train(elrun::Job& job) {
  const char* const until = std::getenv("UNTIL");
  const bool on_device = job.device().kind == elrun::DeviceKind::cuda;
  job.configure({.global_batch = 8, .micro_batch = 2, .samples = 64, .steps = until == nullptr ? 5u : 1'000'000u});
  auto unit = job.unit("all");
  const auto weights = unit.tensor<float>("weights", {5000});
  job.seal();
  if (!job.restore()) {
    std::vector<float> values(weights.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = job.rng("weights").normal(i);
    weights.set(values);
  }
  std::printf(on_device ? "computes on cuda:%d\n" : "computes on the host\n", job.device().index);
  std::fflush(stdout);
  while (auto step = job.next_step()) {
    if (until != nullptr && access(until, F_OK) == 0) job.stop();
    for (auto& slot : step->slots()) {
      const auto scope = unit.use_grad();
      if (!on_device) std::memcpy(weights.grad(), weights.data(), weights.size() * sizeof(float));
      else if (cudaMemcpyAsync(weights.grad_device_span().data, weights.device_span().data, weights.size() * sizeof(float),
                               cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(job.stream().handle())) != cudaSuccess)
        throw elrun::Error{{elrun::Code::internal, elrun::Remedy::exit_process, "a copy failed"}};
      slot.report(static_cast<float>(slot.samples()[0]), 1);
    }
    (void)step->apply(elrun::AdamW{}, {.lr = 0.01f, .clip_norm = 1.0f});
  }
  if (!job.prints()) return;
  std::printf("done %016" PRIx64 "\n", job.outcome().state_hash);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const local_rank = std::getenv("LOCAL_RANK");
  const bool is_meant = argc == 4 || (argc == 5 && local_rank != nullptr && std::strcmp(argv[4], local_rank) == 0);
  if (is_meant && std::strcmp(argv[1], "once") == 0) {
    const int file = open(argv[3], O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0) {  // the fakes read their environment when they are loaded
      char* const arguments[] = {argv[0], nullptr};
      return putenv(argv[2]) == 0 && execv("/proc/self/exe", arguments) == 0 ? 0 : 1;
    }
  }
  const bool host = argc > 1 && std::strcmp(argv[1], "host") == 0;
  return host ? elrun::run(argc, argv, train)
              : elrun::run(argc, argv, train, {.devices = true, .any_device_model = std::getenv("ANY_MODEL") != nullptr});
}
