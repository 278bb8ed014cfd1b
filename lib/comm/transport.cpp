#include "lib/comm/transport.hpp"

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {

Result<Transport> choose_transport(Transport by_program, const std::optional<std::string>& variable) {
  if (by_program != Transport::automatic || !variable || *variable == "auto") return by_program;
  if (*variable == "tcp") return Transport::tcp;
  if (*variable == "shm") return Transport::shm;
  return invalid(fmt::format("ELRUN_TRANSPORT={:.40} in the environment of this worker: auto, tcp and shm are possible", *variable));
}

}  // namespace elrun::inline v0
