// Reads fields of one config.json; the first error stays, and no field is left unread.

#ifndef ATOLL_COMMON_MODEL_CONFIG_FIELDS_H_
#define ATOLL_COMMON_MODEL_CONFIG_FIELDS_H_

#include <set>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "common/model/json.h"

namespace atl {

class ConfigFields {
 public:
  // `path`: of an object inside of the file, "rope_scaling.", for messages.
  ConfigFields(const nlohmann::json& object, absl::string_view file, std::string path = "")
      : object_(object), file_(file), path_(std::move(path)) {}

  bool Has(const std::string& name) {
    known_.insert(name);
    return object_.contains(name) && !object_[name].is_null();
  }

  bool IsNull(const std::string& name) {
    known_.insert(name);
    return object_.contains(name) && object_[name].is_null();
  }

  int64_t Integer(const std::string& name, int64_t max);
  int64_t Integer(const std::string& name, int64_t max, int64_t otherwise) {
    return Has(name) ? Integer(name, max) : otherwise;
  }
  // `absent` where the field is absent; 0 where it is null, which switches a feature off.
  int64_t IntegerOrNull(const std::string& name, int64_t max, int64_t absent) {
    return IsNull(name) ? 0 : Integer(name, max, absent);
  }
  double NumberOrNull(const std::string& name, double absent) {
    return IsNull(name) ? 0 : Number(name, absent);
  }
  // Reads a number from 0 on.
  int64_t Count(const std::string& name, int64_t max, int64_t otherwise);
  double Number(const std::string& name);
  double Number(const std::string& name, double otherwise);
  // Ids of a token, of which transformers allows one or several; null: none.
  std::vector<int64_t> TokenIds(const std::string& name, std::vector<int64_t> absent = {});
  // Entries of an object; 0 where the field is absent.
  int64_t Entries(const std::string& name);
  // An array of at most `most` of them.
  std::vector<int64_t> Integers(const std::string& name, size_t most, int64_t max,
                                std::vector<int64_t> otherwise);
  // An array of numbers; returns those below `count`. None where the field is absent, null or
  // empty.
  std::vector<int64_t> Indices(const std::string& name, int64_t count);
  std::vector<double> Numbers(const std::string& name, size_t most, std::vector<double> otherwise);
  bool Flag(const std::string& name, bool otherwise);
  std::string Text(const std::string& name, const std::string& otherwise);

  // Refuses every value but `implemented`, which an absent field has.
  void MustBe(const std::string& name, const nlohmann::json& implemented);

  // rope_theta, with rope_scaling or rope_parameters; both must say the same.
  void Rope(ModelConfig* config);
  // layer_types, which newer files have beside a window: must say what the window does.
  void LayerTypes(const ModelConfig& config);

  void Fail(const std::string& name, absl::string_view problem);

  // Refuses an activation that is not one of those, which mean the same; also under its other names
  // in CheckUnread.
  void Activation(const std::string& name, std::vector<std::string> implemented);

  // Refuses those of the fields that no caller has read which change the model, and lists unknown
  // ones in Warning(). `family` is named in messages.
  void CheckUnread(absl::string_view family);
  // The same, and refuses what nothing is known of.
  void RefuseUnread(absl::string_view what);
  // "" or the fields that are left out, with their values.
  std::string Warning() const;

  const absl::Status& status() const { return status_; }

 private:
  // Null where the field is absent, null, or no such array, which is refused.
  const nlohmann::json* Array(const std::string& name, size_t least, size_t most);
  void CheckActivation(const std::string& name);
  void ReadScaling(const nlohmann::json& rope, const std::string& name, ModelConfig* config);

  const nlohmann::json& object_;
  const absl::string_view file_;
  const std::string path_;
  std::set<std::string> known_;
  std::vector<std::string> activations_;
  std::vector<std::string> unknown_;  // "name = value"
  absl::Status status_;
};

// Writes rope_theta and rope_scaling, as ConfigFields::Rope reads them.
void WriteRope(const ModelConfig& config, nlohmann::ordered_json* json);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_CONFIG_FIELDS_H_
