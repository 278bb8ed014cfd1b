// Entry points of libcudart.so.13: memory and events of other processes.

#include "tests/fakegpu/runtime/abi.hpp"

using namespace fakegpu;

extern "C" {

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* p) {
  return call([&](Runtime& r) {
    const Allocation* const a = Memory::in_range(p) ? r.memory.find(p) : nullptr;
    if (a == nullptr || a->kind != MemoryKind::device) return cudaErrorInvalidValue;
    *handle = r.ipc.handle_of(r.memory, *a);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t handle, unsigned flags) {
  return call([&](Runtime& r) {
    if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    const Allocation* const a = r.ipc.open(r.memory, handle);
    if (a == nullptr) return cudaErrorMapBufferObjectFailed;
    *p = a->base;
    return cudaSuccess;
  });
}

cudaError_t cudaIpcCloseMemHandle(void* p) {
  return call([&](Runtime& r) { return r.ipc.close(r.memory, p) ? cudaSuccess : cudaErrorInvalidValue; }, Lost::allow);
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return call([&](Runtime& r) {
    const Event* const e = r.streams.find_event(event);
    if (e == nullptr || e->file < 0) return cudaErrorInvalidResourceHandle;  // not made with cudaEventInterprocess
    *handle = Ipc::handle_of_event(e->file);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return call([&](Runtime& r) {
    const SharedEventPtr shared = Ipc::open_event(handle);
    if (shared == nullptr) return cudaErrorMapBufferObjectFailed;
    *event = r.streams.create_event(this_thread().device, cudaEventDisableTiming);
    r.streams.find_event(*event)->shared = shared;
    return cudaSuccess;
  });
}

}  // extern "C"
