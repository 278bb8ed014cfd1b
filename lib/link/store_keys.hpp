#pragma once
/// \file StoreKeys: the keys of a store and their values. Pure.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/planted.hpp"
#include "lib/link/store_call.hpp"

namespace elrun::inline v0 {

/// In the order of their names. A value.
class StoreKeys {
 public:
  /// Null: there is no such key.
  [[nodiscard]] const ByteVector* find(const std::string& key) const {
    const auto entry = keys_.find(key);
    return entry == keys_.end() ? nullptr : &entry->second;
  }
  [[nodiscard]] bool contains(const std::string& key) const { return find(key) != nullptr; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  /// Keys that begin so.
  [[nodiscard]] std::size_t count(std::string_view prefix) const;
  /// Names and values, and the memory around them.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// The first of the keys that a call names, from this one on, that is not there; their number: all are.
  [[nodiscard]] std::size_t missing(const StoreRequest& request, std::size_t from = 0) const;

  void put(const std::string& key, ByteVector value);
  /// It is there.
  void erase(const std::string& key) { erase(keys_.find(key)); }
  /// All but the job's.
  void drop_generation();

 private:
  ELRUN_COMPARED_IN_SIMULATION
  using Keys = std::map<std::string, ByteVector, std::less<>>;
  void erase(Keys::iterator entry);

  Keys keys_;
  std::uint64_t bytes_ = 0;
};

}  // namespace elrun::inline v0
