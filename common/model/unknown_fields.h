// Separates known from unknown fields of a config.json that a family's reader does not read.

#ifndef ATOLL_COMMON_MODEL_UNKNOWN_FIELDS_H_
#define ATOLL_COMMON_MODEL_UNKNOWN_FIELDS_H_

#include <string>

#include "common/model/json.h"

namespace atl {

enum class FieldUse : uint8_t {
  kNone,          // changes nothing in training, or has the value of a feature that is off
  kUnknown,       // no class of the families that Atoll trains reads it
  kActivation,    // another name of the feed-forward's nonlinearity
  kQuantisation,  // says that the weights are quantised
  kChangesModel,  // switches a feature on that changes the model
};

FieldUse ClassifyField(const std::string& name, const nlohmann::json& value);

// The value as it stands in a message: its beginning, where it is long.
std::string ValueText(const nlohmann::json& value);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_UNKNOWN_FIELDS_H_
