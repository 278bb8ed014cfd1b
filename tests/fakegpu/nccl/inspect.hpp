#pragma once
/// \file What a test asks of the fake NCCL, found by dlsym in the library that the product has loaded.

#include <cstdint>

extern "C" {

/// Called at the beginning of every call of the library, before it does anything, with the call's number in this process (from 1) and its name. From any
/// thread. Null: nobody is called.
using FakeNcclHook = void (*)(void* data, std::uint64_t number, const char* name);
void fakenccl_set_hook(FakeNcclHook hook, void* data);
/// Calls of this process so far.
std::uint64_t fakenccl_calls();
/// Communicators of this process that were made and not freed.
std::uint64_t fakenccl_communicators();
/// The next aborts take this much longer, in milliseconds; negative: they never return. As FAKEGPU_NCCL_ABORT_MS would.
void fakenccl_set_abort(long milliseconds);
}
