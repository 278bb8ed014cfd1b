#pragma once
/// \file Training in emulated pods: how far it is, what was lost, and how long it takes until it goes on.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/pod_operator.hpp"
#include "tests/support/timed_output.hpp"

namespace elrun::test {

/// A step that pod_worker says to be done.
struct ReportedStep {
  std::uint64_t number = 0, world = 0, generation = 0;
};
[[nodiscard]] std::optional<ReportedStep> step_in(const std::string& line);

/// A job of pod_worker in its pods, all of whose output is read whenever something is waited for.
class PodTraining {
 public:
  using Time = TimedOutput::Time;
  /// How far the job was when something happened.
  struct Mark {
    Time when;
    std::size_t line = 0;                    ///< The next one that is read.
    std::uint64_t step = 0, generation = 0;  ///< The newest of both.
  };
  static constexpr Wait patience{120'000};  ///< For what takes seconds on a machine that is not busy.

  PodTraining(Fabric& fabric, JobPlan plan, std::vector<std::string> program)
      : fabric_{fabric}, pods_{fabric, std::move(plan), folder_, std::move(program)} {}

  [[nodiscard]] Operator& pods() { return pods_; }
  [[nodiscard]] Fabric& fabric() { return fabric_; }
  [[nodiscard]] TimedOutput& timed_output() { return timed_output_; }
  [[nodiscard]] const std::string& folder() const { return folder_.path(); }
  [[nodiscard]] std::size_t last() const { return pods_.size() - 1; }
  [[nodiscard]] std::size_t world() const { return pods_.plan().world(); }

  [[nodiscard]] Mark mark();
  void start(std::size_t index) { timed_output_.follow(&pods_.pod(index), pods_.start(index)); }
  /// A new pod is there under the same name, at another address; the old one is the caller's, and is read on.
  [[nodiscard]] std::unique_ptr<Pod> replace(std::size_t index);
  void destroy(std::unique_ptr<Pod> pod);
  /// The exit code of its container; -1 when it does not end.
  [[nodiscard]] int end_of(Pod& pod);
  /// The next line with this text; `by`: of this pod alone.
  [[nodiscard]] std::optional<TimedOutput::Line> line(const Mark& since, const std::string& text, const Pod* by = nullptr,
                                                      Wait wait = patience);
  /// When a node first said that the generation is over, or that the coordinator is gone; nothing when none does.
  [[nodiscard]] std::optional<Time> notices(const Mark& since);
  /// When the first step was done in a new generation with a world of this size; nothing when there is none.
  [[nodiscard]] std::optional<Time> trains(const Mark& since, std::size_t world);
  /// Another step, in whatever world.
  [[nodiscard]] bool goes_on() {
    return comes_to([](std::uint64_t) { return true; });
  }
  /// Another step whose number is one of these.
  [[nodiscard]] bool comes_to(const std::function<bool(std::uint64_t number)>& is_one);
  /// Steps that were done before `since`, and after it once more.
  [[nodiscard]] std::uint64_t steps_done_again(const Mark& since) const;
  /// The end of what all said, for a test that fails.
  [[nodiscard]] std::string said() const;

 private:
  Fabric& fabric_;
  TemporaryDirectory folder_;
  Operator pods_;
  TimedOutput timed_output_;
};

}  // namespace elrun::test
