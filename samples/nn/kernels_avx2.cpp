#define NN_ISA avx2
#include "samples/nn/kernels.inl"
