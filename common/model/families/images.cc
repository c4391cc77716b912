// The common part of models of images: sizes of images, how their bytes become numbers, classes.

#include "common/model/family.h"
#include "common/model/image_model.h"

namespace atl {

void ReadImageSizes(ConfigFields& fields, ModelConfig* c) {
  ImageModel& m = c->image;
  m.height = m.width = fields.Integer("image_size", kMaxImageSide, 224);
  m.channels = fields.Integer("num_channels", kMaxImageChannels, 3);
  const int64_t names = fields.Entries("id2label");
  c->vocab = fields.Integer("num_labels", kMaxVocab, names > 0 ? names : 1000);
  if (names > 0 && c->vocab != names) {
    fields.Fail("num_labels", absl::StrCat("is ", c->vocab, ", and id2label names ", names,
                                           " classes; correct one of them"));
  }
  const auto sides = static_cast<size_t>(m.channels);
  const bool colour = m.channels == 3;
  m.mean = fields.Numbers("image_mean", sides,
                          colour ? std::vector{0.485, 0.456, 0.406} : std::vector(sides, 0.5));
  m.deviation = fields.Numbers("image_std", sides,
                               colour ? std::vector{0.229, 0.224, 0.225} : std::vector(sides, 0.5));
  m.label_smoothing = fields.Number("label_smoothing", 0);
  c->norm_eps = fields.Number("batch_norm_eps", 1e-5);
  fields.MustBe("batch_norm_momentum", 0.1);
  c->d_model = c->layers = c->heads = c->kv_heads = c->ffn = c->max_positions = 1;
}

void WriteImageSizes(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  j["image_size"] = c.image.height;
  j["num_channels"] = c.image.channels;
  j["num_labels"] = c.vocab;
  j["image_mean"] = c.image.mean;
  j["image_std"] = c.image.deviation;
  j["label_smoothing"] = c.image.label_smoothing;
  j["batch_norm_eps"] = c.norm_eps;
  j["batch_norm_momentum"] = 0.1;
}

Architecture DescribeImages(const ModelConfig&) {
  Architecture a;
  a.positions = Positions::kLearned;
  a.objective = Objective::kImageClass;
  return a;
}

}  // namespace atl
