#include "common/tokenizer/model.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace atl::tokenizer {

absl::Status Vocabulary::Add(std::string token, int64_t id, const std::string& where) {
  const int64_t ids_max = std::min(kMaxIds, expected_ + kUnusedIdsMax);
  if (id < 0 || id >= ids_max) {
    return Bad(where,
               absl::StrCat("token \"", token, "\" has the id ", id, ", not one below ", ids_max));
  }
  if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
  ids_.insert_or_assign(token, static_cast<int32_t>(id));
  tokens_[static_cast<size_t>(id)] = std::move(token);
  return absl::OkStatus();
}

absl::StatusOr<Vocabulary> Vocabulary::Parse(const Json& json, const std::string& where) {
  Vocabulary vocabulary;
  const auto add = [&](const std::string& token, const Json& id) -> absl::Status {
    if (!id.is_number_integer()) return Bad(where, absl::StrCat("\"", token, "\" has no whole id"));
    if (vocabulary.Find(token) >= 0) return Bad(where, absl::StrCat("\"", token, "\" comes twice"));
    return vocabulary.Add(token, id.get<int64_t>(), where);
  };
  vocabulary.Expect(json.size());
  if (json.is_object()) {
    vocabulary.ids_.reserve(json.size());
    for (const auto& [token, id] : json.items()) ATOLL_RETURN_IF_ERROR(add(token, id));
  } else if (json.is_array()) {
    vocabulary.ids_.reserve(json.size());
    for (const Json& entry : json) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string()) {
        return Bad(where, "must hold pairs of a token and its id");
      }
      ATOLL_RETURN_IF_ERROR(add(entry[0].get<std::string>(), entry[1]));
    }
  } else {
    return Bad(where, "must be an object of tokens and ids");
  }
  if (vocabulary.tokens_.empty()) return Bad(where, "has no tokens");
  return vocabulary;
}

absl::StatusOr<int32_t> UnknownId(const Json& json, const Vocabulary& vocabulary,
                                  const std::string& where) {
  ATOLL_ASSIGN_OR_RETURN(const std::string token, StringField(json, "unk_token", where));
  if (token.empty()) return -1;
  const int32_t id = vocabulary.Find(token);
  if (id < 0) {
    return Bad(absl::StrCat(where, ".unk_token"),
               absl::StrCat("\"", token, "\" is not in the vocabulary"));
  }
  return id;
}

std::vector<int32_t> ByteTokens(const Vocabulary& vocabulary) {
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    ids.push_back(vocabulary.Find(name));
    if (ids.back() < 0) return {};
  }
  return ids;
}

}  // namespace atl::tokenizer
