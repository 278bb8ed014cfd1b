/// How fast are an all-gather and an exact reduction between processes of one host, beside Gloo's and MPI's?
///
///   collectives_bench [largest size in MiB]
///
/// starts 2 and 4 processes of itself, which measure elrun through memory, elrun in a SharedBuffer ("shared"; its all-gather is
/// in place: each rank's part lies in the buffer that it gathers into), elrun over TCP and Gloo in turns, size by size, so that all meet the same machine; then MPI's, under mpiexec, where it was built with it. A size is that of the
/// reduced, or the gathered, memory of one rank; a time is the median over calls; GB/s are size over time. To reach:
/// through memory 4 times Gloo's from 1 MiB, over TCP 1 time. The floor is measured beside them: as many processes that copy
/// as much memory as each of them gathers.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/base/clock.hpp"
#include "lib/link/socket.hpp"

#ifdef ELRUN_BENCH_GLOO
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#endif
#ifdef ELRUN_BENCH_MPI
#include <mpi.h>
#endif

using namespace elrun;

namespace {

const SteadyClock system_clock;

std::size_t calls_of(std::size_t size) { return std::clamp<std::size_t>((std::size_t{128} << 20) / size, 3, 300); }

/// Median seconds of one call of `call`, begun together by all ranks.
double median(std::size_t size, const std::function<void()>& together, const std::function<void()>& call) {
  std::vector<double> times;
  call();
  for (std::size_t i = 0; i < calls_of(size); ++i) {
    together();
    const Instant begin = system_clock.now();
    call();
    times.push_back(std::chrono::duration<double>(system_clock.now() - begin).count());
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

std::string size_text(std::size_t size) {
  return size < (1 << 20) ? std::to_string(size >> 10) + " KiB" : std::to_string(size >> 20) + " MiB";
}

std::vector<std::size_t> sizes(std::size_t most) {
  std::vector<std::size_t> all;
  for (const std::size_t size :
       {std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20, std::size_t{256} << 20})
    if (size <= most) all.push_back(size);
  return all;
}

/// One who gathers and reduces.
struct Contender {
  std::string name;
  std::function<void(std::span<const float> in, std::span<float> out)> gather;
  std::function<void(std::span<float> data)> reduce;
};

void measure(std::size_t most, bool tells, std::uint32_t world, const std::vector<Contender>& contenders,
             const std::function<void()>& together) {
  for (const std::size_t size : sizes(most)) {
    std::vector<float> data(size / sizeof(float), 1.0f), part(data.size() / world, 2.0f);
    std::vector<double> gathers, reduces;
    const std::vector<float> source(data.size(), 3.0f);
    const double copy = median(size, together, [&] {
      std::memcpy(data.data(), source.data(), size);
      together();  // as a gather is over when the slowest has given its part
    });
    for (const Contender& contender : contenders) gathers.push_back(median(size, together, [&] { contender.gather(part, data); }));
    for (const Contender& contender : contenders) reduces.push_back(median(size, together, [&] { contender.reduce(data); }));
    if (!tells) continue;
    const auto line = [&](const char* what, const std::vector<double>& times) {
      std::printf("%s, %u processes, %8s:", what, world, size_text(size).c_str());
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        std::printf("  %s %8.0f us %6.2f GB/s", contenders[i].name.c_str(), times[i] * 1e6, static_cast<double>(size) / times[i] / 1e9);
        if (contenders.back().name == "gloo" && i + 1 < contenders.size()) std::printf(" (%4.1fx)", times.back() / times[i]);
      }
      std::printf("\n");
      std::fflush(stdout);
    };
    std::printf("memory copy, %u processes at once, %8s each:  %8.0f us %6.2f GB/s (until all have)\n", world, size_text(size).c_str(),
                copy * 1e6, static_cast<double>(size) / copy / 1e9);
    line("all_gather", gathers);
    line("all_reduce", reduces);
  }
}

int work(std::size_t most, [[maybe_unused]] const std::string& folder) {
  const auto session = std::move(Session::open(WorkerKind::program, deadline_in(60s))).value();
  const auto [generation, rank, world] = session->place().membership;
  auto memory = ProcessGroup::join(*session, {.transport = Transport::shm, .name = "shm"}).value();
  auto tcp = ProcessGroup::join(*session, {.transport = Transport::tcp, .name = "tcp"}).value();
  std::vector<Contender> contenders;
  for (auto [name, group] : {std::pair{"shm", &memory}, {"tcp", &tcp}}) {
    contenders.push_back({name,
                          [group](std::span<const float> in, std::span<float> out) {
                            group->all_gather(std::as_bytes(in), std::as_writable_bytes(out)).value();
                          },
                          [group](std::span<float> data) { group->all_reduce(data).value(); }});
  }
  const SharedBuffer buffer = SharedBuffer::make(Bytes{most}).value();
  memory.share(buffer).value();
  const std::span<float> shared = buffer.as<float>();
  contenders.insert(contenders.begin() + 1, {"shared",
                                             [&](std::span<const float> in, std::span<float> out) {
                                               memory
                                                   .all_gather(std::as_bytes(shared.subspan(rank.value() * in.size(), in.size())),
                                                               std::as_writable_bytes(shared.first(out.size())))
                                                   .value();
                                             },
                                             [&](std::span<float> data) { memory.all_reduce(shared.first(data.size())).value(); }});
#ifdef ELRUN_BENCH_GLOO
  gloo::rendezvous::FileStore store{folder};
  const auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(rank.value()), static_cast<int>(world.value()));
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  context->connectFullMesh(store, device);
  contenders.push_back({"gloo",
                        [&](std::span<const float> in, std::span<float> out) {
                          gloo::AllgatherOptions options{context};
                          options.setInput(const_cast<float*>(in.data()), in.size());
                          options.setOutput(out.data(), out.size());
                          gloo::allgather(options);
                        },
                        [&](std::span<float> data) {
                          gloo::AllreduceOptions options{context};
                          options.setOutput(data.data(), data.size());
                          options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
                          gloo::allreduce(options);
                        }});
#endif
  measure(most, rank == Rank{0}, world.value(), contenders, [&] { memory.barrier().value(); });
  memory.barrier().value();
  return 0;
}

#ifdef ELRUN_BENCH_MPI
int work_under_mpi(std::size_t most) {
  MPI_Init(nullptr, nullptr);
  int rank = 0, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  const std::vector<Contender> contenders{{"mpi",
                                           [](std::span<const float> in, std::span<float> out) {
                                             const int count = static_cast<int>(in.size());
                                             MPI_Allgather(in.data(), count, MPI_FLOAT, out.data(), count, MPI_FLOAT, MPI_COMM_WORLD);
                                           },
                                           [](std::span<float> data) {
                                             MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM,
                                                           MPI_COMM_WORLD);
                                           }}};
  measure(most, rank == 0, static_cast<std::uint32_t>(world), contenders, [] { MPI_Barrier(MPI_COMM_WORLD); });
  MPI_Finalize();
  return 0;
}
#endif

