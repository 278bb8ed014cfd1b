// Functions with the names of those that libelrun carries, as another version of these libraries might bring them into the process: each ends it.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace {

[[noreturn]] void called(const char* name) {
  std::fprintf(stderr, "libelrun called a foreign %s\n", name);
  std::abort();
}

}  // namespace

#define FOREIGN(name) \
  extern "C" [[gnu::visibility("default")]] void name() { called(#name); }

FOREIGN(SHA256_Init)
FOREIGN(SHA256_Update)
FOREIGN(SHA256_Final)
FOREIGN(CRYPTO_memcmp)
FOREIGN(OPENSSL_cleanse)
FOREIGN(inflate)
FOREIGN(inflateInit2_)
FOREIGN(inflateReset)
FOREIGN(inflateEnd)

[[gnu::visibility("default")]] std::string fmt::vformat(fmt::string_view, fmt::format_args) { called("fmt::vformat"); }
[[gnu::visibility("default")]] void fmt::vprint(std::FILE*, fmt::string_view, fmt::format_args) { called("fmt::vprint"); }
