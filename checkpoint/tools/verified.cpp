#include "checkpoint/tools/verified.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/tools/listing.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {

std::string verified_text(const VerifiedCheckpoint& one) {
  const Verified& v = one.found;
  const std::string damages = fmt::format("{} found", count_of(v.damage.size() + v.unlisted, "damage"));
  const std::string found = v.is_whole() ? "whole" : v.cut_off ? fmt::format("not read to its end, {}", damages) : damages;
  std::string text = fmt::format("{}: {}, {} in {} read in {:.2f} s, {}/s\n", to_string(one.id), found, size_text(v.bytes),
                                 count_of(v.files, "file"), seconds(one.took),
                                 size_text(static_cast<std::uint64_t>(static_cast<double>(v.bytes) / std::max(1e-6, seconds(one.took)))));
  for (const Damage& d : v.damage) text += fmt::format("  {}: {}\n", printable(d.file), printable(d.what));
  if (v.unlisted > 0) text += fmt::format("  and {} more\n", v.unlisted);
  return text;
}

Json verified_json(const std::vector<VerifiedCheckpoint>& all) {
  Json out = Json::array();
  bool is_whole = true;
  for (const VerifiedCheckpoint& one : all) {
    const Verified& v = one.found;
    Json damage = Json::array();
    for (const Damage& d : v.damage)
      damage.push_back({{"file", d.file}, {"block", d.block ? Json(*d.block) : Json(nullptr)}, {"what", d.what}});
    is_whole = is_whole && v.is_whole();
    out.push_back({{"checkpoint", to_string(one.id)},
                   {"whole", v.is_whole()},
                   {"files", v.files},
                   {"blocks", v.blocks},
                   {"bytes", v.bytes},
                   {"seconds", seconds(one.took)},
                   {"damage", std::move(damage)},
                   {"damage_unlisted", v.unlisted},
                   {"failure", v.cut_off ? Json(v.cut_off->what) : Json(nullptr)}});
  }
  return {{"checkpoints", std::move(out)}, {"whole", is_whole}};
}

}  // namespace elrun::inline v0
