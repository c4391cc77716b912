// Adapters in the files of PEFT: adapter_config.json and the names of tensors beside it.

#ifndef ATOLL_COMMON_MODEL_ADAPTERS_PEFT_H_
#define ATOLL_COMMON_MODEL_ADAPTERS_PEFT_H_

#include <string>

#include "common/model/config.h"

namespace atl {

inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
inline constexpr char kAdapterWeightsFile[] = "adapter_model.safetensors";

// Returns PEFT's name of a matrix's A or B ('A', 'B') in files; `matrix` is its whole name there.
std::string AdapterTensorName(absl::string_view matrix, char which);

// Makes an adapter_config.json that PEFT loads; `base`: the model's folder or repository, or "";
// `revision`: of the repository, or "".
std::string FormatAdapterConfig(const ModelConfig& config, absl::string_view base,
                                absl::string_view revision = "");

// Reads an untrusted adapter_config.json of PEFT. What changes the product in a way that is not
// implemented (dropout is not, which only training has) is refused by name, and so is what has
// changed the base.
absl::StatusOr<AdapterSpec> ParseAdapterConfig(absl::string_view text, absl::string_view file);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_ADAPTERS_PEFT_H_
