#include "tests/fakegpu/runtime/faults.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tests/fakegpu/runtime/random.hpp"

namespace fakegpu {
namespace {

constexpr struct {
  const char* name;
  Faults::Kind kind;
  std::uint64_t value;
} kinds[] = {{"malloc", Faults::Kind::malloc, 0}, {"pinned", Faults::Kind::pinned, 0},
             {"launch", Faults::Kind::launch, 0}, {"sticky", Faults::Kind::sticky, cudaErrorIllegalAddress},
             {"slow", Faults::Kind::slow, 100},   {"stuck", Faults::Kind::stuck, 0}};
constexpr std::uint64_t seeded_place_max = 100;

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

[[noreturn]] void refuse(const std::string& word) {
  std::fprintf(stderr, "fakegpu: FAKEGPU_FAULTS has '%s', which is no fault (tests/fakegpu/runtime/faults.hpp lists them)\n", word.c_str());
  std::_Exit(78);
}

std::uint64_t number(const std::string& text, const std::string& word) {
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text.c_str(), &end, 0);
  if (text.empty() || *end != '\0') refuse(word);
  return value;
}

}  // namespace

Faults::Faults(const std::string& plan) {
  for (const std::string& word : parts_of(plan, ','))
    if (!word.empty()) understand(word);
}

void Faults::understand(const std::string& word) {
  if (word == "no_driver") return void(driver_ = Driver::missing);
  if (word == "old_driver") return void(driver_ = Driver::old);
  if (word == "no_device") return void(driver_ = Driver::without_device);
  const std::vector<std::string> parts = parts_of(word, ':');
  if (parts.size() < 2 || parts.size() > 3) refuse(word);
  const std::uint64_t at = number(parts[1], word);
  if (parts[0] == "slow_copies") return void(copies_longer_ = std::chrono::milliseconds{at});
  if (parts[0] == "count") return void(count_error_ = static_cast<int>(at));
  if (parts[0] == "seed") {
    Random random{at};
    const auto& kind = kinds[random.below(std::size(kinds))];
    return faults_.push_back({kind.kind, 1 + random.below(seeded_place_max), kind.value});
  }
  const auto* kind = std::ranges::find_if(kinds, [&](const auto& k) { return parts[0] == k.name; });
  if (kind == std::end(kinds)) refuse(word);
  faults_.push_back({kind->kind, at, parts.size() == 3 ? number(parts[2], word) : kind->value});
}

std::optional<Faults::Fault> Faults::hit(std::uint64_t count, Kind kind) const {
  const auto found = std::ranges::find_if(faults_, [&](const Fault& f) { return f.kind == kind && f.at == count; });
  return found == faults_.end() ? std::nullopt : std::optional{*found};
}

std::function<bool()> longer_by(std::chrono::milliseconds time) {
  return [time, until = std::make_shared<std::optional<std::chrono::steady_clock::time_point>>()] {
    const auto now = std::chrono::steady_clock::now();
    if (!*until) *until = now + time;
    return now >= **until;
  };
}

std::vector<Faults::Fault> Faults::next_launch() {
  ++launches_;
  std::vector<Fault> now;
  for (const Fault& f : faults_)
    if (f.kind != Kind::malloc && f.kind != Kind::pinned && f.at == launches_) now.push_back(f);
  return now;
}

}  // namespace fakegpu
