#include "lib/comm/environment.hpp"

#include <unistd.h>

#include <cstdlib>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/printable.hpp"

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

std::string nccl_settings() {
  constexpr std::size_t text_max = 1024;
  std::string text;
  for (char** each = environ; each != nullptr && *each != nullptr && text.size() < text_max; ++each) {
    std::string_view setting{*each};
    if (!setting.starts_with("NCCL_")) continue;
    const std::string_view name = setting.substr(0, setting.find('='));
    for (const char* secret : {"KEY", "TOKEN", "SECRET", "PASSWORD"})
      if (name.find(secret) != name.npos) setting = name;
    text += (text.empty() ? "" : ", ") + printable(setting.substr(0, 200));
  }
  return text;
}

std::string host_for_nccl(std::string boot) {
  const char* const by_user = std::getenv("NCCL_HOSTID");
  return by_user == nullptr || *by_user == '\0' ? boot : "NCCL_HOSTID=" + std::string{by_user};
}

std::string nccl_set_wrong() {
  const char* const by_user = std::getenv("NCCL_COMM_ID");
  if (by_user == nullptr || *by_user == '\0') return "";
  return "NCCL_COMM_ID is set, which gives all groups one address, so that ranks of another group or of a generation that is over answer there: unset it";
}

bool nccl_may_share_devices() {
  const char* const by_user = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return by_user != nullptr && *by_user != '\0' && std::string_view{by_user} != "0";
}

}  // namespace elrun::inline v0
