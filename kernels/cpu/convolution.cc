// Convolutions by oneDNN: one thread each, the pool around it.

#include <omp.h>

#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

enum class ConvPass : uint8_t { kForward, kInput, kWeight };

// Images that one call of oneDNN takes. Gradients of weights need a sum of their own each, so there
// are few of these.
int64_t ImagesAtOnce(ConvPass pass, int64_t batch) {
  const int64_t calls = pass == ConvPass::kWeight ? 4 : 16;
  return (batch + calls - 1) / calls;
}

// One convolution of some images: the primitive, and the ones that bring weights into its layout
// and out of it.
struct Primitive {
  dnnl::primitive work;
  memory::desc images_in, images_out, weights, plain_weights, scratch;
  dnnl::reorder reorder;  // of weights: to the work, or (kWeight) from it, added
};

dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory At(const memory::desc& desc, void* data) { return {desc, Engine(), data}; }

dnnl::primitive_attr ScratchByCaller() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

std::unique_ptr<Primitive> Make(ConvPass pass, const ConvShape& s, int64_t images) {
  const WindowShape& w = s.window;
  const auto f32 = memory::data_type::f32;
  const memory::dims in = {images, s.in_channels, w.in_height, w.in_width};
  const memory::dims out = {images, s.out_channels, w.out_height(), w.out_width()};
  memory::dims weights = {s.out_channels, s.in_channels / s.groups, w.kernel, w.kernel};
  if (s.groups > 1) {
    weights = {s.groups, s.out_channels / s.groups, s.in_channels / s.groups, w.kernel, w.kernel};
  }
  const memory::dims strides = {w.stride, w.stride}, pad = {w.pad, w.pad};
  const memory::desc x(in, f32, Tag::nhwc), y(out, f32, Tag::nhwc), any(weights, f32, Tag::any);
  auto made = std::make_unique<Primitive>();
  made->plain_weights = {weights, f32, s.groups > 1 ? Tag::goihw : Tag::oihw};
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::convolution_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, algorithm, x, any, y, strides, pad, pad},
      ScratchByCaller(), Engine());
  const auto take = [&](const auto& desc, const memory::desc& weights_desc) {
    made->scratch = desc.scratchpad_desc();
    made->weights = weights_desc;
  };
  dnnl::primitive_attr sums;
  switch (pass) {
    case ConvPass::kForward:
      take(forward, forward.weights_desc());
      made->work = dnnl::convolution_forward(forward);
      break;
    case ConvPass::kInput: {
      const dnnl::convolution_backward_data::primitive_desc desc(
          {algorithm, x, any, y, strides, pad, pad}, ScratchByCaller(), Engine(), forward);
      take(desc, desc.weights_desc());
      made->work = dnnl::convolution_backward_data(desc);
      break;
    }
    case ConvPass::kWeight: {
      const dnnl::convolution_backward_weights::primitive_desc desc(
          {algorithm, x, any, y, strides, pad, pad}, ScratchByCaller(), Engine(), forward);
      take(desc, desc.diff_weights_desc());
      made->work = dnnl::convolution_backward_weights(desc);
      dnnl::post_ops add;
      add.append_sum(1.0f);
      sums.set_post_ops(add);
      break;
    }
  }
  made->images_in = x;
  made->images_out = y;
  const bool back = pass == ConvPass::kWeight;
  made->reorder = dnnl::reorder(
      dnnl::reorder::primitive_desc(Engine(), back ? made->weights : made->plain_weights, Engine(),
                                    back ? made->plain_weights : made->weights, sums));
  return made;
}

// Primitives take milliseconds to make and serve any thread.
const Primitive& Find(ConvPass pass, const ConvShape& s, int64_t images) {
  using Key = std::array<int64_t, 10>;
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<Primitive>>& known =
      *new std::map<Key, std::unique_ptr<Primitive>>;
  const WindowShape& w = s.window;
  const Key key = {static_cast<int64_t>(pass),
                   images,
                   w.in_height,
                   w.in_width,
                   w.kernel,
                   w.stride,
                   w.pad,
                   s.in_channels,
                   s.out_channels,
                   s.groups};
  const std::lock_guard lock(mutex);
  std::unique_ptr<Primitive>& made = known[key];
  if (made == nullptr) {
    omp_set_num_threads(1);  // of this thread alone; oneDNN plans for so many
    try {
      made = Make(pass, s, images);
    } catch (const dnnl::error& error) {
      ATOLL_CHECK(false, "oneDNN refused a convolution: ", error.message);
    }
  }
  return *made;
}

int64_t Rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of the largest of both sizes of calls: whole ones, and the last.
struct Sizes {
  int64_t weights = 0, scratch = 0, calls = 0, at_once = 0;
};
Sizes ComputeSizes(ConvPass pass, const ConvShape& s) {
  Sizes sizes;
  sizes.at_once = ImagesAtOnce(pass, s.window.batch);
  sizes.calls = Blocks(s.window.batch, sizes.at_once);
  for (const int64_t images : {sizes.at_once, s.window.batch - (sizes.calls - 1) * sizes.at_once}) {
    const Primitive& p = Find(pass, s, images);
    sizes.weights = std::max(sizes.weights, Rounded(static_cast<int64_t>(p.weights.get_size())));
    sizes.scratch = std::max(sizes.scratch, Rounded(static_cast<int64_t>(p.scratch.get_size())));
  }
  return sizes;
}

