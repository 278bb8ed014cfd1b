#pragma once
/// \file Endpoint: where a coordinator or an etcd server is found.

#include <cstdint>
#include <string>

namespace elrun::inline v0 {

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
};

}  // namespace elrun::inline v0
