// Pseudo-gradients on the host: the meaning of these operations, in plain loops.

#include <algorithm>
#include <cmath>

#include "kernels/bfloat16.h"
#include "kernels/host_backend.h"

namespace atl {
namespace {

// A block's codes, as bytes or halves of bytes.
class Codes {
 public:
  Codes(const Tensor& codes, int64_t block)
      : bytes_(reinterpret_cast<uint8_t*>(codes.as<int32_t>() + block * codes.stride)),
        eight_(codes.cols == kQuantBlock / 4) {}

  int largest() const { return eight_ ? 127 : 7; }
  int Get(int64_t i) const {
    return eight_ ? static_cast<int8_t>(bytes_[i]) : (bytes_[i / 2] >> (i % 2 * 4) & 15) - 8;
  }
  void Set(int64_t i, int code) {
    if (eight_) {
      bytes_[i] = static_cast<uint8_t>(code);
    } else {
      const int shift = static_cast<int>(i % 2 * 4);
      bytes_[i / 2] = static_cast<uint8_t>((bytes_[i / 2] & ~(15 << shift)) | (code + 8) << shift);
    }
  }

 private:
  uint8_t* const bytes_;
  const bool eight_;
};

}  // namespace

void HostBackend::Run(Stream&, const QuantizeDelta& op) {
  op.Check();
  const int64_t size = op.base.size();
  for (int64_t block = 0; block < op.codes.rows; ++block) {
    const int64_t begin = block * kQuantBlock, count = std::min(kQuantBlock, size - begin);
    float values[kQuantBlock] = {}, largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
      values[i] = op.base.f32()[begin + i] - op.theta.f32()[begin + i];
      if (op.residual.present()) values[i] += op.residual.f32()[begin + i];
      finite = finite && std::isfinite(values[i]);
      largest = std::max(largest, std::abs(values[i]));
    }
    Codes codes(op.codes, block);
    const auto steps = static_cast<float>(codes.largest());
    const float scale = finite ? largest / steps : NAN;
    // Of numbers so small that it overflows, all is left to the residual.
    const float overflows = finite && largest > 0 ? steps / largest : 0;
    const float inverse = std::isfinite(overflows) ? overflows : 0;
    op.scales.f32()[block] = scale;
    for (int64_t i = 0; i < kQuantBlock; ++i) {
      const float code = finite ? std::nearbyint(values[i] * inverse) : 0;
      codes.Set(i, static_cast<int>(code));
      if (op.residual.present() && i < count) {
        op.residual.f32()[begin + i] = finite ? values[i] - code * scale : 0;
      }
    }
  }
}

void HostBackend::Run(Stream&, const DequantizeDelta& op) {
  op.Check();
  for (int64_t i = 0; i < op.out.size(); ++i) {
    const Codes codes(op.codes, i / kQuantBlock);
    op.out.f32()[i] =
        static_cast<float>(codes.Get(i % kQuantBlock)) * op.scales.f32()[i / kQuantBlock];
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
