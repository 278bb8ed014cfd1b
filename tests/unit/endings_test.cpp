#include "launcher/report/endings.hpp"

#include "tests/support/catch.hpp"

using namespace elrun::launcher;

TEST_CASE("an ending is told as a shell tells it", "[report]") {
  CHECK(Ending{.exit_code = 3}.code() == 3);
  CHECK(Ending{.signal = 9}.code() == 137);
  CHECK(Ending{}.ok());
  CHECK_FALSE(Ending{.signal = 15}.ok());
  CHECK(describe({.exit_code = 3}) == "exit code 3");
  CHECK(describe({.signal = 9}) == "signal 9 (SIGKILL)");
  CHECK(signal_name(11) == "SIGSEGV");
  CHECK(signal_name(40) == "signal 40");
}

TEST_CASE("from where a job went on is told with what was passed over", "[report]") {
  using elrun::Restoration;
  CHECK(describe(Restoration{.why = "there is no checkpoint"}) == "step 0 (there is no checkpoint)");
  CHECK(describe(Restoration{"/ck/s40", 40, 1, "a newer one is passed over", {"s60 is damaged"}}) ==
        "step 40, from /ck/s40 (a newer one is passed over); 1 step done again\ns60 is damaged");
}

TEST_CASE("a report gives the cause before what its code means", "[report]") {
  const std::string report = final_report(137, "rank 2 of generation 1 on node a: signal 9 (SIGKILL)");
  CHECK(report.find("exit code 137") < report.find("rank 2"));
  CHECK(report.find("rank 2") < report.find("memory"));
  CHECK(meaning_of(141).find("whose reader had gone") != std::string::npos);  // SIGPIPE
  CHECK(meaning_of(153).find("ulimit -f") != std::string::npos);              // SIGXFSZ
  CHECK(final_report(3, "") == "the job failed, exit code 3");
}

TEST_CASE("how a process is ending is read from its line in /proc before it is gone", "[report]") {
  // Fields 3 to 52; the name has what a name may have.
  const auto line = [](const std::string& state, const std::string& status) {
    std::string text = "4711 (a) b 9 (c) " + state;
    for (int field = 4; field < 52; ++field) text += " 7";
    return text + " " + status + "\n";
  };
  CHECK(ending_under_way(line("Z", "9")) == Ending{.signal = 9});
  CHECK(ending_under_way(line("R", "9")) == Ending{.signal = 9});
  CHECK(ending_under_way(line("X", "139")) == Ending{.signal = 11});  // with a core
  CHECK(ending_under_way(line("S", "768")) == Ending{.exit_code = 3});
  CHECK_FALSE(ending_under_way(line("Z", "0")));   // exit code 0, or it executes another program
  CHECK_FALSE(ending_under_way(line("T", "19")));  // stopped by SIGSTOP
  CHECK_FALSE(ending_under_way(line("t", "5")));
  CHECK_FALSE(ending_under_way(line("S", "4991")));  // 0x137f: as `wait` tells of a stopped one
  CHECK_FALSE(ending_under_way(line("S", "-1")));
  CHECK_FALSE(ending_under_way(line("S", "x")));
  const std::string whole = line("Z", "9");
  for (std::size_t size = 0; size + 2 < whole.size(); ++size) CHECK_FALSE(ending_under_way(whole.substr(0, size)));
  CHECK_FALSE(ending_under_way(""));
}
