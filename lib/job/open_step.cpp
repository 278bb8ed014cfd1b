#include "lib/job/open_step.hpp"

#include <utility>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

void expect(bool holds, const char* what) {
  if (!holds) throw Error{invalid(what)};
}

}  // namespace

void OpenStep::reset() {
  loop_ = Loop::untaken;
  slot_ = 0;
  lost_evaluation_ = left_evaluation_ = false;
  evaluation_.reset();
  begun_ = {};
  audit_.begin_step();
}

void OpenStep::begin(Instant now) {
  reset();
  stage_ = Stage::open;
  begun_ = now;
}

void OpenStep::close() {
  if (stage_ == Stage::open) stage_ = Stage::undecided;
}

bool OpenStep::revoke() {
  reset();
  return std::exchange(stage_, Stage::none) != Stage::none;
}

void OpenStep::go_back() {
  if (stage_ == Stage::none) stage_ = Stage::undecided;
}

void OpenStep::take_slots(bool world_over) {
  expect(is_open() || world_over, "slots() is called after apply(), or for a step that is over: take the next one from next_step()");
  expect(loop_ == Loop::untaken,
         "slots() is called twice in one step: it hands out each slot once; keep what a second pass needs in the first");
  loop_ = Loop::taken;
}

void OpenStep::begin_loop() {
  expect(loop_ != Loop::begun, "a second loop goes over the slots of one step: each slot is handed out once");
  loop_ = Loop::begun;
}

}  // namespace elrun::inline v0
