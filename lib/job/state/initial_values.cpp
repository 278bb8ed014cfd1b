#include "lib/job/state/initial_values.hpp"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lib/base/bytes.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {

void InitialValues::compare(JobWorld& world, std::uint64_t replicated, std::uint64_t step) {
  compared_ = true;
  ByteWriter mine;
  mine.put(replicated);
  for (const std::uint64_t hash : written_) mine.put(hash);
  const auto parts = expect(world, world.all_gather(mine.bytes()));
  std::vector<std::optional<std::pair<std::uint32_t, std::uint64_t>>> seen(1 + written_.size());
  for (std::uint32_t r = 0; r < world.size(); ++r) {
    ByteReader reader{parts[r]};
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const auto hash = reader.get<std::uint64_t>();
      if (i > 0 && hash == 0) continue;
      if (!seen[i]) seen[i] = {r, hash};
      if (seen[i]->second != hash && !reader.broken())
        throw Error{Failure{Code::mismatch, Remedy::fix_config,
                            fmt::format("the parameters of rank {} differ from those of rank {} before step {}: "
                                        "initialise them from job.rng(name) alone, on every rank",
                                        r, seen[i]->first, step)}};
    }
    if (const auto read = reader.finish("the hashes of a rank's parameters"); !read.ok()) {
      world.end(read.failure());
      revoked(world);
    }
  }
}

}  // namespace elrun::inline v0
