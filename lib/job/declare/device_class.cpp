#include "lib/job/declare/device_class.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

constexpr std::string_view kind_entry = "elrun.device", model_entry = "elrun.device_model";
constexpr std::string_view host = "cpu";

std::string_view kind_of(Device device) { return device.kind == DeviceKind::host ? host : "cuda"; }

std::string class_of(std::string_view kind, std::string_view model) {
  return model.empty() ? std::string{kind} : fmt::format("{}, {}", kind, model);
}

/// Empty: there is no such entry.
std::string_view text_of(const std::vector<Aux>& aux, std::string_view entry) {
  const auto at = std::ranges::find(aux, entry, &Aux::name);
  return at == aux.end() ? std::string_view{} : std::string_view{reinterpret_cast<const char*>(at->bytes.data()), at->bytes.size()};
}

void append(std::vector<Aux>& aux, std::string_view entry, std::string_view text) {
  const auto bytes = std::as_bytes(std::span{text});
  aux.push_back({std::string{entry}, {bytes.begin(), bytes.end()}});
}

}  // namespace

Agreement device_agreement(Device device) {
  return {
      "kind of device", fmt::format("device: {}\n", kind_of(device)),
      "where the worker on the CPU runs, look at the NVIDIA driver and at CUDA_VISIBLE_DEVICES: with ELRUN_DEVICE=cuda it says what is wrong there; ELRUN_DEVICE has to be the same "
      "for all workers, and cpu puts all of them on the CPU"};
}

Agreement device_model_agreement(std::string_view model) {
  return {
      "model of GPU", fmt::format("model: {}\n", model.empty() ? "any" : model),
      "the program's kernels may give other bits on another model; give all workers one model of GPU, or, if they give the same bits on all, say so in "
      "RunOptions::any_device_model of all programs"};
}

void append_device(std::vector<Aux>& aux, Device device, std::string_view model) {
  append(aux, kind_entry, kind_of(device));
  if (!model.empty()) append(aux, model_entry, model);
}

std::optional<std::string> device_doubt(const std::vector<Aux>& aux, Device now, std::string_view model) {
  const std::string_view told = text_of(aux, kind_entry), kind = told.empty() ? host : told, then = text_of(aux, model_entry);
  if (kind == kind_of(now) && (then.empty() || model.empty() || then == model)) return std::nullopt;
  return fmt::format(
      "the checkpoint's last steps were computed on {}; the job now runs on {}. elrun's own arithmetic has the same bits on both. The program's may not: then the run is no "
      "longer bit-identical to one that stays on {}",
      class_of(kind, then), class_of(kind_of(now), model), class_of(kind, then));
}

}  // namespace elrun::inline v0
