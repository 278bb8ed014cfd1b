#pragma once
/// \file Scale: what a world of many nodes costs its coordinator, counted. The real Round and one real Supervisor for each
/// node exchange their messages under simulated time; no faults but those of the phases, no checkers, no store. A worker is
/// a number that ends some time after it was asked to.
///
/// The coordinator is modelled as one processor that does everything in the order in which it came: each stream, message
/// and sign of life costs it a fixed time, measured once with real streams. What Round itself takes is measured here.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/base/timeouts.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::sim {

/// What real streams cost the coordinator's process, all of its threads together: `scale_bench` at 10,000 agents (the time
/// to a world, one replaced), and the same load with nothing but signs of life.
struct ScaleModel {
  Duration stream = 270us;                         ///< Accepted, its HTTP/2 settings exchanged
  Duration message = 37us;                         ///< Read or written
  Duration sign_of_life = 30us;                    ///< Read, some thousands a second
  Duration delay_min = 100us, delay_spread = 1ms;  ///< Of the network, one way
  Duration stop_min = 5ms, stop_spread = 20ms;     ///< Of a worker that was asked to end
  std::uint32_t connecting_max = 512;              ///< At one time: a system's queue of connections is bounded, who finds it full waits.
};

/// Signs of life take a bounded part of the coordinator's time: every second up to here, in proportion more seldom beyond.
constexpr std::uint32_t beats_per_second_max = 10'000;
[[nodiscard]] Timeouts scale_timeouts(std::uint32_t nodes);

struct Traffic {
  std::uint64_t messages = 0, bytes = 0, bytes_max = 0;
  void add(std::size_t size);
};

struct ScalePhase {
  std::string name;
  std::array<Traffic, std::variant_size_v<NodeMessage>> from_nodes{};  ///< By kind of message, as the variant has them
  std::array<Traffic, std::variant_size_v<CoordinatorMessage>> to_nodes{};
  Duration simulated{};                                ///< Until the last node had what it waited for
  Duration modelled{};                                 ///< Processor time of the coordinator, by the model
  double round_seconds = 0, longest_step_seconds = 0;  ///< Processor time in Round, measured
  std::uint64_t steps = 0;
  std::uint64_t actions_max = 0, actions_bytes = 0;  ///< Of the longest answer of one step
  std::uint64_t round_bytes = 0;                     ///< What Round keeps, at the end
  bool reached = false;                              ///< Each node had it
  std::string ended;                                 ///< A node that ended, and why: none should
  template <class Message>
  [[nodiscard]] const Traffic& of() const;
};

struct ScaleOutcome {
  std::uint32_t nodes = 0;
  ScaleModel model;
  std::vector<ScalePhase> phases;  ///< To a world; one replaced; the coordinator stopped for a while; the coordinator replaced
};

[[nodiscard]] ScaleOutcome measure_scale(std::uint32_t nodes, const ScaleModel& model = {});
/// For people.
[[nodiscard]] std::string describe(const ScaleOutcome& outcome);
/// The bounds that do not depend on the machine, as sentences about what breaks them; `tenth` is a world of a tenth of the
/// nodes: what is counted per node must not depend on how many there are.
[[nodiscard]] std::vector<std::string> broken_bounds(const ScaleOutcome& outcome, const ScaleOutcome& tenth);

}  // namespace elrun::sim
