#pragma once
/// \file What is said of a file of a checkpoint that does not hold what it should.

#include <string>
#include <utility>

#include <elrun/failure.hpp>

namespace elrun::inline v0 {

[[nodiscard]] inline Failure corrupt(std::string what) {
  return {.code = Code::corrupt, .remedy = Remedy::fix_config, .what = std::move(what)};
}

}  // namespace elrun::inline v0
