#pragma once
/// \file Passing descriptors between processes over a Unix socket (SCM_RIGHTS).

#include <cstddef>
#include <span>

#include <elrun/result.hpp>

#include "lib/base/fd.hpp"

namespace elrun::inline v0 {

/// Sends `bytes` with the descriptors over a Unix socket whose buffer has room for them. Fails with `exhausted` where too many are under way between
/// the processes of this user.
[[nodiscard]] Result<void> send_with(int socket, std::span<const std::byte> bytes, std::span<const int> files);
/// Receives exactly as many bytes, with `files.size()` descriptors or none at all. Fails with `exhausted` where this process can open no more: the
/// message is lost then.
[[nodiscard]] Result<void> receive_with(int socket, std::span<std::byte> bytes, std::span<Fd> files);

}  // namespace elrun::inline v0
