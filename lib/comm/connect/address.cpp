#include "lib/comm/connect/address.hpp"

#include <cstdio>

#include <fmt/format.h>

#include "lib/base/printable.hpp"

namespace elrun::inline v0 {

std::string encode(const RankAddress& address) {
  std::string text = fmt::format("{} {}", address.port, address.host);
  if (!address.boot.empty()) text += " " + address.boot;
  if (!address.boot.empty() && !address.socket.empty()) text += " " + address.socket;
  return text;
}

Result<RankAddress> decode_rank_address(Rank rank, std::string_view text) {
  const std::string bounded{text.substr(0, 450)};
  unsigned port = 0;
  char host[257] = "", boot[41] = "", socket[65] = "";
  const int fields = std::sscanf(bounded.c_str(), "%u %256s %40s %64s", &port, host, boot, socket);
  if (fields < 2 || port == 0 || port > 65535 || printable(bounded) != bounded) {
    return Failure{.code = Code::protocol,
                   .remedy = Remedy::abort_group,
                   .what = fmt::format("rank {} published no address: \"{}\"", rank.value(), printable(bounded)),
                   .peer = rank};
  }
  return RankAddress{static_cast<std::uint16_t>(port), host, boot, socket};
}

}  // namespace elrun::inline v0
