/// A library that says which NCCL it is, and has nothing else of it: one that was installed in part.
#include <nccl.h>

extern "C" __attribute__((visibility("default"))) ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}
