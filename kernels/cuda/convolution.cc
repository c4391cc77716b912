// Convolutions as products: what windows see laid out as rows, a few images at a time.

#include <algorithm>

#include "kernels/cuda/ops.h"

namespace atl::ATOLL_DEVICE {
namespace {

// Bytes of columns at a time. They are written and read again, so they should stay in the
// second-level cache, and be enough for a product that fills the device.
constexpr int64_t kColumnBytes = int64_t{16} << 20;

int64_t AlignUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

// Cuts a workspace.
class Scratch {
 public:
  explicit Scratch(Workspace workspace = {}) : workspace_(workspace) {}
  Tensor Take(DType dtype, int64_t rows, int64_t cols) {
    const Tensor taken(
        workspace_.data == nullptr ? nullptr : static_cast<char*>(workspace_.data) + bytes_, dtype,
        rows, cols);
    bytes_ += AlignUp(taken.size() * GetElementSize(dtype), 256);
    return taken;
  }
  int64_t bytes() const { return bytes_; }
  Workspace Rest() const {
    ATOLL_CHECK(workspace_.bytes >= bytes_, "workspace too small");
    return {static_cast<char*>(workspace_.data) + bytes_, workspace_.bytes - bytes_};
  }

 private:
  Workspace workspace_;
  int64_t bytes_ = 0;
};

// How one convolution becomes products.
struct ConvLowering {
  ConvShape shape;
  DType dtype;
  bool plain;      // 1 x 1 without steps: x is what windows see, and w what multiplies it
  int64_t depth;   // columns, in rows that begin on 16 bytes
  int64_t images;  // at a time

  ConvLowering(const ConvShape& s, DType dtype)
      : shape(s),
        dtype(dtype),
        plain(s.window.kernel == 1 && s.window.stride == 1 && s.window.pad == 0),
        depth(AlignUp(s.weight_cols(), 8)),
        images(std::clamp<int64_t>(kColumnBytes / (s.window.out_height() * s.window.out_width() *
                                                   depth * GetElementSize(dtype)),
                                   1, s.window.batch)) {}

  int64_t in_rows() const { return shape.window.in_height * shape.window.in_width; }
  int64_t out_rows() const { return shape.window.out_height() * shape.window.out_width(); }

  Tensor TakeColumns(Scratch& scratch) const {
    return scratch.Take(dtype, images * out_rows(), depth);
  }
  Tensor TakeTurned(Scratch& scratch, DType type) const {
    return scratch.Take(type, shape.out_channels, depth);
  }

  // Takes columns, and calls visit(shape of some images, x's rows of them, y's rows, columns).
  template <typename Visit>
  void ForImages(const Tensor& x, const Tensor& y, Scratch& scratch, const Visit& visit) const {
    const Tensor columns = TakeColumns(scratch);
    for (int64_t first = 0; first < shape.window.batch; first += images) {
      ConvShape some = shape;
      some.window.batch = std::min(images, shape.window.batch - first);
      const int64_t count = some.window.batch;
      visit(some, x.Rows(first * in_rows(), count * in_rows()),
            y.Rows(first * out_rows(), count * out_rows()), columns.Rows(0, count * out_rows()));
    }
  }
};

}  // namespace

void Ops::Run(Stream& stream, const ConvForward& op, Workspace workspace) {
  op.Check();
  const Queue queue = GetQueue(stream);
  if (op.shape.groups > 1) return Enqueue(queue, op);
  const ConvLowering lowering(op.shape, op.y.dtype);
  if (lowering.plain) {
    return Multiply(queue, MakeProduct(LinearForward{.x = op.x, .w = op.w, .y = op.y}), workspace);
  }
  Scratch scratch(workspace);
  const Tensor turned = lowering.TakeTurned(scratch, lowering.dtype);
  Enqueue(queue, TurnWeights{op.shape, op.w, turned});
  lowering.ForImages(
      op.x, op.y, scratch,
      [&](const ConvShape& some, const Tensor& x, const Tensor& y, const Tensor& seen) {
        Enqueue(queue, ConvColumns{some, x, seen});
        Multiply(queue, MakeProduct(LinearForward{.x = seen, .w = turned, .y = y}), scratch.Rest());
      });
}

void Ops::Run(Stream& stream, const ConvBackwardInput& op, Workspace workspace) {
  op.Check();
  const Queue queue = GetQueue(stream);
  if (op.shape.groups > 1) return Enqueue(queue, op);
  const ConvLowering lowering(op.shape, op.dx.dtype);
  if (lowering.plain) {
    return Multiply(queue, MakeProduct(LinearBackwardInput{.dy = op.dy, .w = op.w, .dx = op.dx}),
                    workspace);
  }
  Scratch scratch(workspace);
  const Tensor turned = lowering.TakeTurned(scratch, lowering.dtype);
  Enqueue(queue, TurnWeights{op.shape, op.w, turned});
  lowering.ForImages(
      op.dx, op.dy, scratch,
      [&](const ConvShape& some, const Tensor& dx, const Tensor& dy, const Tensor& seen) {
        Multiply(queue, MakeProduct(LinearBackwardInput{.dy = dy, .w = turned, .dx = seen}),
                 scratch.Rest());
        Enqueue(queue, FoldColumns{some, seen, dx});
      });
}

void Ops::Run(Stream& stream, const ConvBackwardWeight& op, Workspace workspace) {
  op.Check();
  const Queue queue = GetQueue(stream);
  if (op.shape.groups > 1) return Enqueue(queue, op, workspace);
  const ConvLowering lowering(op.shape, op.x.dtype);
  if (lowering.plain) {
    return Multiply(queue, MakeProduct(LinearBackwardWeight{.x = op.x, .dy = op.dy, .dw = op.dw}),
                    workspace);
  }
  Scratch scratch(workspace);
  const Tensor turned = lowering.TakeTurned(scratch, op.dw.dtype);
  bool first = true;
  lowering.ForImages(
      op.x, op.dy, scratch,
      [&](const ConvShape& some, const Tensor& x, const Tensor& dy, const Tensor& seen) {
        Enqueue(queue, ConvColumns{some, x, seen});
        Product product = MakeProduct(LinearBackwardWeight{.x = seen, .dy = dy, .dw = turned});
        if (first) product.c = {};
        first = false;
        Multiply(queue, product, scratch.Rest());
      });
  Enqueue(queue, AddTurnedWeights{op.shape, turned, op.dw});
}

namespace {

int64_t ColumnsBytes(const ConvShape& shape, DType dtype, DType weights) {
  const ConvLowering lowering(shape, dtype);
  if (shape.groups > 1 || lowering.plain) return 0;
  Scratch scratch;
  lowering.TakeTurned(scratch, weights);
  lowering.TakeColumns(scratch);
  return scratch.bytes();
}

}  // namespace

int64_t Ops::WorkspaceBytes(const ConvForward& op) const {
  return ColumnsBytes(op.shape, op.y.dtype, op.y.dtype) + ProductBytes();
}
int64_t Ops::WorkspaceBytes(const ConvBackwardInput& op) const {
  return ColumnsBytes(op.shape, op.dx.dtype, op.dx.dtype) + ProductBytes();
}
int64_t Ops::WorkspaceBytes(const ConvBackwardWeight& op) const {
  if (op.shape.groups > 1) return ScratchBytes(op);
  return ColumnsBytes(op.shape, op.x.dtype, op.dw.dtype) + ProductBytes();
}

}  // namespace atl::ATOLL_DEVICE
