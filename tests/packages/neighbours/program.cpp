// neighbours: a Job in a process that has the system's fmt and protobuf for itself. `neighbours --job-only` uses neither: then every function of
// theirs, of OpenSSL and of zlib may be one that aborts (foreign.cpp, preloaded).
#include <fmt/format.h>
#include <google/protobuf/wrappers.pb.h>

#include <cstdio>
#include <cstring>
#include <string>

extern "C" double elrun_neighbour_learn();

namespace {

bool others_work(int number) {
  google::protobuf::StringValue sent, received;
  sent.set_value(fmt::format("number {:05.1f}", static_cast<double>(number)));
  std::string bytes;
  return sent.SerializeToString(&bytes) && received.ParseFromString(bytes) && received.value() == fmt::format("number {:03d}.0", number);
}

}  // namespace

int main(int argc, char** argv) {
  const bool job_only = argc == 2 && std::strcmp(argv[1], "--job-only") == 0;
  const bool before = job_only || others_work(7);
  const double learnt = elrun_neighbour_learn();
  const bool after = job_only || others_work(8);
  std::printf("w = %.2f, before %d, after %d\n", learnt, before, after);
  return before && after && learnt > 2.9 && learnt < 3.1 ? 0 : 1;
}
