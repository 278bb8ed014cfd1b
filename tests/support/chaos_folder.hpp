#pragma once
/// \file Rehearsals as the tests run them: a folder for one, its job's words, and its report.

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/gpt_job.hpp"

namespace elrun::test {

namespace fs = std::filesystem;

/// A folder for one rehearsal: the work directory, and where its agents have theirs.
class ChaosFolder {
 public:
  ChaosFolder() { fs::create_directory(runtime()); }
  [[nodiscard]] std::string operator/(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::string work() const { return folder_ / "work"; }
  [[nodiscard]] std::string runtime() const { return folder_ / "runtime"; }
  void write(const std::string& name, const std::string& text) const { std::ofstream{folder_ / name} << text; }
  /// A program of the shell.
  [[nodiscard]] std::string script(const std::string& text) const {
    write("script", "#!/bin/sh\n" + text);
    fs::permissions(folder_ / "script", fs::perms::owner_all);
    return folder_ / "script";
  }
  [[nodiscard]] std::unique_ptr<Job> start(std::vector<std::string> words, std::map<std::string, std::string> environment = {}) const {
    return start_in(work(), std::move(words), std::move(environment));
  }
  /// In another work directory: its name begins with that of `work`.
  [[nodiscard]] std::unique_ptr<Job> start_in(const std::string& directory, std::vector<std::string> words,
                                              std::map<std::string, std::string> environment = {}) const {
    words.insert(words.begin(), {"chaos", "--work", directory});
    environment.insert({{"XDG_RUNTIME_DIR", runtime()}, {"OMP_NUM_THREADS", "1"}});
    return elrun::test::start("elrun", std::move(words), std::move(environment));
  }

  /// Processes that have the work directory in their words, and directories of agents: nothing, after a moment at most.
  [[nodiscard]] std::vector<std::string> left_behind() const {
    std::vector<std::string> left;
    for (int look = 0; look < 200; ++look) {
      left.clear();
      for (const auto& entry : fs::directory_iterator{"/proc"}) {
        const std::string pid = entry.path().filename();
        if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
        if (text_of_process(pid, "cmdline").find(work()) != std::string::npos) left.push_back(pid);
      }
      for (const auto& entry : fs::directory_iterator{runtime()}) left.push_back(entry.path());
      if (left.empty()) break;
      std::this_thread::sleep_for(Wait{50});
    }
    return left;
  }

 private:
  Folder folder_;
};

/// The report: the line of the output that begins with `{`, and what follows.
inline nlohmann::json report_of(const Ended& ended) {
  const auto begin = ended.output.find("\n{");
  if (begin == std::string::npos) return {};
  std::string text = ended.output.substr(begin + 1);
  if (const auto end = text.rfind("}\n"); end != std::string::npos) text.resize(end + 1);
  return nlohmann::json::parse(text, nullptr, false);
}

inline std::vector<std::string> gpt_words(const ChaosFolder& folder, unsigned steps, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"--no_python", "--", program_path("gpt")};
  for (const std::string& word : gpt_arguments(folder / "text", steps, more)) words.push_back(word);
  return words;
}

inline std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace elrun::test
