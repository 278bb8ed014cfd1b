/// \file The main function of every test, and the guard of a rule that Catch2 states but does not enforce: only the
/// thread that runs the cases may check anything.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#include <catch2/catch_session.hpp>
using Listener = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
using Listener = Catch::TestEventListenerBase;
#endif

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

const std::thread::id main_thread = std::this_thread::get_id();

/// Ends the test where another thread checks: a race that only a thread sanitizer with luck would show otherwise.
class OnlyMainChecks final : public Listener {
 public:
  using Listener::Listener;
  void assertionStarting(const Catch::AssertionInfo& info) override {
    if (std::this_thread::get_id() == main_thread) return;
    std::fprintf(stderr, "%s:%zu: checked outside the main thread; store the value and check it after the join\n", info.lineInfo.file,
                 info.lineInfo.line);
    std::abort();
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(OnlyMainChecks)

int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
