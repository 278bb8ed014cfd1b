#pragma once
/// \file What kind of device a job computes on, and which model, as far as bits depend on it. Core.
///
/// elrun's own arithmetic (sums, norm, optimizer, casts) has the same bits on the host and on each device. What a program computes in its slots has them only if it was written
/// for that (`RunOptions::any_device_model` says so of models of GPU). So a checkpoint says where its steps were computed, and who goes on elsewhere is told; all members of one world are of one
/// kind and model.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/device.hpp>

#include "checkpoint/format/model.hpp"
#include "lib/job/declare/agreement.hpp"

namespace elrun::inline v0 {

/// What all members must have alike.
[[nodiscard]] Agreement device_agreement(Device device);
/// Likewise. `model`: as JobHost::device_model.
[[nodiscard]] Agreement device_model_agreement(std::string_view model);
/// Where the model is empty nothing is said of it. It is no part of the state that checkpoints are compared by.
void append_device(std::vector<Aux>& aux, Device device, std::string_view model);
/// The sentence for a job that goes on with this checkpoint on `now`; nothing where its steps were computed on the same, or where one of the two says no model. Checkpoints of early versions say no
/// device: they are the host's.
[[nodiscard]] std::optional<std::string> device_doubt(const std::vector<Aux>& aux, Device now, std::string_view model);

}  // namespace elrun::inline v0
