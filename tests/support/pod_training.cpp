#include "tests/support/pod_training.hpp"

#include <algorithm>

namespace elrun::test {

std::optional<ReportedStep> step_in(const std::string& line) {
  if (line.find("step=") == std::string::npos || line.find(" world=") == std::string::npos ||
      line.find(" generation=") == std::string::npos)
    return std::nullopt;
  const auto number = [&](const char* name) { return static_cast<std::uint64_t>(number_after(line, name)); };
  return ReportedStep{number("step"), number("world"), number("generation")};
}

PodTraining::Mark PodTraining::mark() {
  timed_output_.listen(Wait{0});
  Mark now{.when = std::chrono::steady_clock::now(), .line = timed_output_.lines().size()};
  for (const TimedOutput::Line& line : timed_output_.lines())
    if (const auto step = step_in(line.text)) {
      now.step = std::max(now.step, step->number);
      now.generation = std::max(now.generation, step->generation);
    }
  return now;
}

std::unique_ptr<Pod> PodTraining::replace(std::size_t index) {
  std::unique_ptr<Pod> old = pods_.exchange(index);
  start(index);
  if (!pods_.publish(index)) return nullptr;
  return old;
}

void PodTraining::destroy(std::unique_ptr<Pod> pod) { timed_output_.forget(pod.get()); }

int PodTraining::end_of(Pod& pod) {
  const Watch watch{pod.job().pid()};
  if (!timed_output_.wait_until([&] { return watch.ended(Wait{0}); }, patience)) return -1;
  return pod.job().wait();
}

std::optional<TimedOutput::Line> PodTraining::line(const Mark& since, const std::string& text, const Pod* by, Wait wait) {
  return timed_output_.wait_for(
      [&](const TimedOutput::Line& l) { return (by == nullptr || l.by == by) && l.text.find(text) != std::string::npos; }, since.line,
      wait);
}

std::optional<PodTraining::Time> PodTraining::notices(const Mark& since) {
  const auto found = timed_output_.wait_for(
      [](const TimedOutput::Line& line) {
        return line.text.find(" is over: ") != std::string::npos || line.text.find("waiting for the coordinator") != std::string::npos;
      },
      since.line, patience);
  return found ? std::optional{found->when} : std::nullopt;
}

std::optional<PodTraining::Time> PodTraining::trains(const Mark& since, std::size_t world) {
  const auto found = timed_output_.wait_for(
      [&](const TimedOutput::Line& line) {
        const auto step = step_in(line.text);
        return step && step->generation > since.generation && step->world == world;
      },
      since.line, patience);
  return found ? std::optional{found->when} : std::nullopt;
}

bool PodTraining::comes_to(const std::function<bool(std::uint64_t)>& is_one) {
  timed_output_.listen(Wait{0});
  const auto is_there = [&](const TimedOutput::Line& said) {
    const auto step = step_in(said.text);
    return step && is_one(step->number);
  };
  return timed_output_.wait_for(is_there, timed_output_.lines().size(), patience).has_value();
}

std::uint64_t PodTraining::steps_done_again(const Mark& since) const {
  ReportedStep newest;
  std::uint64_t again = 0;
  for (const TimedOutput::Line& line : timed_output_.lines()) {
    const auto step = step_in(line.text);
    if (!step || step->generation < newest.generation) continue;  // said before, and read from another pod's output only now
    if (step->generation > since.generation && step->number <= newest.number) again += newest.number + 1 - step->number;
    newest = *step;
  }
  return again;
}

std::string PodTraining::said() const {
  std::string text;
  for (const TimedOutput::Line& line : timed_output_.lines())
    if (!step_in(line.text)) text += line.text + "\n";
  constexpr std::size_t most = 20'000;
  return text.size() > most ? "...\n" + text.substr(text.size() - most) : text;
}

}  // namespace elrun::test