// Weights in the work's layout, of both sizes of calls (kWeight: of each call), and every thread's
// scratch.
int64_t ScratchBytes(ConvPass pass, const ConvShape& s, int threads) {
  const Sizes sizes = ComputeSizes(pass, s);
  const int64_t copies = pass == ConvPass::kWeight ? sizes.calls : 2;
  return copies * sizes.weights + threads * sizes.scratch;
}

void Execute(const dnnl::primitive& work, const std::unordered_map<int, memory>& arguments) {
  thread_local dnnl::stream stream(Engine());
  omp_set_num_threads(1);
  work.execute(stream, arguments);
}

// Runs the work over all images. `image_in` and `image_out`: of the first one.
void RunConvolution(ThreadPool& pool, ConvPass pass, const ConvShape& s, float* in, float* out,
                    float* weights, Workspace workspace) {
  const Sizes sizes = ComputeSizes(pass, s);
  const int64_t copies = pass == ConvPass::kWeight ? sizes.calls : 2;
  char* const base = Scratch<char>(workspace, ScratchBytes(pass, s, pool.threads()));
  const WindowShape& w = s.window;
  const int64_t in_size = w.in_height * w.in_width * s.in_channels;
  const int64_t out_size = w.out_height() * w.out_width() * s.out_channels;
  const auto images_of = [&](int64_t call) {
    return std::min(sizes.at_once, w.batch - call * sizes.at_once);
  };
  const auto packed = [&](int64_t call) {
    if (pass == ConvPass::kWeight) return base + call * sizes.weights;
    return base + (images_of(call) == sizes.at_once ? 0 : sizes.weights);
  };
  if (pass != ConvPass::kWeight) {
    for (int64_t call = 0; call < sizes.calls; call += std::max<int64_t>(1, sizes.calls - 1)) {
      const Primitive& p = Find(pass, s, images_of(call));
      Execute(p.reorder, {{DNNL_ARG_FROM, At(p.plain_weights, weights)},
                          {DNNL_ARG_TO, At(p.weights, packed(call))}});
    }
  }
  pool.For(sizes.calls, [&](int64_t call, int thread) {
    const Primitive& p = Find(pass, s, images_of(call));
    const memory images_in = At(p.images_in, in + call * sizes.at_once * in_size);
    const memory images_out = At(p.images_out, out + call * sizes.at_once * out_size);
    const memory weights_here = At(p.weights, packed(call));
    const memory scratch = At(p.scratch, base + copies * sizes.weights + thread * sizes.scratch);
    switch (pass) {
      case ConvPass::kForward:
        return Execute(p.work, {{DNNL_ARG_SRC, images_in},
                                {DNNL_ARG_WEIGHTS, weights_here},
                                {DNNL_ARG_DST, images_out},
                                {DNNL_ARG_SCRATCHPAD, scratch}});
      case ConvPass::kInput:
        return Execute(p.work, {{DNNL_ARG_DIFF_SRC, images_in},
                                {DNNL_ARG_WEIGHTS, weights_here},
                                {DNNL_ARG_DIFF_DST, images_out},
                                {DNNL_ARG_SCRATCHPAD, scratch}});
      case ConvPass::kWeight:
        return Execute(p.work, {{DNNL_ARG_SRC, images_in},
                                {DNNL_ARG_DIFF_WEIGHTS, weights_here},
                                {DNNL_ARG_DIFF_DST, images_out},
                                {DNNL_ARG_SCRATCHPAD, scratch}});
    }
  });
  if (pass != ConvPass::kWeight) return;
  for (int64_t call = 0; call < sizes.calls; ++call) {
    const Primitive& p = Find(pass, s, images_of(call));
    Execute(p.reorder, {{DNNL_ARG_FROM, At(p.weights, packed(call))},
                        {DNNL_ARG_TO, At(p.plain_weights, weights)}});
  }
}

}  // namespace

int64_t CpuBackend::WorkspaceBytes(const ConvForward& op) const {
  return ScratchBytes(ConvPass::kForward, op.shape, pool_.threads());
}
int64_t CpuBackend::WorkspaceBytes(const ConvBackwardInput& op) const {
  return ScratchBytes(ConvPass::kInput, op.shape, pool_.threads());
}
int64_t CpuBackend::WorkspaceBytes(const ConvBackwardWeight& op) const {
  return ScratchBytes(ConvPass::kWeight, op.shape, pool_.threads());
}

void CpuBackend::Run(Stream&, const ConvForward& op, Workspace workspace) {
  op.Check();
  RunConvolution(pool_, ConvPass::kForward, op.shape, op.x.f32(), op.y.f32(), op.w.f32(),
                 workspace);
}

void CpuBackend::Run(Stream&, const ConvBackwardInput& op, Workspace workspace) {
  op.Check();
  RunConvolution(pool_, ConvPass::kInput, op.shape, op.dx.f32(), op.dy.f32(), op.w.f32(),
                 workspace);
}

void CpuBackend::Run(Stream&, const ConvBackwardWeight& op, Workspace workspace) {
  op.Check();
  RunConvolution(pool_, ConvPass::kWeight, op.shape, op.x.f32(), op.dy.f32(), op.dw.f32(),
                 workspace);
}

}  // namespace atl
