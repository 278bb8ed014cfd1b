#include "samples/nn/block.inl"

namespace nn {
NN_BLOCK(Engine)
}  // namespace nn
