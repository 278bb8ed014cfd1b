// A language model on any text: a whole program around elrun::Job. Nothing in it knows how many processes there are.

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <elrun/elrun.hpp>
#include "samples/format.hpp"
#include "samples/gpt/model.hpp"
#include "samples/gpt/options.hpp"
#include "samples/gpt/text.hpp"
#include "samples/placement.hpp"
#ifdef GPT_ON_DEVICES
#include "samples/nn/device_engine.hpp"
#endif
#ifdef GPT_IN_BF16
#include "samples/nn/bf16_engine.hpp"
#endif

namespace {

using samples::format;

elrun::Exchange exchange_of(const gpt::Options& options) {
  if (options.exchange == "auto") return elrun::Exchange::automatic;
  return options.exchange == "step" ? elrun::Exchange::per_step : elrun::Exchange::per_slot;
}

/// What the names and shapes of the parameters do not say.
std::string numeric_of(const gpt::Options& options) {
  return "gpt 1, heads " + std::to_string(options.heads) + ", context " + std::to_string(options.context);
}

#ifdef GPT_IN_BF16
/// Of all products of a step. Those of --sample have other shapes, and change no state.
nn::Recipe recipe_of(elrun::Job& job, const gpt::Options& options) {
  std::vector<nn::ProductShape> shapes;
  for (const nn::Linear& each : gpt::linears(options))
    for (const nn::ProductShape& shape : nn::products_of(each, options.micro_batch * options.context)) shapes.push_back(shape);
  bool written = false;
  nn::Recipe recipe = nn::Bf16Engine::recipe(options.recipe, job.device(), shapes, written);
  if (written) (void)std::fprintf(stderr, "gpt: wrote the recipe %s\n", options.recipe.c_str());
  job.print(format("recipe=%s of %s, chosen on %s: %zu algorithms, hash=%s", options.recipe.c_str(), recipe.library.c_str(),
                   recipe.device.c_str(), recipe.algorithms.size(), recipe.hash().c_str()));
  return recipe;
}
#endif

elrun::Plan plan_of(const gpt::Options& options, const gpt::Corpus& text, std::string numeric) {
  return {.global_batch = options.global_batch,
          .micro_batch = options.micro_batch,
          .samples = text.samples(),
          .data_hash = text.hash(),
          .steps = options.steps,
          .seed = options.seed,
          .placement = samples::placement_of(options.zero, exchange_of(options)),
          .memory_per_rank = options.memory * 1'000'000,
          .overlap = options.overlap == "on",
          .reduce = options.reduce == "fast" ? elrun::Reduce::fast : elrun::Reduce::exact,
          .leaves = options.leaves == "bf16" ? elrun::DType::bf16 : elrun::DType::f32,
          .numeric = std::move(numeric)};
}

template <class E>
void print_sample(elrun::Job& job, gpt::Model<E>& model, const gpt::Options& options) {
  const std::string text = gpt::printable(model.generate(options.sample, job.rng("sample")), options);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    job.print("sample: " + text.substr(begin, end - begin));
    begin = end + 1;
  }
}

void demand_identical_states(elrun::Job& job) {
  if (const auto found = elrun::verify(job); found.difference)
    throw elrun::Error{{elrun::Code::corrupt, elrun::Remedy::exit_process, found.difference->what}};
}

