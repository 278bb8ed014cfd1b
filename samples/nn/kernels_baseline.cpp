#define NN_ISA baseline
#include "samples/nn/kernels.inl"
