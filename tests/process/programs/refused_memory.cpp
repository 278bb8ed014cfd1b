// Preloaded into a process, it refuses one allocation of its first thread. SIGUSR1 arms it: of all that follow and have ELRUN_REFUSED_BYTES or more, that with the number ELRUN_REFUSED_ALLOCATION
// (1: the next) is refused, and then the file ELRUN_REFUSED_MARK appears.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <new>

namespace {

volatile std::sig_atomic_t left = 0, number = 0;  // of the first thread, where the handler runs, too: the others block all signals

void arm(int) { left = number; }

std::size_t least = 0;

bool is_refused(std::size_t size) {
  if (left == 0 || size < least || ::syscall(SYS_gettid) != ::getpid()) return false;
  left = left - 1;
  if (left > 0) return false;
  const char* mark = std::getenv("ELRUN_REFUSED_MARK");
  if (const int file = mark != nullptr ? ::open(mark, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) : -1; file >= 0) ::close(file);
  return true;
}

[[gnu::constructor]] void begin() {
  const char* which = std::getenv("ELRUN_REFUSED_ALLOCATION");
  number = which != nullptr ? std::atoi(which) : 0;
  const char* bytes = std::getenv("ELRUN_REFUSED_BYTES");
  least = bytes != nullptr ? static_cast<std::size_t>(std::atoi(bytes)) : 0;
  struct sigaction action {};
  action.sa_handler = arm;
  (void)::sigaction(SIGUSR1, &action, nullptr);
}

}  // namespace

void* operator new(std::size_t size) {
  void* const memory = is_refused(size) ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc{};
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
