#include "common/toml_setting.h"

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/toml_message.h"

namespace atl {

using google::protobuf::Message;

std::string SettingKey(const std::string& setting) { return setting.substr(0, setting.find('=')); }

absl::Status ReadSetting(absl::string_view origin, const std::string& setting, Message* message) {
  const std::string name = absl::StrCat(origin, setting);
  const std::string key = SettingKey(setting);
  if (key.empty() || key.size() == setting.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": write KEY=VALUE, such as outer.momentum=0.9"));
  }
  // A line's end would begin another setting.
  if (std::any_of(setting.begin(), setting.end(),
                  [](unsigned char c) { return absl::ascii_iscntrl(c); })) {
    return absl::InvalidArgumentError(absl::StrCat(
        origin, absl::CEscape(setting), ": has a control character; give one setting at a time"));
  }
  const std::string value = setting.substr(key.size() + 1);
  TomlMessage reader(name);
  const std::unique_ptr<Message> as_toml(message->New()), as_text(message->New());
  as_toml->CopyFrom(*message);
  const absl::Status status = reader.Read(absl::StrCat(key, " = ", value, "\n"), as_toml.get());
  if (status.ok()) {
    message->CopyFrom(*as_toml);
    return status;
  }
  as_text->CopyFrom(*message);
  const std::string quoted = absl::StrCat(key, " = \"", absl::CEscape(value), "\"\n");
  const absl::Status text_status = reader.Read(quoted, as_text.get());
  if (text_status.ok()) {
    message->CopyFrom(*as_text);
    return text_status;
  }
  // A bare word is no TOML, but what is wrong with it is that the field is of another type.
  absl::string_view why =
      absl::StrContains(status.message(), "not TOML") ? text_status.message() : status.message();
  absl::ConsumePrefix(&why, absl::StrCat(name, ":1: "));
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", why));
}

}  // namespace atl