pid_t start(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t pid = -1;
  if (::posix_spawnp(&pid, pointers[0], nullptr, nullptr, pointers.data(), environ) != 0) return -1;
  return pid;
}

bool ended_well(pid_t pid) {
  int status = 1;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t most = (argc > 1 && std::atoi(argv[1]) > 0 ? static_cast<std::size_t>(std::atoi(argv[1])) : 256) << 20;
  if (argc > 2) {
#ifdef ELRUN_BENCH_MPI
    if (std::strcmp(argv[2], "mpi") == 0) return work_under_mpi(most);
#endif
    return work(most, argv[2]);
  }
#ifndef ELRUN_BENCH_GLOO
  std::printf("without Gloo: it was not found when this was built (libgloo-dev)\n");
#endif
  double load = 0;
  (void)::getloadavg(&load, 1);
  std::printf("%ld cores, load %.1f before\n", ::sysconf(_SC_NPROCESSORS_ONLN), load);
  std::fflush(stdout);
  char self[4096] = "";
  if (::readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return 1;
  for (const std::string world : {"2", "4"}) {
    char folder[] = "/tmp/collectives_bench.XXXXXX";
    if (::mkdtemp(folder) == nullptr) return 1;
    const Fd probe = listen_on(resolve("127.0.0.1", 0).value().front()).value();
    const std::string port = std::to_string(local_address(probe.get()).port());
    const_cast<Fd&>(probe) = Fd{};
    std::vector<pid_t> workers;
    for (int rank = 0; rank < std::stoi(world); ++rank) {
      workers.push_back(start({"env", "RANK=" + std::to_string(rank), "WORLD_SIZE=" + world, "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
                               self, std::to_string(most >> 20), folder}));
    }
    bool well = true;
    for (const pid_t worker : workers) well = ended_well(worker) && well;
    ended_well(start({"rm", "-r", folder}));
    if (!well) return std::fprintf(stderr, "a process of the benchmark failed\n"), 1;
#ifdef ELRUN_BENCH_MPI
    if (!ended_well(start({"mpiexec", "-n", world, self, std::to_string(most >> 20), "mpi"}))) std::printf("mpiexec could not run it\n");
#else
    std::printf("without MPI: it was not found when this was built (libmpich-dev or libopenmpi-dev)\n");
#endif
  }
}
