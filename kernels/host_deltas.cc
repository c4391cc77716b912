// Pseudo-gradients on the host: codes and scales are those of the codecs' plain loops.

#include <algorithm>
#include <cstring>

#include "kernels/bfloat16.h"
#include "kernels/codecs/codec.h"
#include "kernels/host_backend.h"

namespace atl {
namespace {

// A block as it travels: its scale, then its codes.
struct Block {
  const Codec& codec;
  const size_t code_bytes;
  std::byte bytes[4 + kQuantBlock] = {};

  explicit Block(const Tensor& codes)
      : codec(GetCodec(codes.cols == kQuantBlock / 4 ? Encoding::kInt8 : Encoding::kInt4)),
        code_bytes(static_cast<size_t>(codes.cols) * sizeof(int32_t)) {}
};

}  // namespace

void HostBackend::Run(Stream&, const QuantizeDelta& op) {
  op.Check();
  const int64_t size = op.base.size();
  Block encoded(op.codes);
  for (int64_t block = 0; block < op.codes.rows; ++block) {
    const int64_t begin = block * kQuantBlock, count = std::min(kQuantBlock, size - begin);
    float delta[kQuantBlock] = {}, residual[kQuantBlock] = {};
    for (int64_t i = 0; i < count; ++i) {
      delta[i] = op.base.f32()[begin + i] - op.theta.f32()[begin + i];
      if (op.residual.present()) residual[i] = op.residual.f32()[begin + i];
    }
    encoded.codec.reference_encode(delta, residual, encoded.bytes, kQuantBlock);
    if (op.residual.present()) std::copy_n(residual, count, op.residual.f32() + begin);
    std::memcpy(op.scales.f32() + block, encoded.bytes, sizeof(float));
    std::memcpy(op.codes.as<int32_t>() + block * op.codes.stride, encoded.bytes + sizeof(float),
                encoded.code_bytes);
  }
}

void HostBackend::Run(Stream&, const DequantizeDelta& op) {
  op.Check();
  const int64_t size = op.out.size();
  Block encoded(op.codes);
  for (int64_t begin = 0; begin < size; begin += kQuantBlock) {
    const int64_t block = begin / kQuantBlock;
    std::memcpy(encoded.bytes, op.scales.f32() + block, sizeof(float));
    std::memcpy(encoded.bytes + sizeof(float), op.codes.as<int32_t>() + block * op.codes.stride,
                encoded.code_bytes);
    encoded.codec.reference_decode(encoded.bytes, op.out.f32() + begin,
                                   std::min(kQuantBlock, size - begin));
  }
}

void HostBackend::Run(Stream&, const NesterovStep& op) {
  op.Check();
  float *theta = op.theta.f32(), *velocity = op.velocity.f32();
  for (int64_t i = 0; i < op.theta.size(); ++i) {
    const float delta = op.delta.dtype == DType::kFloat32
                            ? op.delta.f32()[i]
                            : WidenBfloat16(op.delta.as<Bfloat16>()[i]);
    velocity[i] = op.mu * velocity[i] + delta;
    theta[i] -= op.eta * (delta + op.mu * velocity[i]);
  }
}

}  // namespace atl
