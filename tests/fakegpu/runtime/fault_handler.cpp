#include "tests/fakegpu/runtime/fault_handler.hpp"

#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "tests/fakegpu/runtime/reports.hpp"
#include "tests/fakegpu/runtime/runtime.hpp"

namespace fakegpu {
namespace {

constexpr int x86_page_fault_write = 2;

struct sigaction before;  // what the program had

std::string touched(const void* address, const Allocation* a, const char* did) {
  const auto offset = static_cast<const std::byte*>(address) - a->base;
  const std::string where = " offset " + std::to_string(offset) + " of " + a->name();
  return std::string{"the host "} + did + where + (a->freed ? "" : ", which only operations on a stream may touch");
}

void on_fault(int number, siginfo_t* info, void* context) {
  if (Memory::in_range(info->si_addr)) {
    // The process is lost either way: what this reads without the lock may be wrong, and says so at worst by a second fault.
    const Allocation* const a = Runtime::get().memory.near(info->si_addr);
    const char* did = "touches";
#ifdef __x86_64__
    const auto* machine = static_cast<const ucontext_t*>(context);
    did = (machine->uc_mcontext.gregs[REG_ERR] & x86_page_fault_write) != 0 ? "writes" : "reads";
#endif
    report(a != nullptr ? touched(info->si_addr, a, did)
                        : std::string{"the host "} + did + " an address of the devices where nothing is allocated");
    std::fflush(nullptr);
    std::_Exit(settings().report_exit != 0 ? settings().report_exit : 139);
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(number);
  signal(number, SIG_DFL);  // the access is made again, and ends the process
}

}  // namespace

void watch_for_touches_of_the_host() {
  struct sigaction now {};
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) return;
  static std::mutex mutex;
  const std::scoped_lock lock{mutex};
  before = now;
  struct sigaction mine {};
  mine.sa_sigaction = on_fault;
  mine.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&mine.sa_mask);
  sigaction(SIGSEGV, &mine, nullptr);
}

}  // namespace fakegpu
