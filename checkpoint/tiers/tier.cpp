#include "checkpoint/tiers/tier.hpp"

#include <fmt/format.h>

namespace elrun::inline v0 {

std::string name_in(std::string_view directory, std::string_view name) {
  return directory.empty() ? std::string{name} : fmt::format("{}/{}", directory, name);
}

Result<ByteVector> Tier::get_all(const std::string& name, Bytes max) {
  ELRUN_TRY_ASSIGN(const auto file, open(name));
  ELRUN_TRY_ASSIGN(const std::uint64_t size, file->size());  // before anything of that length is asked of the memory
  if (size > max.value())
    return Failure{Code::corrupt, Remedy::fix_config,
                   fmt::format("{} has {} bytes, more than the {} that such a file can have", where(name), size, max.value())};
  ByteVector data(size);
  ELRUN_TRY(file->read_at(0, data));
  return data;
}

// For a place where nothing is there before it is there for good, and nothing is in the way of a name.
Result<void> Tier::make_durable(const std::string&) { return {}; }
Result<void> Tier::discard(const std::string& name) { return remove(name); }
Result<void> Tier::throw_away(const std::string& directory) { return remove_all(directory); }
Result<void> Tier::empty_trash() { return {}; }

}  // namespace elrun::inline v0
