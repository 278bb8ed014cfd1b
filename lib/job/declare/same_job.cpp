#include "lib/job/declare/same_job.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/bytes.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {

namespace {

/// What one rank says of itself: the digests of its agreements, and whether it has the state.
struct SaidByRank {
  explicit SaidByRank(const ByteVector& bytes) : digests{ByteSpan{bytes}.first(bytes.empty() ? 0 : bytes.size() - 1)} {
    has_state = !bytes.empty() && bytes.back() != std::byte{0};
  }
  ByteSpan digests;
  bool has_state = false;
  [[nodiscard]] bool agrees_with(const SaidByRank& other) const { return std::ranges::equal(digests, other.digests); }
  [[nodiscard]] ByteSpan digest(std::size_t i) const { return digests.size() >= (i + 1) * 32 ? digests.subspan(i * 32, 32) : ByteSpan{}; }
};

}  // namespace

void same_job_everywhere(JobWorld& world, const std::vector<Agreement>& mine, bool has_state,
                         const std::function<void(const std::string&)>& tell) {
  ByteWriter w;
  for (const Agreement& a : mine) w.put_raw(sha256(as_bytes(a.text)));
  w.put(static_cast<std::uint8_t>(has_state));
  const auto bytes = expect(world, world.all_gather(w.bytes()));
  const std::vector<SaidByRank> said{bytes.begin(), bytes.end()};
  const auto holder = std::ranges::find_if(said, &SaidByRank::has_state);
  const auto first = static_cast<std::uint32_t>(holder == said.end() ? 0 : holder - said.begin());
  const auto differs = [&](const SaidByRank& one) { return !one.agrees_with(said[first]); };
  // Two with state that differ come first: nobody can say which of them is right.
  auto other = std::ranges::find_if(said, [&](const SaidByRank& one) { return one.has_state && differs(one); });
  const bool holders_differ = other != said.end();
  if (!holders_differ) other = std::ranges::find_if(said, differs);
  if (other == said.end()) return;
  // All know the same of all, so all come here together: the texts of what differs first, for the message.
  const auto r = static_cast<std::uint32_t>(other - said.begin());
  std::size_t i = 0;
  while (i + 1 < mine.size() && std::ranges::equal(other->digest(i), said[first].digest(i))) ++i;
  // With the nodes' names, which are no part of the agreement.
  const std::string named = world.node().empty() ? mine[i].text : fmt::format("node: {}\n{}", world.node(), mine[i].text);
  const auto texts = expect(world, world.all_gather(as_bytes(named)));
  const auto text = [&](std::uint32_t rank) {
    return std::string_view{reinterpret_cast<const char*>(texts[rank].data()), texts[rank].size()};
  };
  const std::string what = fmt::format("rank {} has another {} than rank {}: {}\n{}", r, mine[i].name, first, mine[i].remedy,
                                       difference(fmt::format("rank {}", first), text(first), fmt::format("rank {}", r), text(r)));
  const auto fail = [&] { throw Error{Failure{Code::mismatch, Remedy::fix_config, what}}; };
  if (holder == said.end() || holders_differ) fail();
  // A newcomer is wrong, and not who has trained. It ends by itself, and its node stays out.
  if (tell && world.rank() == first) tell(what);
  (void)world.all_gather({});  // the end of a newcomer ends the generation, and who is to tell might not have come to it
  if (differs(said[world.rank()])) fail();
  world.end({.code = Code::peer_lost, .remedy = Remedy::rejoin, .what = what, .generation = world.membership().generation});
  revoked(world);
}

}  // namespace elrun::inline v0
