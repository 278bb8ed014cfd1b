#pragma once
/// \file Shell: the processes of one run of a job: an agent (or another launcher) for each node, and the store where there is one.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "launcher/chaos/chaos_environment.hpp"
#include "launcher/chaos/chaos_options.hpp"
#include "launcher/chaos/process_tree.hpp"
#include "launcher/process/child.hpp"
#include "launcher/process/orphans.hpp"
#include "lib/base/clock.hpp"

namespace elrun::inline v0::launcher {

struct RehearsedSetting {
  const ChaosOptions& options;
  std::string name;                        ///< For messages: "undisturbed".
  std::string directory;                   ///< The run's own; it exists.
  std::string elrun;                       ///< The path of this program.
  Variables environment;                   ///< Of all processes.
  const NodeNetworks* networks = nullptr;  ///< None: all are on the machine's network.
};

/// For all processes of a run together, once they were killed.
constexpr Duration end_limit = 5s;

/// Lives on the loop, which is polled once more between `end_all` and its destruction. What it started is ended by `end_all`, or by the guard.
class RehearsedJob {
 public:
  /// `line`: a line of that node's output, without newline. `changed`: a process has ended by itself.
  RehearsedJob(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, RehearsedSetting setting,
               std::function<void(std::uint32_t, std::string_view)> line, std::function<void()> changed);
  RehearsedJob(const RehearsedJob&) = delete;
  RehearsedJob& operator=(const RehearsedJob&) = delete;

  [[nodiscard]] Result<void> start();
  /// SIGKILL of the node's launcher and of all that it had started, but for the guard of an agent, which tidies up.
  void lose(std::uint32_t node);
  [[nodiscard]] Result<void> bring_back(std::uint32_t node);
  /// The node's launcher once more, after it has ended by itself: as if it had not.
  [[nodiscard]] Result<void> start_again(std::uint32_t node);
  void lose_store();
  [[nodiscard]] Result<void> bring_back_store();
  /// The node whose launcher serves the rendezvous; nothing while nobody does that was started here.
  [[nodiscard]] std::optional<std::uint32_t> coordinator() const;
  [[nodiscard]] bool has_store() const { return setting_.options.has_store; }
  [[nodiscard]] bool store_runs() const { return store_ != nullptr && !store_ended_; }

  /// Nodes that are started here: from the first to before the end.
  [[nodiscard]] std::uint32_t nodes_begin() const { return setting_.options.first_node(); }
  [[nodiscard]] std::uint32_t nodes_end() const { return nodes_begin() + static_cast<std::uint32_t>(nodes_.size()); }
  [[nodiscard]] bool runs(std::uint32_t node) const;
  [[nodiscard]] std::vector<WorkerProcess> workers(std::uint32_t node) const;
  /// Whether the node has a worker, or was seen to have one since its launcher's last start: a line before that is no worker's. To be asked while workers may live.
  [[nodiscard]] bool has_worked(std::uint32_t node);
  /// How the node's launcher ended by itself; nothing while it runs, or when it was lost.
  [[nodiscard]] const std::optional<Ending>& ending(std::uint32_t node) const { return at(node).ending; }
  /// When; of a launcher with an ending.
  [[nodiscard]] Instant ended_at(std::uint32_t node) const { return at(node).ended_at; }
  [[nodiscard]] Instant began() const { return began_; }

  /// Kills whatever is left, and reads the output to its end. `orphans` are those that lost their launcher. Returns the processes that have not ended in `end_limit`: they hang in the
  /// kernel, and nobody waits for them.
  std::vector<pid_t> end_all(Orphans& orphans);
  /// True for a process that this object collects.
  [[nodiscard]] bool is_known(pid_t pid) const;
  /// The last lines of a node's output.
  [[nodiscard]] std::vector<std::string> last_lines(std::uint32_t node) const { return at(node).last_lines; }

 private:
  struct Node {
    std::unique_ptr<Child> child{};
    std::optional<Ending> ending{};
    Instant ended_at{};
    bool is_lost = false, has_worked = false;
    std::uint64_t start = 0;  // counts the starts: an ending of an earlier one means nothing
    std::unique_ptr<boost::asio::posix::stream_descriptor> output{};
    Fd write_end{};
    Fd log{};
    std::string unfinished_line{};
    std::vector<std::string> last_lines{};
    std::array<char, 16384> buffer{};
  };
  [[nodiscard]] Node& at(std::uint32_t node) { return nodes_[node - nodes_begin()]; }
  [[nodiscard]] const Node& at(std::uint32_t node) const { return nodes_[node - nodes_begin()]; }
  [[nodiscard]] Result<std::unique_ptr<Child>> spawn(std::vector<std::string> words, std::uint32_t network, int output,
                                                     std::function<void(Ending)> ended);
  [[nodiscard]] Result<void> start_node(std::uint32_t node);
  [[nodiscard]] Result<void> open_output(std::uint32_t node);
  [[nodiscard]] Places places(std::uint32_t node) const;
  void read_on(std::uint32_t node);
  /// What is in the pipe, as far as the buffer goes. False: nothing.
  bool read_some(std::uint32_t node);
  void take(std::uint32_t node, std::string_view text);

  boost::asio::io_context& loop_;
  const Guard& guard_;
  const Clock& clock_;
  RehearsedSetting setting_;
  std::function<void(std::uint32_t, std::string_view)> line_;
  std::function<void()> changed_;
  std::uint16_t port_ = 0;
  std::vector<Node> nodes_;
  std::unique_ptr<Child> store_;
  bool store_ended_ = false;
  Fd store_log_;
  Instant began_{};
};

}  // namespace elrun::inline v0::launcher
