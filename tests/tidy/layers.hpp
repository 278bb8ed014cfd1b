#pragma once
/// \file Which folder may include which. The arrows point one way, so a decision never learns of a socket,
/// the launcher never of a driver, and a training program never of gRPC.

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elrun::test {

struct Layer {
  std::string_view folder;
  std::vector<std::string_view> elrun;     ///< Folders whose headers may be included. Its own and `include/elrun` always.
  std::vector<std::string_view> packages;  ///< Beginnings of <...> headers allowed beyond those of std, POSIX and fmt.
};

/// The most specific folder first.
inline const std::vector<Layer>& layers() {
  static const std::vector<Layer> all{
      {"include/elrun/", {}, {}},
      {"lib/base/", {}, {"openssl/"}},
      {"lib/link/", {"lib/base/"}, {"boost/"}},
      {"lib/device/", {"lib/base/", "kernels/"}, {"cuda"}},
      {"lib/comm/", {"lib/base/", "lib/device/", "lib/link/", "kernels/"}, {"boost/", "cuda", "nccl", "cublas"}},
      {"lib/data/", {"lib/base/", "kernels/"}, {"zlib.h"}},
      {"lib/job/", {"lib/base/", "lib/device/", "lib/link/", "lib/comm/", "kernels/", "checkpoint/"}, {"boost/", "cuda"}},
      {"kernels/", {"lib/base/"}, {"cuda"}},
      {"checkpoint/", {"lib/base/", "kernels/"}, {"nlohmann/", "cuda"}},
      {"rendezvous/round/", {"lib/base/", "rendezvous/messages.hpp"}, {}},
      {"rendezvous/", {"lib/base/", "lib/link/"}, {"absl/", "boost/", "grpc", "google/protobuf/", "openssl/"}},
      {"launcher/", {"lib/base/", "lib/link/", "rendezvous/", "checkpoint/"}, {"boost/", "nlohmann/", "openssl/"}},
      {"samples/", {"samples/"}, {"cuda", "cublas"}},
      {"tests/",
       {"tests/", "lib/", "kernels/", "rendezvous/", "checkpoint/", "launcher/", "samples/"},
       {"catch2/", "boost/", "nlohmann/", "grpc", "google/protobuf/", "cuda", "nccl", "cublas", "openssl/", "zlib.h"}},
  };
  return all;
}

/// Packages by the beginning of their headers. Whatever is none of these is the system's.
inline constexpr std::string_view packages[] = {"boost/", "grpc", "google/", "nlohmann/", "openssl/", "catch2/",
                                                "cuda",   "nccl", "cublas",  "absl/",     "zlib.h"};

inline bool starts_with_any(std::string_view text, const auto& beginnings) {
  return std::any_of(std::begin(beginnings), std::end(beginnings), [&](std::string_view b) { return text.starts_with(b); });
}

/// Calls `found(line, header, quoted)` for each #include of `text`.
inline void for_each_include(std::string_view text, const auto& found) {
  for (std::size_t line = 1, begin = 0; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view rest = text.substr(begin, end - begin);
    begin = end + 1;
    const auto skip = [&](std::string_view blanks) { rest.remove_prefix(std::min(rest.find_first_not_of(blanks), rest.size())); };
    skip(" \t");
    if (!rest.starts_with('#')) continue;
    rest.remove_prefix(1);
    skip(" \t");
    if (!rest.starts_with("include")) continue;
    rest.remove_prefix(7);
    skip(" \t");
    if (rest.empty()) continue;
    const bool quoted = rest.front() == '"';
    rest.remove_prefix(1);
    found(line, rest.substr(0, rest.find(quoted ? '"' : '>')), quoted);
  }
}

/// The lines of `text`, the source file `path`, that run against the arrows: "path:line: why".
inline std::vector<std::string> against_the_arrows(std::string_view path, std::string_view text) {
  std::vector<std::string> problems;
  const auto layer = std::find_if(layers().begin(), layers().end(), [&](const Layer& l) { return path.starts_with(l.folder); });
  if (layer == layers().end()) return {std::string{path} + ": no layer has this folder; add it to tests/tidy/layers.hpp"};
  for_each_include(text, [&](std::size_t line, std::string_view header, bool quoted) {
    const auto bad = [&](std::string_view why) {
      problems.push_back(std::string{path} + ':' + std::to_string(line) + ": " + std::string{header} + ' ' + std::string{why});
    };
    if (layer->folder == "include/elrun/") {  // what is installed: no header of a package or of the system, and none by a path of this tree
      const bool of_std = header.find_first_of("./") == std::string_view::npos;
      if (quoted || !(of_std || header.starts_with("elrun/"))) bad("does not belong in a public header");
    } else if (quoted) {
      const bool generated = header.find('/') == std::string_view::npos;  // protobuf's, found by the target that makes them
      if (generated && !(header.ends_with(".pb.h") && starts_with_any("google/protobuf/", layer->packages)))
        bad("is not named by its whole path");
      else if (!generated && !header.starts_with(layer->folder) && !starts_with_any(header, layer->elrun)) bad("runs against the arrows");
    } else if (!header.starts_with("elrun/") && starts_with_any(header, packages) && !starts_with_any(header, layer->packages)) {
      bad("is a package that this layer does not know");
    }
  });
  return problems;
}

/// What no core reaches, by the beginning of the header: event loops, networks, devices, clocks.
inline constexpr std::string_view not_for_cores[] = {"boost/asio", "boost/beast", "grpc",   "google/protobuf/",  "cuda",
                                                     "nccl",       "cublas",      "time.h", "lib/base/clock.hpp"};
/// How a program comes by a clock.
inline constexpr std::string_view clocks[] = {"_clock::now(", "clock_gettime(", "gettimeofday(", "std::time(", "SteadyClock", "Clock&"};

/// Why the source file `path` is no core's: what it and all headers of this tree that it reaches include, "how it is reached:line: why".
/// `read` gives the text of a file by its path, empty where there is none.
inline std::vector<std::string> not_a_core(const std::string& path, const auto& read) {
  std::vector<std::string> problems;
  std::set<std::string> seen{path};
  std::vector<std::pair<std::string, std::string>> to_read{{path, path}};  // a file, and how it is reached
  while (!to_read.empty()) {
    const auto [file, way] = std::move(to_read.back());
    to_read.pop_back();
    const std::string text = read(file);
    const auto bad = [&](std::string_view what, std::string_view why) {
      problems.push_back(way + ": " + std::string{what} + std::string{why});
    };
    for (const std::string_view clock : clocks)
      if (text.find(clock) != std::string::npos) bad(clock, " is a clock, and this is a core: time is an argument");
    for_each_include(text, [&](std::size_t, std::string_view header, bool) {
      if (starts_with_any(header, not_for_cores) || header.ends_with(".pb.h")) return bad(header, " is not for a core: it is a shell's");
      std::string next = (header.starts_with("elrun/") ? "include/" : "") + std::string{header};
      if (next.find('/') != std::string::npos && seen.insert(next).second) to_read.emplace_back(next, way + " > " + next);
    });
  }
  return problems;
}

/// What a source uses of a library and gets by another header in some releases alone: fmt::join is in <fmt/ranges.h> since fmt 11.
inline std::vector<std::string> missing_includes(const std::string& path, std::string_view text) {
  const std::string call = std::string{"fmt::join"} + "(";  // apart, for this file is read as well
  bool has_ranges = text.find(call) == text.npos;
  for_each_include(text, [&](std::size_t, std::string_view header, bool) { has_ranges |= header == "fmt/ranges.h"; });
  if (has_ranges) return {};
  return {path + ": fmt::join needs <fmt/ranges.h>"};
}

/// The classes, structs and enums that `text` defines in namespaces with names, as `namespace::Name`, for sources in this project's format:
/// what a namespace holds is not indented, and an unnamed one ends with `}  // namespace`.
inline std::vector<std::string> types_defined_in(std::string_view text) {
  std::vector<std::string> types;
  std::vector<std::string> where;  // the namespaces that are open
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line.starts_with("namespace ") && line.ends_with("{"))
      where.emplace_back(line == "namespace {" ? "" : line.substr(10, line.size() - 12));
    else if (line.starts_with("}  // namespace") && !where.empty()) where.pop_back();
    if (std::ranges::find(where, "") != where.end() || line.find('{') == line.npos) continue;
    const auto skip = [&](std::string_view word) { return line.starts_with(word) && (line.remove_prefix(word.size()), true); };
    if (!skip("struct ") && !skip("class ") && !skip("enum class ")) continue;
    skip("ELRUN_API ");
    const std::size_t length = std::min(line.find_first_of(" :{<"), line.size());
    const std::string_view next = line.substr(length, 2);  // a specialisation, or a class inside of another
    if (next.starts_with("<") || next == "::") continue;
    std::string name;
    for (const std::string& space : where) name += space + "::";
    types.push_back(name + std::string{line.substr(0, length)});
  }
  return types;
}

}  // namespace elrun::test
