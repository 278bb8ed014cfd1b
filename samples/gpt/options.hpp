#pragma once
/// \file What a person can ask of gpt, checked once, all problems together.

#include <cstdint>
#include <string>
#include <vector>

#include <elrun/schedule.hpp>
#include "samples/flags.hpp"

namespace gpt {

struct Options {
  std::string data;       ///< A text file; every byte is a token.
  std::uint64_t ids = 0;  ///< Ids of a tokenizer, of which `data` then holds 16 bits per token; 0: bytes.
  std::uint64_t steps = 60;
  std::uint64_t global_batch = 16;  ///< Samples per step.
  std::uint64_t micro_batch = 2;    ///< Samples per slot.
  std::uint64_t layers = 4;
  std::uint64_t channels = 128;
  std::uint64_t heads = 4;
  std::uint64_t context = 64;  ///< Tokens that a prediction looks back on; also the length of a sample.
  std::string zero =
      "1";  ///< ZeRO stage: 0 to 3, or inside of each node: hybrid2, hybrid3; or each shard on two workers: mirrored1 to mirrored3.
  std::string exchange = "auto";   ///< When gradients travel: auto, step or slot.
  std::string overlap = "off";     ///< Whether workers exchange while they compute: on or off.
  std::uint64_t memory = 0;        ///< Millions of bytes that a worker may take; 0: as many as it needs.
  std::string precision = "fp32";  ///< Of weights and activations where layers compute: fp32, or bf16 on a GPU's tensor cores.
  std::string recipe;              ///< File with cuBLASLt's algorithm for each product, of bf16; empty: cuBLASLt's first choice.
  std::string leaves = "f32";      ///< What each slot's gradient is rounded to: f32 or bf16.
  std::string reduce = "exact";    ///< How gradients are added up: exact or fast.
  std::uint64_t seed = 1;
  bool recompute = false;   ///< Activations of a block are computed again in the backward pass.
  double lr = 2e-3;         ///< The highest of the schedule.
  std::string checkpoint;   ///< Directory; empty: none.
  std::uint64_t every = 0;  ///< Steps between checkpoints.
  std::uint64_t keep = 3;
  bool async = false;                 ///< Checkpoints are written while training goes on.
  std::uint64_t every_seconds = 0;    ///< Seconds between checkpoints; 0: not by time.
  double save_budget = 0;             ///< Share of the time that checkpoints may cost; 0: no matter.
  std::uint64_t save_rate = 0;        ///< Millions of bytes per second, of a node; 0: no bound.
  std::uint64_t final_wait = 600;     ///< Seconds for which a final checkpoint that fails is tried again.
  std::uint64_t in_memory_every = 0;  ///< Steps between in-memory checkpoints.
  std::uint64_t max_age = 0;          ///< Seconds without a new checkpoint after which a save that fails ends the job; 0: no limit.
  std::uint64_t sample = 0;           ///< Tokens to generate at the end.
  double audit = 0;                   ///< Probability with which a slot of a step is computed by other workers, too.
  std::uint64_t verify = 0;           ///< Steps between comparisons of all workers' states; 0: none.
  std::uint64_t slot_ms = 0;          ///< Milliseconds that a slot takes at least, in place of a device's compute.
  std::uint64_t plan = 0;             ///< Workers to print the plan for; 0: train.
  std::uint64_t per_node = 0;         ///< Of those, to a node; 0: all on one.
  bool help = false;
};

using Parsed = flags::Parsed<Options>;

/// Rows of the embedding: ids are padded to a multiple of 64, so that products have whole tiles (50,257 to 50,304).
[[nodiscard]] constexpr std::uint64_t vocabulary(const Options& options) { return options.ids == 0 ? 256 : (options.ids + 63) / 64 * 64; }

/// `--name value` and `--name=value`. The last of two wins.
[[nodiscard]] Parsed parse(const std::vector<std::string>& arguments);
[[nodiscard]] std::string help();

/// Of the learning rate: a linear warm-up over a tenth of the steps, then half a cosine down to a tenth.
[[nodiscard]] elrun::Schedule schedule(const Options& options);

}  // namespace gpt
