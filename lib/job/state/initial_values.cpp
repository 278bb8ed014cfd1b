#include "lib/job/state/initial_values.hpp"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lib/base/bytes.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {
namespace {

Failure differing(std::uint32_t rank, std::uint32_t from, std::uint64_t step) {
  return Failure{
      Code::mismatch, Remedy::fix_config,
      fmt::format(
          "the parameters of rank {} differ from those of rank {} before step {}: initialise them from job.rng(name) alone, "
          "on every rank, and only where job.restore() says that there is no state{}",
          rank, from, step,
          step == 0 ? "" : "; and write to frozen tensors only after a decided step and before next_step(), the same on every rank")};
}

}  // namespace

Result<void> InitialValues::hear_votes(std::span<const std::uint64_t> by_rank, std::uint64_t step) {
  comparison_ = Comparison::done;
  for (std::uint32_t r = 1; r < by_rank.size(); ++r)
    if (by_rank[r] != by_rank[0]) return differing(r, 0, step);
  return {};
}

void InitialValues::compare(JobWorld& world, std::uint64_t replicated, std::uint64_t step) {
  comparison_ = Comparison::done;
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
      if (seen[i]->second != hash && !reader.broken()) throw Error{differing(r, seen[i]->first, step)};
    }
    if (const auto read = reader.finish("the hashes of a rank's parameters"); !read.ok()) {
      world.end(read.failure());
      revoked(world);
    }
  }
}

}  // namespace elrun::inline v0
