// Preloaded, it moves the date of a process by ELRUN_TEST_SKEW seconds; what measures durations stays.
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#include <cstdlib>

namespace {

time_t skew() {
  static const time_t seconds = [] {
    const char* text = std::getenv("ELRUN_TEST_SKEW");
    return text == nullptr ? 0 : std::atol(text);
  }();
  return seconds;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static const auto real = reinterpret_cast<int (*)(clockid_t, timespec*)>(::dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = real(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew();
  return result;
}

__attribute__((visibility("default"))) int gettimeofday(timeval* now, void*) noexcept {
  timespec precise{};
  const int result = clock_gettime(CLOCK_REALTIME, &precise);
  *now = {precise.tv_sec, precise.tv_nsec / 1000};
  return result;
}

__attribute__((visibility("default"))) time_t time(time_t* into) noexcept {
  timespec precise{};
  clock_gettime(CLOCK_REALTIME, &precise);
  if (into != nullptr) *into = precise.tv_sec;
  return precise.tv_sec;
}
}
