#include "samples/nn/recipe.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include <elrun/result.hpp>

namespace nn {
namespace {

constexpr std::string_view first_words = "elrun recipe 1, ", chosen_on = ", chosen on ";
constexpr std::uint64_t size_max = std::uint64_t{1} << 40;  // of rows, columns and k

/// Of a stranger's file, for a message.
std::string quoted(std::string_view text) {
  constexpr std::size_t shown = 80;
  std::string out{text.substr(0, shown)};
  for (char& c : out)
    if (c < ' ' || c > '~') c = '?';
  return "'" + out + (text.size() > shown ? "..." : "") + "'";
}

/// Reads a line from its left. What does not fit is told once; after that nothing is read.
class Line {
 public:
  explicit Line(std::string_view text) : rest_{text} {}
  void expect(std::string_view text) {
    if (!problem_.empty()) return;
    if (!rest_.starts_with(text)) return fail("'" + std::string{text} + "'");
    rest_.remove_prefix(text.size());
  }
  std::uint64_t number(std::uint64_t min, std::uint64_t max) {
    std::uint64_t value = 0;
    if (!problem_.empty()) return value;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc{} || value < min || value > max) {
      fail("a whole number from " + std::to_string(min) + " to " + std::to_string(max));
      return 0;
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  bool either(std::string_view yes, std::string_view no) {
    if (!problem_.empty()) return false;
    const bool is = rest_.starts_with(yes);
    if (!is && !rest_.starts_with(no)) return fail("'" + std::string{yes} + "' or '" + std::string{no} + "'"), false;
    rest_.remove_prefix((is ? yes : no).size());
    return is;
  }
  [[nodiscard]] bool begins(std::string_view text) const { return rest_.starts_with(text); }
  void end() {
    if (problem_.empty() && !rest_.empty()) fail("the line's end");
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  void fail(const std::string& wanted) {
    problem_ = (rest_.empty() ? "it ends" : quoted(rest_) + " stands") + " where " + wanted + " is expected";
  }
  std::string_view rest_;
  std::string problem_;
};

ProductShape read_shape(Line& line) {
  ProductShape s{};
  line.expect("rows="), s.rows = line.number(1, size_max);
  line.expect(" columns="), s.columns = line.number(1, size_max);
  line.expect(" k="), s.k = line.number(1, size_max);
  line.expect(" a="), s.a_transposed = line.either("t", "n");
  line.expect(" b="), s.b_transposed = line.either("t", "n");
  line.expect(" c="), s.to_float = line.either("float", "bf16");
  return s;
}

Algorithm read_algorithm(Line& line) {
  Algorithm a;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    line.expect(std::string{" "} + Algorithm::names[i] + "=");
    if (i >= Algorithm::first_optional && line.begins("-")) line.expect("-");
    else a.values[i] = static_cast<std::uint32_t>(line.number(0, std::numeric_limits<std::uint32_t>::max()));
  }
  return a;
}

std::string text_of(const Algorithm& a) {
  std::string out;
  for (std::size_t i = 0; i < a.values.size(); ++i)
    out += std::string{" "} + Algorithm::names[i] + "=" + (a.values[i] ? std::to_string(*a.values[i]) : "-");
  return out;
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw elrun::Error{{.code = elrun::Code::invalid_argument, .remedy = elrun::Remedy::fix_config, .what = "recipe '" + path + "' " + what}};
}
[[noreturn]] void fail(const std::string& path, const std::string& what, int error) {
  fail(path, what + ": " + std::strerror(error) + "; make its folder and give permission, or name another file");
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::string to_string(const ProductShape& s) {
  return "rows=" + std::to_string(s.rows) + " columns=" + std::to_string(s.columns) + " k=" + std::to_string(s.k) +
         " a=" + (s.a_transposed ? "t" : "n") + " b=" + (s.b_transposed ? "t" : "n") + " c=" + (s.to_float ? "float" : "bf16");
}

std::string Recipe::text() const {
  std::string out{first_words};
  out.append(library).append(chosen_on).append(device).append("\n");
  for (const auto& [shape, algorithm] : algorithms) out += to_string(shape) + ":" + text_of(algorithm) + "\n";
  return out;
}

std::string Recipe::hash() const {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const auto& [shape, algorithm] : algorithms)
    for (const char c : to_string(shape) + ":" + text_of(algorithm) + "\n") hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

Recipe parse_recipe(std::string_view text, std::vector<std::string>& problems) {
  Recipe recipe;
  if (!text.empty() && !text.ends_with('\n')) problems.emplace_back("its last line has no end, so the file may be cut");
  std::size_t number = 0;
  for (std::size_t begin = 0, end = 0; begin < text.size() || number == 0; begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(std::min(begin, text.size()), end - begin);
    ++number;
    const auto wrong = [&](const std::string& what) { problems.push_back("line " + std::to_string(number) + ": " + what); };
    if (number == 1) {
      const std::size_t comma = line.find(chosen_on);
      if (!line.starts_with(first_words) || comma == std::string_view::npos || comma < first_words.size()) {
        wrong(quoted(line) + " is not '" + std::string{first_words} + "LIBRARY" + std::string{chosen_on} + "DEVICE', as a recipe begins");
        continue;
      }
      recipe.library = line.substr(first_words.size(), comma - first_words.size());
      recipe.device = line.substr(comma + chosen_on.size());
      continue;
    }
    Line at{line};
    const ProductShape shape = read_shape(at);
    at.expect(":");
    const Algorithm algorithm = read_algorithm(at);
    at.end();
    // Parts of a sum that is split over k are stored as floats, and added up by one owner: what CublasLt chooses among, too.
    constexpr std::uint32_t stored_as_float = 2;
    if (!at.problem().empty()) wrong(at.problem());
    else if (*algorithm.values[Algorithm::splits] > 1 && algorithm.values[Algorithm::reduction] != stored_as_float)
      wrong("a sum in several parts (splits=" + std::to_string(*algorithm.values[Algorithm::splits]) +
            ") needs reduction=2, by which they are added up in one order");
    else if (!recipe.algorithms.emplace(shape, algorithm).second) wrong(to_string(shape) + " comes a second time");
  }
  return recipe;
}

std::optional<std::string> read_recipe(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // a pipe is not waited for
  if (file.fd < 0 && errno == ENOENT) return std::nullopt;
  struct stat status {};
  if (file.fd < 0 || ::fstat(file.fd, &status) != 0) fail(path, "cannot be read", errno);
  if (!S_ISREG(status.st_mode)) fail(path, "is no regular file: name another one");
  std::string text(recipe_bytes_max + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(file.fd, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, "cannot be read", errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size > recipe_bytes_max)
    fail(path, "has more than " + std::to_string(recipe_bytes_max) + " bytes, so it is no recipe: name another file");
  text.resize(size);
  return text;
}

bool write_recipe(const std::string& path, const std::string& text) {
  std::string temporary = path + ".XXXXXX";
  const Descriptor file{::mkstemp(temporary.data())};
  if (file.fd < 0) fail(path, "cannot be written", errno);
  int error = 0;
  for (std::size_t at = 0; at < text.size() && error == 0;) {
    const ssize_t count = ::write(file.fd, text.data() + at, text.size() - at);
    if (count >= 0) at += static_cast<std::size_t>(count);
    else if (errno != EINTR) error = errno;
  }
  if (error == 0 && (::fchmod(file.fd, 0644) != 0 || ::fsync(file.fd) != 0)) error = errno;
  bool first = error == 0 && ::link(temporary.c_str(), path.c_str()) == 0;
  if (error == 0 && !first && errno != EEXIST) {
    first = ::rename(temporary.c_str(), path.c_str()) == 0;
    if (!first) error = errno;
  }
  (void)::unlink(temporary.c_str());
  if (error != 0) fail(path, "cannot be written", error);
  return first;
}

}  // namespace nn
