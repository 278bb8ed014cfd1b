#pragma once
/// \file What a person can ask of mnist, checked once, all problems together.

#include <cstdint>
#include <string>
#include <vector>

#include <elrun/schedule.hpp>
#include "samples/flags.hpp"

namespace mnist {

struct Options {
  std::string data_path;        ///< Directory with the idx files.
  std::string checkpoint_path;  ///< Directory; empty: none.
  std::string log_path;         ///< File; empty: none.
  std::uint64_t epochs = 3;
  std::uint64_t steps = 0;          ///< 0: as many as the epochs have.
  std::uint64_t global_batch = 64;  ///< Images per step.
  std::uint64_t micro_batch = 16;   ///< Images per slot.
  std::string zero = "0";           ///< Where the state lives: samples/placement.hpp.
  std::string overlap = "off";      ///< Whether workers exchange while they compute: on or off.
  std::uint64_t every = 0;          ///< Steps between checkpoints.
  std::uint64_t test_every = 0;     ///< Steps between tests; 0: an epoch.
  std::uint64_t seed = 1;
  double lr = 1e-3;        ///< The highest of the schedule.
  std::uint64_t plan = 0;  ///< Workers to print the plan for; 0: train.
  bool help = false;
};

using Parsed = flags::Parsed<Options>;
[[nodiscard]] Parsed parse(const std::vector<std::string>& arguments);
[[nodiscard]] std::string help();

/// Steps that the epochs over `samples` images have, the last batch whole; or what was asked for.
[[nodiscard]] std::uint64_t steps_of(const Options& options, std::uint64_t samples);
/// Of the learning rate: a linear warm-up over a twentieth of the steps, then half a cosine down to a twentieth.
[[nodiscard]] elrun::Schedule schedule(const Options& options, std::uint64_t steps);

}  // namespace mnist
