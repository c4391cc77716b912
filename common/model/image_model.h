// The parts of a model of images: one ImageLayer describes a stem, a block or a head, and layers,
// layouts and costs follow it, as they follow an Architecture for transformers.
//
// An image is height * width rows of channels; see kernels/image_ops.h.

#ifndef ATOLL_COMMON_MODEL_IMAGE_MODEL_H_
#define ATOLL_COMMON_MODEL_IMAGE_MODEL_H_

#include <optional>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "common/model/layout.h"
#include "common/model/stash.h"

namespace atl {

struct ImageSize {
  int64_t height = 0, width = 0, channels = 0;

  int64_t rows() const { return height * width; }
  int64_t elements() const { return rows() * channels; }
};

enum class ImageActivation : uint8_t { kNone, kRelu, kSilu };

// A convolution, padded by half of its kernel, and batch normalisation behind it.
struct ConvPart {
  std::string conv, norm;  // names in files, without ".weight" and so on
  ImageSize in;
  int64_t out_channels = 0;
  int64_t kernel = 1, stride = 1, groups = 1;
  ImageActivation activation = ImageActivation::kNone;

  ImageSize out() const;
  double flops() const;  // of one image
};

struct ImageLayer {
  std::string name;  // as LayerLayout's
  ImageSize in;
  std::vector<ConvPart> convs;  // one after the other; a head may have none
  // The last one's norm adds this block's input, or the shortcut's output, before its activation.
  bool residual = false;
  std::optional<ConvPart> shortcut;
  // Squeeze-and-excitation before the last of convs: so many channels inside; 0: none.
  int64_t squeeze_channels = 0;
  std::string squeeze_in, squeeze_out;  // names of its two products
  bool pixels = false;                  // the stem: its input are bytes
  bool pools = false;                   // behind convs: the largest of 3 x 3, every second one
  int64_t classes = 0;  // the head: behind convs a mean over the image, and a product
  std::string classifier;

  ImageSize convolved() const { return convs.empty() ? in : convs.back().out(); }
  ImageSize out() const;  // of a head: its classes
};

// Stem, blocks, head. REQUIRES: a valid model of images.
std::vector<ImageLayer> ImageLayers(const ModelConfig& config);

// How a parameter of an ImageLayer is found: by its place among the layer's.
struct ConvParams {
  const ParamSpec *weight = nullptr, *gain = nullptr, *shift = nullptr;
  const ParamSpec *running_mean = nullptr, *running_variance = nullptr;
};
LayerLayout MakeImageLayout(const ImageLayer& layer);
ConvParams FindConvParams(const LayerLayout& layout, const ConvPart& part);

double ForwardFlops(const ImageLayer& layer);

// Slots that a convolution keeps. `out` is behind the norm, and absent where that is the layer's
// output.
struct ConvSlots {
  Slot raw, mean, rstd, out;
  Slot grad_raw, sums;  // backward
};
struct ImageStash {
  Slot pixels;  // the stem's input as numbers
  std::vector<ConvSlots> convs;
  ConvSlots shortcut;
  // Slots of squeeze-and-excitation: means, before and behind its first product, gates, gated
  // input.
  Slot squeezed, inner, activated, gate, gated;
  Slot grad_gate, grad_inner;  // backward
  Slot pooled;                 // the head's means
  int64_t forward_bytes = 0, backward_bytes = 0;
};
ImageStash MakeImageStash(const ImageLayer& layer, int64_t images, const ElementBytes& element);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_IMAGE_MODEL_H_
