#include "tests/support/sim/turns.hpp"

#include <cxxabi.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "lib/base/assert.hpp"

namespace elrun::sim {
namespace {

// A training program takes some 30 KiB of it. Only pages that were used cost memory.
constexpr std::size_t stack_bytes = std::size_t{1} << 20;
constexpr std::size_t guard_bytes = std::size_t{64} << 10;

/// Stacks of bodies that are over, for the next ones of this thread.
struct Spare {
  std::vector<void*> stacks;
  ~Spare() {
    for (void* stack : stacks) ::munmap(stack, guard_bytes + stack_bytes);
  }
};
thread_local Spare spare;

}  // namespace

class Turns::Stack {
 public:
  Stack() {
    if (!spare.stacks.empty()) {
      at_ = spare.stacks.back();
      spare.stacks.pop_back();
      return;
    }
    at_ = ::mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ELRUN_ASSERT(at_ != MAP_FAILED && ::mprotect(at_, guard_bytes, PROT_NONE) == 0);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack() { spare.stacks.push_back(at_); }
  [[nodiscard]] stack_t place() const { return {static_cast<std::byte*>(at_) + guard_bytes, 0, stack_bytes}; }

 private:
  void* at_;
};

Turns::Turns(std::function<void()> body) : body_{std::move(body)} {}

Turns::~Turns() { end(); }

void Turns::hand_over(ucontext_t& from, const ucontext_t& to) {
  std::swap(last_assertion, others_.last_assertion);
  // The Itanium ABI says what they begin with: the exceptions in handlers, and how many unwind.
  struct Exceptions {
    void* caught;
    unsigned uncaught;
  };
  auto& exceptions = *reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  std::swap(exceptions.caught, others_.caught);
  std::swap(exceptions.uncaught, others_.uncaught);
  ELRUN_ASSERT(::swapcontext(&from, &to) == 0);
}

// makecontext passes ints alone.
void Turns::run(unsigned high, unsigned low) {
  auto& turns = *reinterpret_cast<Turns*>(std::uintptr_t{high} << 32 | low);
  try {
    turns.body_();
  } catch (const Ended&) {
  }
  turns.over_ = true;
  turns.hand_over(turns.waiting_, turns.giver_);
  std::terminate();  // nobody gives a turn to what is over
}

void Turns::give() {
  if (over_) return;
  if (stack_ == nullptr) {
    stack_ = std::make_unique<Stack>();
    ELRUN_ASSERT(::getcontext(&waiting_) == 0);
    waiting_.uc_stack = stack_->place();
    waiting_.uc_link = nullptr;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    ::makecontext(&waiting_, reinterpret_cast<void (*)()>(&Turns::run), 2, static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  }
  hand_over(giver_, waiting_);
  if (over_) stack_.reset();
}

void Turns::wait() {
  if (!ending_) hand_over(waiting_, giver_);
  if (ending_) throw Ended{};
}

void Turns::end() {
  ending_ = true;
  while (stack_ != nullptr && !over_) give();
}

}  // namespace elrun::sim
