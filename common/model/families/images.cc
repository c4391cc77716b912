// The common part of models of images: sizes of images, how their bytes become numbers, classes.

#include "common/model/family.h"
#include "common/model/image_model.h"

namespace atl {

void ImageSizes(FieldPass& f) {
  ModelConfig& c = f.config();
  ImageModel& m = c.image;
  f.Integer("image_size", &m.height, kMaxImageSide, 224);
  f.Integer("num_channels", &m.channels, kMaxImageChannels, 3);
  f.Number("label_smoothing", &m.label_smoothing, 0);
  f.Number("batch_norm_eps", &c.norm_eps, 1e-5);
  f.Fixed("batch_norm_momentum", 0.1);
  if (!f.reads()) {
    f.out()["num_labels"] = c.vocab;
    f.out()["image_mean"] = m.mean;
    f.out()["image_std"] = m.deviation;
    return;
  }
  m.width = m.height;
  const int64_t names = f.in().Entries("id2label");
  c.vocab = f.in().Integer("num_labels", kMaxVocab, names > 0 ? names : 1000);
  if (names > 0 && c.vocab != names) {
    f.in().Fail("num_labels", absl::StrCat("is ", c.vocab, ", and id2label names ", names,
                                           " classes; correct one of them"));
  }
  const auto sides = static_cast<size_t>(m.channels);
  const bool colour = m.channels == 3;
  m.mean = f.in().Numbers("image_mean", sides,
                          colour ? std::vector{0.485, 0.456, 0.406} : std::vector(sides, 0.5));
  m.deviation = f.in().Numbers("image_std", sides,
                               colour ? std::vector{0.229, 0.224, 0.225} : std::vector(sides, 0.5));
  c.d_model = c.layers = c.heads = c.kv_heads = c.ffn = c.max_positions = 1;
}

Architecture DescribeImages(const ModelConfig&) {
  Architecture a;
  a.positions = Positions::kLearned;
  a.objective = Objective::kImageClass;
  return a;
}

}  // namespace atl
