// A model's config.json as Hugging Face's transformers has it, both ways.

#ifndef ATOLL_COMMON_MODEL_HUGGING_FACE_H_
#define ATOLL_COMMON_MODEL_HUGGING_FACE_H_

#include <string>

#include "common/model/config.h"

namespace atl {

// Reads the text of a config.json from an untrusted source. Fields that change nothing in training
// are skipped; every other one that the family does not know, or whose value Atoll does not
// implement, is refused by name. `file` is named in messages.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view file);

// A config.json that transformers' Auto classes load; of images, whose tensors have torchvision's
// names, without a class. `dtype`: of the weights beside it. REQUIRES: valid.
std::string FormatModelConfig(const ModelConfig& config, absl::string_view dtype = "float32");

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_HUGGING_FACE_H_
