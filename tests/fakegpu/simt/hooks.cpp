// What g++ -fsanitize=thread and -fsanitize=alignment put into the code of a twin. Their own runtimes are not linked: these are the
// functions, and the checker is behind them.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fakegpu/runtime/memory.hpp"
#include "tests/fakegpu/simt/access.hpp"

using fakegpu::Access;

namespace {

/// What ubsan's handler gets: where, which type, how it should be aligned.
struct TypeMismatch {
  const char* file;
  std::uint32_t line, column;
  const struct {
    std::uint16_t kind, info;
    char name[1];
  } * type;
  unsigned char log_alignment, check_kind;
};

}  // namespace

extern "C" {

#define FAKEGPU_HOOKS(bytes)                                                                   \
  void __tsan_read##bytes(void* p) { fakegpu::access_to(p, bytes, Access::read); }             \
  void __tsan_write##bytes(void* p) { fakegpu::access_to(p, bytes, Access::write); }           \
  void __tsan_unaligned_read##bytes(void* p) { fakegpu::access_to(p, bytes, Access::read); }   \
  void __tsan_unaligned_write##bytes(void* p) { fakegpu::access_to(p, bytes, Access::write); } \
  void __tsan_volatile_read##bytes(void* p) { fakegpu::access_to(p, bytes, Access::read); }    \
  void __tsan_volatile_write##bytes(void* p) { fakegpu::access_to(p, bytes, Access::write); }
FAKEGPU_HOOKS(1)
FAKEGPU_HOOKS(2)
FAKEGPU_HOOKS(4)
FAKEGPU_HOOKS(8)
FAKEGPU_HOOKS(16)
#undef FAKEGPU_HOOKS

void __tsan_read_range(void* p, unsigned long bytes) { fakegpu::access_to(p, bytes, Access::read); }
void __tsan_write_range(void* p, unsigned long bytes) { fakegpu::access_to(p, bytes, Access::write); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}

void __ubsan_handle_type_mismatch_v1(const TypeMismatch* what, void* p) {
  fakegpu::misaligned_access(p, std::size_t{1} << what->log_alignment, what->type->name,
                             std::string{what->file} + ":" + std::to_string(what->line));
}
}
