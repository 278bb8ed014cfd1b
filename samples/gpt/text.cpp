#include "samples/gpt/text.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpt {

using elrun::Code;
using elrun::Failure;
using elrun::Remedy;

elrun::Result<Text> Text::open(const std::string& path, std::uint64_t context) {
  const auto failed = [&](Code code, const std::string& why) {
    return Failure{.code = code, .remedy = Remedy::fix_config, .what = "--data '" + path + "' " + why};
  };
  const auto from_system = [&](const std::string& what) {
    const int error = errno;
    const Code code = error == ENOENT || error == ENOTDIR ? Code::not_found
                      : error == EACCES || error == EPERM ? Code::not_permitted
                                                          : Code::io;
    return failed(code, what + ": " + std::strerror(error) + "; name a text that this user can read, on every node");
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return from_system("cannot be opened");
  struct stat status {};
  const bool known = fstat(file, &status) == 0, regular = known && S_ISREG(status.st_mode);
  const auto size = regular ? static_cast<std::uint64_t>(status.st_size) : 0;
  const bool enough = regular && size > context;
  void* const memory = enough ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
  if (enough && memory == MAP_FAILED) {
    Failure failure = from_system("cannot be mapped");
    close(file);
    return failure;
  }
  close(file);
  if (!regular) return failed(Code::invalid_argument, "is not a regular file; name a text");
  if (!enough)
    return failed(Code::invalid_argument, "has " + std::to_string(size) + " bytes: one sample of --context " +
                                              std::to_string(context) + " needs at least " +
                                              std::to_string(context + 1) + "; name a longer text or lower --context");
  return Text{{static_cast<const unsigned char*>(memory), size}, context};
}

Text::Text(Text&& other) noexcept : bytes_{std::exchange(other.bytes_, {})}, context_{other.context_} {}
Text::~Text() {
  if (!bytes_.empty()) munmap(const_cast<unsigned char*>(bytes_.data()), bytes_.size());
}

// The sum over 8-byte words of splitmix64's finaliser, each word salted by its place.
std::uint64_t Text::hash() const {
  const auto mix = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  std::uint64_t sum = mix(bytes_.size());
  for (std::size_t i = 0; i < bytes_.size(); i += 8) {
    std::uint64_t word = 0;
    for (std::size_t b = 0; b < 8 && i + b < bytes_.size(); ++b) word |= std::uint64_t{bytes_[i + b]} << (8 * b);
    sum += mix(word ^ (0x9e3779b97f4a7c15u * (i / 8 + 1)));
  }
  return sum;
}

void Text::fetch(std::span<const std::uint64_t> samples, std::span<std::int32_t> inputs,
                 std::span<std::int32_t> targets) const {
  for (std::size_t s = 0; s < samples.size(); ++s)
    for (std::size_t t = 0; t < context_; ++t) {
      const std::size_t at = samples[s] * context_ + t;
      inputs[s * context_ + t] = bytes_[at];
      targets[s * context_ + t] = bytes_[at + 1];
    }
}

std::string printable(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char c : bytes) {
    if (c == '\n' || (c >= 32 && c < 127 && c != '\\')) {
      text += static_cast<char>(c);
    } else {
      constexpr char digits[] = "0123456789abcdef";
      text += {'\\', 'x', digits[c / 16], digits[c % 16]};
    }
  }
  return text;
}

}  // namespace gpt
