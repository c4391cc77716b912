// TOML onto a protobuf message, field by field of its descriptor, so that there is one schema.
// Strict: what is not a field is refused by name, with its line and the nearest field.
//
// A choice is an enum's value without its prefix: MODEL_FAMILY_LLAMA of ModelFamily is "llama".
// A repeated message is a list of tables, or [[tables]]; a list of one text may be that text.

#ifndef ATOLL_COMMON_TOML_MESSAGE_H_
#define ATOLL_COMMON_TOML_MESSAGE_H_

#include <google/protobuf/message.h>

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace atl {

class TomlMessage {
 public:
  // `path`: of the file; it begins every error.
  explicit TomlMessage(std::string path) : path_(std::move(path)) {}

  // Sets the fields of `message` that `text` names. Errors are one line:
  // "job.toml:12: outer.momentm: there is no such field; did you mean momentum?".
  absl::Status Read(absl::string_view text, google::protobuf::Message* message);

  // Puts path and line of the field that `status` speaks of ("outer.momentum = 2: ...") before it.
  absl::Status Locate(const absl::Status& status) const;

 private:
  const std::string path_;
  std::map<std::string, int> lines_;  // by field
};

// Returns the part of a setting, KEY=VALUE, before its first '='.
std::string SettingKey(const std::string& setting);

// Sets the field of `message` that the setting names, as on a line of TOML; a value that is no TOML
// is taken as a text. An error begins with `origin` and the setting, and nothing changes:
// "--set outer.momentm=1: outer.momentm: there is no such field; did you mean momentum?".
absl::Status ReadSetting(absl::string_view origin, const std::string& setting,
                         google::protobuf::Message* message);

}  // namespace atl

#endif  // ATOLL_COMMON_TOML_MESSAGE_H_
