#pragma once
/// \file LastWords: what a worker that has ended left in its files.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace elrun::inline v0::launcher {

struct LastWords {
  std::vector<std::string> lines{};     ///< Of its standard error
  bool has_record = false;              ///< There is an error file,
  std::optional<std::string> record{};  ///< and this is its text, if it can be read;
  std::int64_t record_ns = 0;           ///< written then.
  bool place_answers = true;            ///< Where the files are. If it does not, nobody knows what is in them.
};

}  // namespace elrun::inline v0::launcher
