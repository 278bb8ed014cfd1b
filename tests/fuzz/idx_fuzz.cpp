// Bytes of idx files, plain and packed: whatever they are, what is accepted is whole, and nothing makes more of itself
// than its input can hold.

#include <algorithm>
#include <string>
#include <vector>

#include "lib/base/assert.hpp"
#include "lib/data/gzip.hpp"
#include "lib/data/idx.hpp"
#include "tests/support/gzip.hpp"

using namespace elrun;

namespace {

std::string idx(std::initializer_list<unsigned char> extents, std::size_t content) {
  std::string out{0, 0, 8, static_cast<char>(extents.size())};
  for (const unsigned char e : extents) out += {0, 0, 0, static_cast<char>(e)};
  return out + std::string(content, 'x');
}

std::string tagged(char tag, const std::string& text) {
  std::string all(1, tag);
  return all.append(text);
}

void judge(ByteSpan file) {
  const auto header = parse_idx(file, "input");
  if (!header.ok()) return;
  ELRUN_ASSERT(header->size + header->content == file.size());
  ELRUN_ASSERT(!header->shape.empty() && element_count(header->shape) == header->content);
}

}  // namespace

std::vector<std::string> fuzz_examples() {
  std::vector<std::string> out;
  for (const std::string& plain : {idx({6}, 6), idx({3, 4, 5}, 60), idx({255, 255}, 255 * 255)}) {
    out.push_back(tagged('P', plain));
    out.push_back(tagged('Z', test::gzipped(plain)));
    out.push_back(tagged('Z', test::gzipped(plain.substr(0, 5)).append(test::gzipped(plain.substr(5)))));
  }
  return out;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 1 << 18) return 0;
  const ByteSpan rest = std::as_bytes(std::span{data + 1, size - 1});
  if (data[0] == 'P') {
    judge(rest);
    return 0;
  }
  const auto head = gunzip_head(rest, idx_header_max, "input");
  if (!head.ok()) return 0;
  ELRUN_ASSERT(head->size() <= idx_header_max);
  const auto promised = parse_idx_header(*head, "input");
  if (!promised.ok()) return 0;
  const auto all = gunzip(rest, promised->size + promised->content, "input");
  if (!all.ok()) return 0;
  ELRUN_ASSERT(all->size() == promised->size + promised->content);
  ELRUN_ASSERT(std::equal(head->begin(), head->end(), all->begin()));
  judge(*all);
  return 0;
}
