// JobSaves that wait for their storage for a day, or for ever.

#include <algorithm>
#include <cerrno>

#include "tests/unit/saving_member.hpp"

namespace elrun::test {

TEST_CASE("a final save is tried every 30 s for as long as it may be, and never runs out of names", "[job_saves]") {
  FaultyFiles files;
  const Duration wait = GENERATE(Duration{24h}, Duration::max());
  Saving job{files, 1, {.directory = "/root", .final_wait = wait}};
  const auto error = GENERATE(ENOSPC, EIO);  // which takes a name for each try, and three
  files.broken = [=](const Path& path) { return path.filename() == manifest_file ? error : 0; };
  job.while_waiting = [&] {
    if (job.clock.now() >= Instant{} + 2h) files.broken = nullptr;
  };
  job.saves.save_at_the_end(7, {{"elrun.step", {}}});
  CHECK(job.saves.saved_step() == 7);
  CHECK(std::ranges::count_if(job.lines, [](const std::string& line) { return line.find("tried again in 30.0 s") != std::string::npos; }) >
        230);
  CHECK(job.clock.now() <= Instant{} + 2h + 1min);
  Saving next{files, 2, {.directory = "/root"}};
  REQUIRE(next.saves.restore());
  CHECK(next.saves.restored().step == 7);
}

TEST_CASE("a start that may wait for ever does", "[job_saves]") {
  FaultyFiles files;
  Saving old{files, 1, {.directory = "/root"}};
  old.saves.save(6, {{"elrun.step", {}}});
  files.broken = [](const Path&) { return EIO; };
  Saving next{files, 2, {.directory = "/root", .final_wait = Duration::max()}};
  next.while_waiting = [&] {
    if (next.clock.now() >= Instant{} + 24h) files.broken = nullptr;
  };
  REQUIRE(next.saves.restore());
  CHECK(next.saves.restored().step == 6);
  CHECK(next.clock.now() <= Instant{} + 24h + 30s);
}

}  // namespace elrun::test
