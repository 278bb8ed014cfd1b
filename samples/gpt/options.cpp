#include "samples/gpt/options.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "samples/placement.hpp"

namespace gpt {
namespace {

using flags::unbounded;

const flags::Flag<Options> table[] = {
    {"data", "FILE", &Options::data, 0, 0, "the text to learn, any bytes; at least context + 1 of them"},
    {"ids", "N", &Options::ids, 2, 1 << 16,
     "--data is no text but a tokenizer's ids, 16 bits each (little-endian) and all below N: 50257 for GPT-2's"},
    {"steps", "N", &Options::steps, 1, unbounded, "steps of training; more can be asked of a finished job by starting it again"},
    {"global-batch", "N", &Options::global_batch, 1, 1 << 24, "samples per step, whatever the number of workers"},
    {"micro-batch", "N", &Options::micro_batch, 1, 1 << 16, "samples that one worker computes at a time; divides --global-batch"},
    {"layers", "N", &Options::layers, 1, 1024, "transformer blocks"},
    {"channels", "N", &Options::channels, 1, 1 << 16, "width of the model; a multiple of --heads"},
    {"heads", "N", &Options::heads, 1, 1 << 10, "attention heads per block"},
    {"context", "N", &Options::context, 1, 1 << 16, "tokens that the model looks back on; also the length of a sample"},
    {"zero", SAMPLES_STAGES, &Options::zero, 0, 0,
     "what every worker keeps only its share of: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too; hybrid2, hybrid3: "
     "a share among the workers of its node, each node having all of it; mirrored1 to mirrored3: each share on two workers, of different nodes where there are "
     "several, so that the loss of one costs no step. The result is the same"},
    {"exchange", "auto|step|slot", &Options::exchange, 0, 0,
     "when gradients travel: once per step, or as soon as a slot has made them; auto: as --zero and --memory want it. The result is the same"},
    {"overlap", "on|off", &Options::overlap, 0, 0,
     "on: with weights or gradients that are exchanged in every slot, workers do that while they compute; takes the memory of a second unit, and "
     "is meant for machines with cores that are free meanwhile. The result is the same"},
    {"memory", "MB", &Options::memory, 1, 1 << 24,
     "millions of bytes that each worker may take for weights, gradients and optimizer; --exchange auto goes by it"},
    {"reduce", "exact|fast", &Options::reduce, 0, 0,
     "exact: the same result at any number of workers; fast: less traffic, and the result depends on that number"},
    {"precision", "fp32|bf16", &Options::precision, 0, 0,
     "what weights and activations are where layers compute. bf16: on a GPU's tensor cores, many times faster, with fp32 master weights, optimizer and gradients of weights; "
     "another result, the same on one kind of GPU whatever the number of workers"},
    {"recipe", "FILE", &Options::recipe, 0, 0,
     "of --precision bf16: cuBLASLt's algorithm for each product of a step. Without the file it is written with the first choices; with it every start, and every node, computes by the same ones. "
     "Another recipe is another result"},
    {"leaves", "f32|bf16", &Options::leaves, 0, 0,
     "bf16: each slot's gradient is rounded before it is added up, and half the bytes travel; another result, again the same everywhere"},
    {"recompute", "", &Options::recompute, 0, 0,
     "keep one block's activations instead of all, and compute the others again on the way back; the same bits"},
    {"seed", "N", &Options::seed, 0, ~std::uint64_t{0}, "of initial weights and the order of samples"},
    {"lr", "X", &Options::lr, 0, 0, "highest learning rate: linear warm-up over a tenth of the steps, then a cosine to a tenth"},
    {"checkpoint", "DIR", &Options::checkpoint, 0, 0, "where to keep checkpoints; a job that finds one goes on from there"},
    {"every", "K", &Options::every, 0, unbounded,
     "steps between checkpoints; 0: not by their number, and only at the end without the next two"},
    {"every-seconds", "S", &Options::every_seconds, 0, 1 << 30, "seconds between checkpoints; 0: not by time"},
    {"save-budget", "P", &Options::save_budget, 0, 0,
     "the most that checkpoints may cost, as a share of the time: 0.01 for 1 %; they are saved as often as that allows, or no more often than --every and --every-seconds say"},
    {"keep", "N", &Options::keep, 2, 1 << 20, "checkpoints to keep; at least 2, for the newest may turn out to be damaged"},
    {"async", "", &Options::async, 0, 0,
     "write checkpoints while training goes on; takes as much memory again as a worker saves, and elrun"},
    {"save-rate", "MB", &Options::save_rate, 0, 1 << 24,
     "of --async: at most so many millions of bytes per second on each node; 0: no bound"},
    {"in-memory-every", "K", &Options::in_memory_every, 0, unbounded,
     "of --zero 1 to 3 and hybrid: every K steps each worker keeps a copy of two shares in its host's memory, so that a lost worker costs at most K steps and no storage is read; needs no --checkpoint"},
    {"final-wait", "S", &Options::final_wait, 0, 1 << 20, "seconds for which the final checkpoint is tried again when it cannot be saved"},
    {"max-age", "S", &Options::max_age, 0, 1 << 30,
     "a save that fails when no checkpoint was saved for so many seconds ends the job with 173; 0: training goes on"},
    {"sample", "N", &Options::sample, 0, 1 << 20, "tokens to write at the end: as text, with --ids as numbers"},
    {"audit", "P", &Options::audit, 0, 0,
     "probability with which one slot of a step is computed by other workers too, and compared; 1: in every step"},
    {"verify", "K", &Options::verify, 1, unbounded, "compare the states of all workers every K steps"},
    {"slot-ms", "N", &Options::slot_ms, 0, 3'600'000,
     "milliseconds that each slot takes at least: waits in place of a GPU's compute, to rehearse failures on a machine with fewer cores than workers; 0: as fast as it can. The result is the same"},
    {"plan", "W", &Options::plan, 1, 1 << 16, "print what W workers would each hold and do, for every placement, and end"},
    {"per-node", "N", &Options::per_node, 1, 1 << 16, "of --plan: so many workers to a node; without it all are on one"},
};

std::vector<std::string> contradictions(const Options& o) {
  std::vector<std::string> out;
  const auto number = [](std::uint64_t n) { return std::to_string(n); };
  if (o.global_batch % o.micro_batch != 0)
    out.push_back("--micro-batch " + number(o.micro_batch) + " does not divide --global-batch " + number(o.global_batch) +
                  ": choose a divisor, so that all parts of a step are alike");
  if (o.channels % o.heads != 0)
    out.push_back("--channels " + number(o.channels) + " is no multiple of --heads " + number(o.heads) +
                  ": each head takes an equal share; try --channels " + number((o.channels / o.heads + 1) * o.heads));
  if (std::string problem = samples::problem_of_zero(o.zero); !problem.empty()) out.push_back(std::move(problem));
  if (o.per_node > 0 && o.plan == 0) out.push_back("--per-node " + number(o.per_node) + " belongs to --plan W: add it");
  if (o.exchange != "auto" && o.exchange != "step" && o.exchange != "slot")
    out.push_back("--exchange " + o.exchange + " is none of auto, step and slot");
  if (o.overlap != "on" && o.overlap != "off") out.push_back("--overlap " + o.overlap + " is neither on nor off");
  if (o.reduce != "exact" && o.reduce != "fast") out.push_back("--reduce " + o.reduce + " is neither exact nor fast");
  if (o.precision != "fp32" && o.precision != "bf16") out.push_back("--precision " + o.precision + " is neither fp32 nor bf16");
  if (o.precision == "bf16") {
    const std::uint64_t size = o.channels % o.heads == 0 ? o.channels / o.heads : 0;
    if (size != 16 && size != 32 && size != 64)
      out.push_back("--precision bf16 has heads of 16, 32 or 64 channels: try --channels " + number(o.heads * 64) + " with --heads " +
                    number(o.heads));
  }
  if (!o.recipe.empty() && o.precision != "bf16") out.push_back("--recipe " + o.recipe + " belongs to --precision bf16: add it");
  if (o.leaves != "f32" && o.leaves != "bf16") out.push_back("--leaves " + o.leaves + " is neither f32 nor bf16");
  if (o.audit > 0 && o.exchange == "slot")
    out.push_back("--audit compares whole gradients, and with --exchange slot no worker has one: leave one of the two out");
  if (o.audit > 1) out.push_back("--audit " + std::to_string(o.audit) + " is no probability: try --audit 0.01");
  if (o.every > 0 && o.checkpoint.empty()) out.push_back("--every " + number(o.every) + " has nowhere to go: add --checkpoint DIR");
  if (o.every_seconds > 0 && o.checkpoint.empty())
    out.push_back("--every-seconds " + number(o.every_seconds) + " has nowhere to go: add --checkpoint DIR");
  if (o.in_memory_every > 0 && (o.zero == "0" || o.zero.starts_with("mirrored")))
    out.push_back("--in-memory-every " + number(o.in_memory_every) + " is for --zero 1 to 3 and hybrid: with --zero " + o.zero +
                  " no loss of one worker takes a part of the state");
  if (o.save_budget > 0 && o.checkpoint.empty()) out.push_back("--save-budget has nowhere to go: add --checkpoint DIR");
  if (!(o.save_budget >= 0 && o.save_budget < 1))
    out.push_back("--save-budget " + std::to_string(o.save_budget) + " is no share of the time: try --save-budget 0.01");
  if (o.save_rate > 0 && !o.async) out.push_back("--save-rate " + number(o.save_rate) + " belongs to --async: add it");
  return out;
}

}  // namespace

Parsed parse(const std::vector<std::string>& arguments) {
  Parsed parsed = flags::parse(table, "gpt", arguments);
  if (parsed.options.help) return parsed;
  const auto about_data = [](const std::string& problem) { return problem.starts_with("--data"); };
  if (parsed.options.data.empty() && std::ranges::none_of(parsed.problems, about_data)) {
    parsed.problems.emplace_back("--data is missing: name a text to learn, --data FILE");
    parsed.exit_code = flags::usage;
  }
  flags::add_contradictions(parsed, contradictions(parsed.options));
  return parsed;
}

std::string help() {
  return "gpt: trains a small transformer to predict the next byte (or token) of a text, then writes some.\n\n"
         "  gpt --data FILE [options]                                        one process\n"
         "  elrun --nproc_per_node 4 --no_python gpt --data FILE [options]   four, which may come and go\n\n"
         "The result depends on the options below and on nothing else: neither the number of workers nor their loss\n"
         "changes a bit of it. One process prints a line per step; the last line has a hash of all weights and "
         "moments.\n\n" +
         flags::help(table) +
         "\nExit codes: 0 done; 1 a failure, which is named; 64 an option that does not exist or cannot be read;\n"
         "66 no readable text of sufficient length; 78 options, or options and a checkpoint, that contradict each "
         "other.\n";
}

elrun::Schedule schedule(const Options& options) {
  return {.shape = elrun::Schedule::Shape::cosine,
          .highest = options.lr,
          .last = 0.1,
          .warm_up = std::max<std::uint64_t>(options.steps / 10, 1),
          .steps = options.steps};
}

}  // namespace gpt
