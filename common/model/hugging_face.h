// A model's config.json as Hugging Face's transformers has it, both ways.

#ifndef ATOLL_COMMON_MODEL_HUGGING_FACE_H_
#define ATOLL_COMMON_MODEL_HUGGING_FACE_H_

#include <string>

#include "common/model/config.h"

namespace atl {

// Reads the text of a config.json from an untrusted source. A field whose value changes the model
// in a way that Atoll does not implement is refused by name. Fields that change nothing in training
// are skipped; those that nothing is known of are left out, and `warning` (it may be null) lists
// them with their values. `file` is named in messages.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view file,
                                             std::string* warning = nullptr);

// A config.json that transformers' Auto classes load; of images, whose tensors have torchvision's
// names, without a class. `dtype`: of the weights beside it. REQUIRES: valid.
std::string FormatModelConfig(const ModelConfig& config, absl::string_view dtype = "float32");

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_HUGGING_FACE_H_