/// `E`: what layers compute with, on the host or on a device.
template <class E>
void train_with(E& engine, elrun::Job& job, const gpt::Options& options, const gpt::Corpus& text) {
  gpt::Model<E> model{job, engine, options};
  if (options.plan > 0)
    return job.print(job.plan_table(static_cast<std::uint32_t>(options.plan), static_cast<std::uint32_t>(options.per_node)));
  job.seal();
  if (!job.restore()) model.initialise(job.rng("init"));

  std::vector<std::int32_t> inputs(options.micro_batch * options.context), targets(inputs.size());
  const elrun::AdamW adamw{};
  const elrun::Schedule rate = gpt::schedule(options);
  while (auto step = job.next_step()) {
    if (options.audit > 0) step->audit(options.audit);
    for (elrun::Slot& slot : step->slots()) {
      const auto at_least_until = std::chrono::steady_clock::now() + std::chrono::milliseconds{options.slot_ms};
      text.fetch(slot.samples(), inputs, targets);
      const std::size_t tokens = slot.samples().size() * options.context;
      const auto loss = model.forward(std::span{inputs}.first(tokens), std::span{targets}.first(tokens));
      model.backward();
      if (options.slot_ms > 0) std::this_thread::sleep_until(at_least_until);
      slot.report(loss, tokens);
    }
    const elrun::StepResult r = step->apply(adamw, {.lr = rate, .clip_norm = 1.0f});
    if (!r.decided) continue;  // the world has changed, and the same step comes again
    job.print(format("step=%llu loss=%.6f norm=%.5f world=%u generation=%llu tokens_per_s=%.0f%s", static_cast<unsigned long long>(r.step),
                     static_cast<double>(r.loss), static_cast<double>(r.norm), r.world, static_cast<unsigned long long>(r.generation),
                     r.tokens_per_s, r.audited ? " audited" : ""));
    if (options.verify > 0 && r.step % options.verify == 0) demand_identical_states(job);
  }

  if (options.sample > 0 && job.prints()) print_sample(job, model, options);
  const elrun::Outcome& end = job.outcome();
  job.print(format("done step=%llu loss=%.5f state=%016llx", static_cast<unsigned long long>(end.step), static_cast<double>(end.loss),
                   static_cast<unsigned long long>(end.state_hash)));
}

void demand_tensor_cores([[maybe_unused]] const elrun::Job& job) {
#ifdef GPT_IN_BF16
  if (job.device().kind == elrun::DeviceKind::cuda) return;
  const char* const why =
      "computes on a GPU's tensor cores, and this worker computes on the host: start it where a GPU is visible, without ELRUN_DEVICE=cpu";
#else
  const char* const why = "is not in this gpt: build it where CUDA and cuBLASLt's header are";
#endif
  throw elrun::Error{{elrun::Code::mismatch, elrun::Remedy::fix_config, std::string{"--precision bf16 "} + why}};
}

void train(elrun::Job& job, const gpt::Options& options, const gpt::Corpus& text) {
  if (options.precision == "bf16") demand_tensor_cores(job);
  std::string numeric = numeric_of(options);
#ifdef GPT_IN_BF16
  nn::Recipe recipe;
  if (!options.recipe.empty()) recipe = recipe_of(job, options);
  if (options.precision == "bf16") numeric += ", " + nn::Bf16Engine::numeric(job.device(), options.recipe.empty() ? nullptr : &recipe);
#endif
  job.configure(plan_of(options, text, std::move(numeric)), {.directory = options.checkpoint,
                                                             .every = options.every,
                                                             .interval = std::chrono::seconds{options.every_seconds},
                                                             .budget = options.save_budget,
                                                             .keep = static_cast<std::uint32_t>(options.keep),
                                                             .final_wait = std::chrono::seconds{options.final_wait},
                                                             .max_age = std::chrono::seconds{options.max_age},
                                                             .async = options.async,
                                                             .rate = elrun::Bytes{options.save_rate * 1'000'000},
                                                             .in_memory_every = options.in_memory_every});
#ifdef GPT_IN_BF16
  if (options.precision == "bf16") {
    nn::Bf16Engine engine{job.stream(), options.channels, std::move(recipe.algorithms)};
    return train_with(engine, job, options, text);
  }
#endif
#ifdef GPT_ON_DEVICES
  if (job.device().kind == elrun::DeviceKind::cuda) {
    nn::DeviceEngine engine{job.stream()};
    return train_with(engine, job, options, text);
  }
#endif
  nn::Engine engine{job.compute_threads()};
  train_with(engine, job, options, text);
}

}  // namespace

int main(int argc, char** argv) {
  gpt::Parsed parsed = gpt::parse({argv + 1, argv + argc});
  const gpt::Options& options = parsed.options;
  if (options.help) return std::fputs(gpt::help().c_str(), stdout) < 0 ? 1 : 0;

  if (options.data.empty()) return flags::refuse("gpt", parsed);
  auto text = gpt::Corpus::open(options);
  if (!text.ok()) {
    parsed.problems.push_back("--data " + text.failure().what);
    if (parsed.exit_code == 0) parsed.exit_code = flags::no_input;
  }
  if (!parsed.problems.empty()) return flags::refuse("gpt", parsed);
#ifdef GPT_ON_DEVICES
  constexpr bool on_devices = true;
#else
  constexpr bool on_devices = false;  // built without CUDA
#endif
  return elrun::run(argc, argv, [&](elrun::Job& job) { train(job, options, *text); },
                    {.devices = on_devices, .any_device_model = options.precision != "bf16"});
}
