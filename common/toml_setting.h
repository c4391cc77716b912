// KEY=VALUE, as people write one setting on a command line, onto a protobuf message.

#ifndef ATOLL_COMMON_TOML_SETTING_H_
#define ATOLL_COMMON_TOML_SETTING_H_

#include <google/protobuf/message.h>

#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace atl {

// The part of a setting before its first '='.
std::string SettingKey(const std::string& setting);

// Sets the field of `message` that the setting names, as on a line of TOML; a value that is no TOML
// is taken as a text. An error begins with `origin` and the setting, and nothing changes:
// "--set outer.momentm=1: outer.momentm: there is no such field; did you mean momentum?".
absl::Status ReadSetting(absl::string_view origin, const std::string& setting,
                         google::protobuf::Message* message);

}  // namespace atl

#endif  // ATOLL_COMMON_TOML_SETTING_H_
