#include "launcher/chaos/final_states.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/printable.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t state_max = 4096;  // bytes

bool is_in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool ends_word(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0 || c == '"' || c == '\''; }

/// What follows the last `mark`. A mark is no end of a longer name: "step=" is not in "max_step=".
std::optional<std::string_view> behind_last(std::string_view line, std::string_view mark) {
  for (std::size_t end = line.size(); !mark.empty() && end >= mark.size();) {
    const auto begin = line.substr(0, end).rfind(mark);
    if (begin == std::string_view::npos) return std::nullopt;
    if (begin == 0 || !is_in_name(mark[0]) || !is_in_name(line[begin - 1])) return line.substr(begin + mark.size());
    end = begin + mark.size() - 1;
  }
  return std::nullopt;
}

/// Where the word ends with which `text` begins; nothing where a bracket in it has no end.
std::optional<std::size_t> end_of_word(std::string_view text) {
  constexpr std::string_view opening = "([{", closing = ")]}";
  std::string open;  // what closes them, the newest last
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (open.empty() && ends_word(text[at])) return at;
    if (const auto kind = opening.find(text[at]); kind != std::string_view::npos) open += closing[kind];
    else if (!open.empty() && text[at] == open.back()) open.pop_back();
  }
  return open.empty() ? std::optional{text.size()} : std::nullopt;
}

}  // namespace

std::optional<std::string> word_after(std::string_view line, std::string_view mark) {
  const auto rest = behind_last(line, mark);
  if (!rest) return std::nullopt;
  const auto end = end_of_word(*rest);
  if (!end) return std::nullopt;
  std::string_view word = rest->substr(0, *end);
  const auto opens = std::ranges::count(word, '('), closes = std::ranges::count(word, ')');
  for (auto more = closes - opens; !word.empty(); word.remove_suffix(1)) {
    if (word.back() == ')' && more-- > 0) continue;  // of the sentence around it
    if (std::string_view{",;."}.find(word.back()) == std::string_view::npos) break;
  }
  if (word.empty() || word.size() > state_max) return std::nullopt;  // of a part of a state nothing can be said
  return std::string{word};
}

std::optional<std::uint64_t> number_after(std::string_view line, std::string_view mark) {
  const auto rest = behind_last(line, mark);
  std::uint64_t number = 0;
  if (!rest || std::from_chars(rest->data(), rest->data() + rest->size(), number).ec != std::errc{}) return std::nullopt;
  return number;
}

std::optional<std::uint32_t> worker_of(std::string_view line, std::uint32_t workers, std::string_view role) {
  constexpr std::size_t prefix_max = 512;  // a role has 256 bytes at most
  const std::size_t end = line.substr(0, prefix_max).find("]:", role.size() + 1);
  if (end == std::string_view::npos || line[0] != '[') return std::nullopt;
  const std::string_view name = line.substr(1, end - 1);
  // A log that begins with a time in brackets names no worker.
  const bool is_a_role =
      role.empty() ? !name.empty() && std::isalpha(static_cast<unsigned char>(name[0])) != 0 && name.find_first_of(" :[") == name.npos
                   : name.starts_with(role);
  if (!is_a_role) return std::nullopt;
  const std::string_view digits = name.substr(role.empty() ? name.find_last_not_of("0123456789") + 1 : role.size());
  std::uint32_t worker = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), worker);
  if (error != std::errc{} || rest != digits.data() + digits.size() || worker >= workers) return std::nullopt;
  return worker;
}

std::string in_words(const std::vector<ReportedState>& states) {
  if (states.size() == 1) return printable(states[0].state);
  constexpr std::size_t names_max = 8;
  std::vector<std::string> words;
  for (const ReportedState& said : states) {
    const std::size_t shown = std::min(said.who.size(), names_max);
    std::string who = fmt::format("{}", fmt::join(said.who.begin(), said.who.begin() + static_cast<std::ptrdiff_t>(shown), " and "));
    if (shown < said.who.size()) who += fmt::format(" and {} more", said.who.size() - shown);
    words.push_back(fmt::format("{} ({})", printable(said.state), who));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

bool FinalStates::saw(std::string_view line, std::uint32_t node) {
  auto state = word_after(line, state_mark_);
  if (!state) return false;
  of_killed_.clear();
  const auto step = number_after(line, step_mark_);
  const bool is_alone = world_.workers == 1;
  const std::uint32_t worker = is_alone ? 0 : worker_of(line, world_.workers, role_).value_or(all_workers);
  Said& said = reported_[{node, worker}];
  if (worker != all_workers || said.step.has_value() != step.has_value() || (step && *step > *said.step)) {
    said = {step, {*std::move(state)}};
  } else if (step == said.step && said.states.size() < states_max && std::ranges::find(said.states, *state) == said.states.end()) {
    said.states.push_back(*std::move(state));
  }
  return true;
}

void FinalStates::lost(std::uint32_t node, std::uint32_t local_rank) {
  if (auto said = reported_.extract({node, local_rank})) of_killed_[said.key()] = std::move(said.mapped());
}

void FinalStates::lost(std::uint32_t node) {
  for (auto it = reported_.lower_bound({node, 0}); it != reported_.end() && it->first.first == node; it = reported_.erase(it))
    of_killed_[it->first] = std::move(it->second);
}

std::vector<ReportedState> FinalStates::states() const {
  const std::map<Speaker, Said>& last = are_of_killed() ? of_killed_ : reported_;
  std::optional<std::uint64_t> newest;
  for (const auto& [speaker, said] : last) newest = std::max(newest, said.step);
  std::vector<ReportedState> states;
  for (const auto& [speaker, said] : last) {
    if (said.step && said.step < newest) continue;
    for (const std::string& state : said.states) {
      auto found = std::ranges::find(states, state, &ReportedState::state);
      if (found == states.end()) found = states.insert(found, {state});
      found->who.push_back(name_of(speaker));
    }
  }
  return states;
}

std::string FinalStates::name_of(const Speaker& speaker) const {
  const auto [node, worker] = speaker;
  if (worker == all_workers) return fmt::format("node {}", node);
  return fmt::format("rank {}", node * world_.workers + worker);
}

}  // namespace elrun::inline v0::launcher
