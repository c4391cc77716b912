#include "coordinator/change_settings.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/protocol/wire.h"
#include "common/toml_message.h"
#include "common/toml_text.h"

namespace atl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A field of a message inside of another one.
struct Place {
  const Message* message = nullptr;  // nullptr: there is none
  const FieldDescriptor* field = nullptr;
};

// Finds the field that a dotted name means.
Place Find(const Message& message, const std::string& name) {
  Place place{&message, nullptr};
  for (const absl::string_view part : absl::StrSplit(name, '.')) {
    if (place.field != nullptr) {
      if (place.field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return {};
      if (place.field->is_repeated()) return {};
      place.message = &place.message->GetReflection()->GetMessage(*place.message, place.field);
    }
    place.field = place.message->GetDescriptor()->FindFieldByName(std::string(part));
    if (place.field == nullptr) return {};
  }
  return place;
}

std::string ListLiveFields(const google::protobuf::Descriptor& descriptor,
                           const std::string& prefix) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const std::string name = absl::StrCat(prefix, field.name());
    if (field.options().GetExtension(v1::plain).live()) names.push_back(name);
    if (field.message_type() != nullptr && !field.is_repeated()) {
      std::string inner = ListLiveFields(*field.message_type(), name + ".");
      if (!inner.empty()) names.push_back(std::move(inner));
    }
  }
  return absl::StrJoin(names, ", ");
}

absl::Status CheckLive(const v1::JobSpec& spec, const std::string& setting) {
  const std::string name(absl::StripAsciiWhitespace(SettingKey(setting)));
  const Place place = Find(spec, name);
  if (place.message != nullptr && place.field->options().GetExtension(v1::plain).live()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      name,
      " cannot change while a job runs; what can: ", ListLiveFields(*spec.GetDescriptor(), "")));
}

}  // namespace

absl::StatusOr<ChangedSpec> ApplySettings(const JobSpec& now,
                                          const std::vector<std::string>& settings) {
  if (settings.empty() || settings.size() > kSettingsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        settings.size(), " settings are given: give 1 to ", kSettingsMax, ", as KEY=VALUE"));
  }
  v1::JobSpec before, after;
  ATOLL_RETURN_IF_ERROR(Encode(now, &before));
  after = before;
  for (const std::string& setting : settings) {
    ATOLL_RETURN_IF_ERROR(ReadSetting("", setting, &after));
    ATOLL_RETURN_IF_ERROR(CheckLive(before, setting));
  }
  ChangedSpec changed;
  v1::JobSpec decoded = after;
  ATOLL_ASSIGN_OR_RETURN(changed.spec, Decode(&decoded));
  ATOLL_RETURN_IF_ERROR(Validate(changed.spec));
  for (const std::string& setting : settings) {
    v1::SettingChange change;
    change.set_field(std::string(absl::StripAsciiWhitespace(SettingKey(setting))));
    const Place old = Find(before, change.field()), next = Find(after, change.field());
    change.set_before(TomlValue(*old.message, *old.field));
    change.set_after(TomlValue(*next.message, *next.field));
    const auto known = std::find_if(
        changed.changes.begin(), changed.changes.end(),
        [&](const v1::SettingChange& other) { return other.field() == change.field(); });
    if (change.before() != change.after() && known == changed.changes.end()) {
      changed.changes.push_back(std::move(change));
    }
  }
  return changed;
}

std::string ChangesText(const std::vector<v1::SettingChange>& changes) {
  return absl::StrJoin(changes, ", ", [](std::string* out, const v1::SettingChange& change) {
    absl::StrAppend(out, change.field(), " ", change.before(), " -> ", change.after());
  });
}

}  // namespace atl
