// Any words and any PET_ variables give options within their bounds, or say what is wrong; nothing crashes.
// Built with -DELRUN_FUZZER and clang's -fsanitize=fuzzer it is a fuzzer, otherwise a short test by seed.
#include <cstddef>
#include <cstdint>

#include "launcher/options.hpp"
#include "lib/base/assert.hpp"

using namespace elrun;
using namespace elrun::launcher;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> words(1);
  Variables environment;
  for (std::size_t i = 0; i < size; ++i) {
    if (data[i] == '\n')
      words.emplace_back();
    else
      words.back() += static_cast<char>(data[i]);
  }
  for (std::size_t i = 0; i < words.size();) {
    const auto equals = words[i].find('=');
    if (words[i].starts_with("PET_") && equals != std::string::npos) {
      environment[words[i].substr(0, equals)] = words[i].substr(equals + 1);
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  const auto command = parse_command(words, environment, {[] { return 2u; }, [] { return 3u; }});
  if (const auto* o = std::get_if<LaunchOptions>(&command)) {
    ELRUN_ASSERT(o->round.nodes_min >= 1 && o->round.nodes_min <= o->round.nodes_max &&
                 o->round.nodes_max <= nodes_limit);
    ELRUN_ASSERT(o->workers <= workers_per_node_limit && (o->workers > 0 || o->round.nodes_max > 1));
    ELRUN_ASSERT(o->timeouts.consistent());
    ELRUN_ASSERT(o->endpoint.has_value() || o->round.nodes_max == 1);
    ELRUN_ASSERT(!o->endpoint || (!o->endpoint->host.empty() && o->endpoint->port != 0));
    ELRUN_ASSERT(!o->program.name.empty());
  } else if (const auto* usage = std::get_if<Usage>(&command)) {
    ELRUN_ASSERT(!usage->text.empty());
  }
  return 0;
}

#ifndef ELRUN_FUZZER
#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

TEST_CASE("words of all kinds", "[fuzz]") {
  static constexpr const char* pieces[] = {"--nnodes",
                                           "--nproc_per_node",
                                           "--nproc",
                                           "--rdzv_endpoint",
                                           "--rdzv_conf",
                                           "--rdzv-id",
                                           "--max-restarts",
                                           "--shutdown_timeout",
                                           "--standalone",
                                           "-m",
                                           "--no-python",
                                           "-r",
                                           "-t",
                                           "--",
                                           "store",
                                           "--port",
                                           "=",
                                           ":",
                                           ",",
                                           "\n",
                                           "\n",
                                           "\n",
                                           "\n",
                                           "1",
                                           "2",
                                           "1:2",
                                           "gpu",
                                           "auto",
                                           "h:29400",
                                           "[::1]:1",
                                           "join_timeout=3",
                                           "keep_alive_interval=1e300",
                                           "-1",
                                           "99999999999999999999",
                                           "nan",
                                           "inf",
                                           "PET_NNODES=2",
                                           "PET_MODULE=",
                                           "--master_addr",
                                           "--master_port",
                                           "--node_rank",
                                           "s.py",
                                           " ",
                                           "\t",
                                           "$"};
  elrun::test::for_all_seeds(20000, [](Rng& rng) {
    std::string input;
    for (auto n = rng.below(24); n > 0; --n) {
      if (rng.chance(0.05))
        input += static_cast<char>(rng.below(256));
      else
        input += pieces[rng.below(std::size(pieces))], input += rng.chance(0.6) ? "\n" : "";
    }
    CHECK(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()) == 0);
  });
}
#endif
