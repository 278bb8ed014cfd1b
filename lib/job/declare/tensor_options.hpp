#pragma once
/// \file What a checkpoint says of how tensors took part in training, beyond their place and shape: which are frozen, and which decay. Core.
///
/// Both may change from one start to the next where the layout stays the same. The bits follow from it, so it is told.

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/model.hpp"
#include "lib/job/declare/layout.hpp"

namespace elrun::inline v0 {

void append_tensor_options(std::vector<Aux>& aux, const std::vector<UnitSpec>& units, const Layout& layout);
/// What changed since a checkpoint of the same model was written, as text; nothing where nothing did, and for checkpoints of earlier versions, which do not say.
[[nodiscard]] std::optional<std::string> tensor_options_doubt(const std::vector<Aux>& aux, const std::vector<UnitSpec>& units,
                                                              const Layout& layout);

}  // namespace elrun::inline v0
