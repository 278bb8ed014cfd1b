#define NN_ISA avx512
#include "samples/nn/kernels.inl"
