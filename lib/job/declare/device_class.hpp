#pragma once
/// \file What kind of device a job computes on, as far as bits depend on it. Core.
///
/// elrun's own arithmetic (sums, norm, optimizer, casts) has the same bits on the host and on a device. What a program computes in its slots has them only if it was written
/// for that. So a checkpoint says where its steps were computed, and who goes on elsewhere is told; all members of one world are of one kind.

#include <optional>
#include <string>
#include <vector>

#include <elrun/device.hpp>

#include "checkpoint/format/model.hpp"
#include "lib/job/declare/agreement.hpp"

namespace elrun::inline v0 {

/// What all members must have alike.
[[nodiscard]] Agreement device_agreement(Device device);
void append_device(std::vector<Aux>& aux, Device device);
/// The sentence for a job that goes on with this checkpoint on `now`; nothing where its steps were computed on the same. Checkpoints of earlier versions are the host's.
[[nodiscard]] std::optional<std::string> device_doubt(const std::vector<Aux>& aux, Device now);

}  // namespace elrun::inline v0
