#pragma once
/// \file Which folder may include which. The arrows point one way, so a decision never learns of a socket,
/// the launcher never of a driver, and a training program never of gRPC.

#include <algorithm>
#include <string>
#include <string_view>
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
      {"lib/comm/", {"lib/base/", "lib/link/", "kernels/"}, {"boost/", "cuda", "nccl", "cublas"}},
      {"lib/data/", {"lib/base/", "kernels/"}, {"zlib.h"}},
      {"lib/job/", {"lib/base/", "lib/link/", "lib/comm/", "kernels/", "checkpoint/"}, {"boost/", "cuda"}},
      {"kernels/", {"lib/base/"}, {"cuda"}},
      {"checkpoint/", {"lib/base/", "kernels/"}, {"nlohmann/", "cuda"}},
      {"rendezvous/round/", {"lib/base/", "rendezvous/messages.hpp"}, {}},
      {"rendezvous/", {"lib/base/", "lib/link/"}, {"absl/", "boost/", "grpc", "google/protobuf/", "openssl/"}},
      {"launcher/", {"lib/base/", "lib/link/", "rendezvous/", "checkpoint/"}, {"boost/", "nlohmann/"}},
      {"samples/", {"samples/"}, {}},
      {"tests/",
       {"tests/", "lib/", "kernels/", "rendezvous/", "checkpoint/", "launcher/", "samples/"},
       {"catch2/", "boost/", "nlohmann/", "grpc", "google/protobuf/", "cuda", "openssl/", "zlib.h"}},
  };
  return all;
}

/// Packages by the beginning of their headers. Whatever is none of these is the system's.
inline constexpr std::string_view packages[] = {"boost/", "grpc", "google/", "nlohmann/", "openssl/", "catch2/",
                                                "cuda",   "nccl", "cublas",  "absl/",     "zlib.h"};

inline bool starts_with_any(std::string_view text, const auto& beginnings) {
  return std::any_of(std::begin(beginnings), std::end(beginnings), [&](std::string_view b) { return text.starts_with(b); });
}

/// The lines of `text`, the source file `path`, that run against the arrows: "path:line: why".
inline std::vector<std::string> against_the_arrows(std::string_view path, std::string_view text) {
  std::vector<std::string> problems;
  const auto layer = std::find_if(layers().begin(), layers().end(), [&](const Layer& l) { return path.starts_with(l.folder); });
  if (layer == layers().end()) return {std::string{path} + ": no layer has this folder; add it to tests/tidy/layers.hpp"};
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
    const std::string_view header = rest.substr(0, rest.find(quoted ? '"' : '>'));
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
  }
  return problems;
}

}  // namespace elrun::test
