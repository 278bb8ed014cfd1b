// Not part of any program: tests/job.cmake checks that it does not compile, for each of these.

#include <elrun/elrun.hpp>

struct Progress {
  int epoch = 0;
  float best = 0;
};

void program(elrun::Job& job) {
  Progress progress;
  std::array<float, 3> history{};
  job.state("progress", progress);
  job.state("history", history);
#ifdef ADDRESS
  ADDRESS value{};
  job.state("value", value);
#endif
}
