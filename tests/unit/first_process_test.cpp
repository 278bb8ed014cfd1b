// Who is process 1, and what becomes of a SIGTERM there.
#include "launcher/process/first_process.hpp"

#include <fmt/format.h>

#include "tests/support/catch.hpp"

using namespace elrun::launcher;

namespace {

// As in /proc/1/status; bit 14 is SIGTERM's.
std::string status(const char* name, const char* blocked = "0000000000000000", const char* caught = "0000000000010002") {
  return fmt::format(
      "Name:\t{}\nUmask:\t0022\nState:\tS (sleeping)\nSigPnd:\t0000000000000000\nSigBlk:\t{}\nSigIgn:\t0000000000000004\nSigCgt:\t{}\n",
      name, blocked, caught);
}

constexpr const char* with_sigterm = "0000000000014002";

}  // namespace

TEST_CASE("a shell that is process 1 without a handler for SIGTERM is told of", "[first process]") {
  for (const char* shell : {"sh", "bash", "dash", "ash", "busybox"}) {
    const std::string warning = first_process_warning(status(shell), 7);
    CHECK(warning.find(fmt::format("process 1 of this container is {}, which swallows SIGTERM", shell)) == 0);
    CHECK(warning.find("exec elrun") != std::string::npos);
    CHECK(warning.find("elrun drain") != std::string::npos);
  }
}

TEST_CASE("what passes a SIGTERM on, or may do so, is not told of", "[first process]") {
  CHECK(first_process_warning(status("bash"), 1).empty());                                    // elrun itself is process 1
  CHECK(first_process_warning(status("bash", "0000000000000000", with_sigterm), 7).empty());  // a trap
  CHECK(first_process_warning(status("bash", with_sigterm), 7).empty());                      // it reads signals from elsewhere
  for (const char* init : {"tini", "dumb-init", "systemd", "elrun", "python3", "bashful"})
    CHECK(first_process_warning(status(init), 7).empty());
}

TEST_CASE("a status that cannot be read says nothing", "[first process]") {
  for (const char* text : {"", "Name:", "Name:\tbash\n", "Name:\tbash\nSigBlk:\tx\nSigCgt:\t0\n", "Name:\tbash\nSigBlk:\t0\nSigCgt:\t\n"})
    CHECK(first_process_warning(text, 7).empty());
}
