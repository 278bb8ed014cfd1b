#include "lib/job/declare/same_job.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/bytes.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {

void same_job_everywhere(JobWorld& world, const std::vector<Agreement>& mine) {
  ByteWriter w;
  for (const Agreement& a : mine) w.put_raw(sha256(as_bytes(a.text)));
  const auto digests = expect(world, world.all_gather(w.bytes()));
  for (std::uint32_t r = 1; r < world.size(); ++r) {
    if (digests[r] == digests[0]) continue;
    // All have the same digests, so all come here together: the texts of what differs first, for the message.
    const auto digest = [&](std::uint32_t rank, std::size_t i) {
      return digests[rank].size() == w.bytes().size() ? ByteSpan{digests[rank]}.subspan(i * 32, 32) : ByteSpan{};
    };
    std::size_t i = 0;
    while (i + 1 < mine.size() && std::ranges::equal(digest(r, i), digest(0, i))) ++i;
    const auto texts = expect(world, world.all_gather(as_bytes(mine[i].text)));
    const auto text = [&](std::uint32_t rank) {
      return std::string_view{reinterpret_cast<const char*>(texts[rank].data()), texts[rank].size()};
    };
    throw Error{Failure{Code::mismatch, Remedy::fix_config,
                        fmt::format("rank {} has another {} than rank 0: {}\n{}", r, mine[i].name, mine[i].remedy,
                                    difference("rank 0", text(0), fmt::format("rank {}", r), text(r)))}};
  }
}

}  // namespace elrun::inline v0
