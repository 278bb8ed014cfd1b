#include <cstdio>

#include <elrun/elrun.hpp>

int main() {
  const elrun::Failure failure{.code = elrun::Code::peer_lost, .remedy = elrun::Remedy::rejoin, .what = "heard nothing"};
  std::printf("%s\n", elrun::message(failure).c_str());
}
