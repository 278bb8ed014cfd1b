#include "launcher/options/host.hpp"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "lib/base/bytes.hpp"
#include "lib/base/digest.hpp"

namespace elrun::inline v0::launcher {
namespace {

std::string first_label(const std::string& name) { return name.substr(0, name.find('.')); }

}  // namespace

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::optional<HostPlace> host_place(const Endpoint& endpoint, HostRule rule, const HostFacts& here) {
  if (rule == HostRule::never) return std::nullopt;
  const auto is_own = [&](const std::string& address) {
    return is_loopback(address) || std::find(here.own_addresses.begin(), here.own_addresses.end(), address) != here.own_addresses.end();
  };
  const auto own = std::find_if(here.leads_to.begin(), here.leads_to.end(), is_own);
  // A name that does not resolve yet is ours if it begins with this machine's: a pod starts before its DNS entry
  // exists.
  const bool named = here.leads_to.empty() && first_label(endpoint.host) == first_label(here.host_name);
  if (rule == HostRule::if_endpoint_is_here && own == here.leads_to.end() && !named) return std::nullopt;
  if (own == here.leads_to.end()) return HostPlace{"0.0.0.0", endpoint.host};
  // A machine whose own name leads to 127.0.1.1 (as Debian's installer sets it up) is reached by that name from
  // elsewhere.
  const bool only_here = is_loopback(endpoint.host) || endpoint.host == "localhost";
  if (only_here) return HostPlace{*own == "::1" ? "::1" : "127.0.0.1", *own};
  return HostPlace{"0.0.0.0", is_loopback(*own) ? endpoint.host : *own};
}

std::string place_of_agent(const AgentPlace& place) {
  if (place.boot.empty()) return {};
  const std::string text = fmt::format("elrun place\n{}\n{}\n{}\n{}", place.run.value(), place.boot, place.host, place.node_rank);
  const Sha256 digest = sha256(as_bytes(text));
  return to_hex(std::span{digest}.first(16));
}

}  // namespace elrun::inline v0::launcher
