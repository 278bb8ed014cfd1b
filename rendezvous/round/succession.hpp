#pragma once
/// \file Succession: whether this coordinator begins the next generation itself, or another one does. Pure.
///
/// Where coordinators are elected, an agent whose own node leaves ends soon. If its coordinator began a generation, it could end between
/// writing it down and telling it. So it hands over instead, once, when every other node is ready.

#include <utility>

#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

class Succession {
 public:
  explicit Succession(bool elected) : elected_{elected} {}
  /// Another coordinator can be elected in the place of this one.
  [[nodiscard]] bool is_elected() const { return elected_; }
  /// The node in this process said Leave.
  void own_node_leaves() { own_node_left_ = true; }
  /// Another coordinator begins the next generation.
  [[nodiscard]] bool is_due() const { return elected_ && own_node_left_; }
  /// True once, where another one should begin it and none may: this one begins it all the same.
  [[nodiscard]] bool has_nobody() { return is_due() && !std::exchange(reported_nobody_, true); }
  /// True once: the leadership is to be handed over now.
  [[nodiscard]] bool hand_over() { return is_due() && !std::exchange(handed_over_, true); }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  bool elected_;
  bool own_node_left_ = false;
  bool handed_over_ = false;
  bool reported_nobody_ = false;
};

}  // namespace elrun::inline v0
