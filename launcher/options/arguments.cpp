// The command line and PET_* both end in the same text for an option, so that a value is checked by the same rule
// wherever it comes from, and rules over several options see all of them.
#include "launcher/options/arguments.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/options/option_values.hpp"

namespace elrun::inline v0::launcher {
namespace {

bool looks_like_option(std::string_view token) {
  return token.size() > 1 && token[0] == '-' && !(token[1] >= '0' && token[1] <= '9') && token[1] != '.';
}

std::vector<const Option*> matches_of(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  std::vector<const Option*> torchruns, all;
  for (const Option& o : option_table()) {
    if (o.name == name) return {&o};
    if (name.empty() || !o.name.starts_with(name)) continue;
    all.push_back(&o);
    if (!o.is_own) torchruns.push_back(&o);
  }
  return torchruns.size() == 1 ? torchruns : all;  // what is short enough for torchrun stays so
}

// Whether what follows an option can be read no further: the option before it took the program for its value.
bool ends_or_is_unknown(std::span<const std::string> rest) {
  if (rest.empty()) return true;
  if (!rest[0].starts_with("--") || rest[0].size() == 2) return false;
  return matches_of(rest[0].substr(2, rest[0].find('=') - 2)).empty();
}

// Whether what stands behind an option that nobody knows is its value, and not the program: an option of elrun's follows.
bool is_value_of_unknown(std::span<const std::string> rest) {
  return rest.size() > 1 && !looks_like_option(rest[0]) && !rest[0].ends_with(".py") && rest[1].starts_with("--") &&
         !ends_or_is_unknown(rest.subspan(1));
}

}  // namespace

Usage Problems::report(ExitCodes codes) const {
  std::string text;
  for (const auto* list : {&usage_, &values_, &contradictions_})
    for (const std::string& problem : *list) text += "elrun: " + problem + "\n";
  const bool torchruns = codes == ExitCodes::torchrun;
  const int code = !usage_.empty()    ? (torchruns ? 2 : exit_code::usage)
                   : !values_.empty() ? (torchruns ? 1 : exit_code::usage)
                                      : (torchruns ? 1 : exit_code::contradiction);
  return {code, "usage: elrun [options] PROGRAM [arguments...]   (elrun --help explains them)\n" + text};
}

Arguments::Arguments(const Variables& environment) : environment_{environment} {
  for (const Option& o : option_table()) given_.emplace(o.name, Given{std::string{o.initial}, {}});
}

void Arguments::set(std::string_view option, std::string text, std::string source) {
  given_.find(option)->second = {std::move(text), std::move(source)};
}

std::string Arguments::shown(std::string_view option) const {
  const Given& g = get(option);
  if (option == "rdzv_conf") return g.source.empty() ? "--rdzv_conf" : g.source;
  return g.source.starts_with("PET_") ? fmt::format("{}={}", g.source, g.text) : fmt::format("--{} {}", option, g.text);
}

std::optional<std::string> Arguments::variable(std::string_view name) const {
  const auto found = environment_.find(name);
  return found == environment_.end() || found->second.empty() ? std::nullopt : std::optional{found->second};
}

void Arguments::read_environment(Problems& problems) {
  for (const Option& o : option_table()) {
    const auto found = environment_.find(variable_of(o));
    if (found == environment_.end() || !o.has_variable) continue;
    std::string text = found->second;
    if (o.is_flag) {
      // Kubernetes operators write an empty PET_STANDALONE and mean it.
      const auto number = text.empty() && o.name == "standalone" ? std::optional<std::int64_t>{1} : to_integer(text);
      if (!number) {
        problems.value(fmt::format("{}={}: a flag is 1 (on) or 0 (off)", found->first, text));
        continue;
      }
      text.assign(1, *number != 0 ? '1' : '0');
    }
    set(o.name, std::move(text), found->first);
  }
}

// The one option that a name means: exactly, or as the only one that begins so. Says what is wrong otherwise.
const Option* Arguments::find(std::string_view token, std::string name, Problems& problems) const {
  const auto matches = matches_of(std::move(name));
  if (matches.size() == 1) return matches.front();
  std::string choices;
  for (const Option* o : matches) choices += fmt::format("{}--{}", choices.empty() ? "" : ", ", o->name);
  if (!matches.empty()) return problems.usage(fmt::format("{}: could be {}; write more of it", token, choices)), nullptr;
  std::vector<std::string_view> names;
  for (const Option& o : option_table()) names.push_back(o.name);
  std::string word{token.substr(2)};
  std::replace(word.begin(), word.end(), '-', '_');
  const std::string_view meant = nearest(word, names);
  problems.usage(fmt::format("{}: no such option{}; options of the program stand after its name", token,
                             meant.empty() ? std::string{} : fmt::format(", did you mean --{}?", meant)));
  return nullptr;
}

void Arguments::read(std::span<const std::string> words, Problems& problems, std::vector<std::string>& notes) {
  read_environment(problems);
  std::size_t i = 0;
  for (; i < words.size(); ++i) {
    const std::string& token = words[i];
    if (token == "--") {
      ++i;
      break;
    }
    if (token.size() < 2 || token[0] != '-') break;
    const Option* option = nullptr;
    std::optional<std::string> value;
    if (token[1] == '-') {
      const auto equals = token.find('=');
      option = find(token.substr(0, equals), token.substr(2, equals == std::string::npos ? equals : equals - 2), problems);
      if (equals != std::string::npos) value = token.substr(equals + 1);
    } else {
      for (const Option& o : option_table())
        if (o.letter != 0 && o.letter == token[1]) option = &o;
      if (option == nullptr)
        problems.usage(fmt::format("{}: no such option; options of the program stand after its name", token.substr(0, 2)));
      if (token.size() > 2) value = token.substr(token[2] == '=' ? 3 : 2);
    }
    if (option == nullptr) {
      // So that what is wrong behind it is told as well; nothing is started in any case.
      if (!value && is_value_of_unknown(words.subspan(i + 1))) program_.emplace().name = words[++i];
      continue;
    }
    if (option->is_flag) {
      if (value) problems.usage(fmt::format("{}: a flag takes no value", token.substr(0, token.find('='))));
      set(option->name, "1", fmt::format("--{}", option->name));
      continue;
    }
    // `--rdzv_id $ID --rdzv_backend $BACKEND` is written by many, and a shell leaves out what is not set.
    const bool may_be_unset = option->name.starts_with("rdzv_");
    if (!value && may_be_unset && i + 1 < words.size() && words[i + 1].ends_with(".py") && ends_or_is_unknown(words.subspan(i + 2))) {
      notes.push_back(fmt::format("--{} has no value and counts as not given; {} is taken as the program; an unset variable?", option->name,
                                  words[i + 1]));
      ++i;
      break;
    }
    if (!value && i + 1 < words.size() && !looks_like_option(words[i + 1])) value = words[++i];
    if (!value && may_be_unset) {
      notes.push_back(fmt::format("--{} has no value and counts as not given; an unset variable?", option->name));
      continue;
    }
    if (!value) {
      problems.usage(fmt::format("{}: needs a value{}", token, option->value.empty() ? "" : fmt::format(", {}", option->value)));
      continue;
    }
    set(option->name, std::move(*value), fmt::format("--{}", option->name));
  }
  if (i >= words.size()) return;
  program_.emplace();
  program_->name = words[i];
  program_->arguments.assign(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
  if (trimmed(program_->name).empty()) problems.usage("the program's name is blank; a backslash followed by blanks, or an unset variable?");
}

}  // namespace elrun::inline v0::launcher
