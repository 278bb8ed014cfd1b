#include "lib/comm/environment.hpp"

#include <cstdlib>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {

Result<Transport> parse_transport(std::string_view word) {
  if (word == "auto") return Transport::automatic;
  if (word == "tcp") return Transport::tcp;
  if (word == "shm") return Transport::shm;
  return invalid(fmt::format("ELRUN_TRANSPORT={:.40} in the environment of this worker: auto, tcp and shm are possible", word));
}

Result<Transport> transport_of_process(Transport by_program) {
  const char* const variable = std::getenv("ELRUN_TRANSPORT");
  if (by_program != Transport::automatic || variable == nullptr) return by_program;
  return parse_transport(variable);
}

}  // namespace elrun::inline v0
