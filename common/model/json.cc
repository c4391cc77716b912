#include "common/model/json.h"

#include <set>
#include <string>

#include "absl/strings/match.h"

namespace atl {

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view file,
                                               int max_depth) {
  using nlohmann::json;
  // The parser skips what lies too deep, so that memory stays in proportion to the text.
  bool too_deep = false;
  std::set<std::string> keys;
  std::string twice;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > max_depth) {
      too_deep = true;
      return false;
    }
    if (event == json::parse_event_t::key && depth == 1) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.insert(key).second && twice.empty()) twice = key;
    }
    return true;
  };
  try {
    json parsed = json::parse(text.begin(), text.end(), watch);
    if (too_deep) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": JSON nested more than ", max_depth, " deep"));
    }
    if (!twice.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": key \"", twice, "\" is given twice"));
    }
    if (!parsed.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": expected a JSON object"));
    }
    return parsed;
  } catch (const json::exception& error) {
    absl::string_view what = error.what();
    // The library begins with "[json.exception.parse_error.101] ".
    if (absl::StartsWith(what, "[json")) what.remove_prefix(what.find("] ") + 2);
    return absl::InvalidArgumentError(absl::StrCat(file, ": not valid JSON: ", what));
  }
}

absl::StatusOr<int64_t> JsonInteger(const nlohmann::json& value, int64_t min, int64_t max) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    std::string shown = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 60) + "...";
    return absl::InvalidArgumentError(
        absl::StrCat("is ", shown, "; expected a whole number from ", min, " to ", max));
  }
  return value.get<int64_t>();
}

}  // namespace atl
