#include "common/tokenizer/post_processor.h"

namespace atl::tokenizer {
namespace {

absl::StatusOr<int32_t> SpecialId(const Json& id, int64_t ids, const std::string& where) {
  if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= ids) {
    return Bad(where, absl::StrCat("must be a token's id, below ", ids));
  }
  return id.get<int32_t>();
}

absl::StatusOr<Frame> ParseTemplate(const Json& json, int64_t ids, const std::string& where) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Json> items, ListField(json, "single", where));
  Frame frame;
  bool sequence = false;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string field = absl::StrCat(where, ".single[", i, "]");
    if (!Member(items[i], "Sequence").is_null()) {
      if (sequence) return Bad(field, "is a second sequence");
      sequence = true;
      continue;
    }
    ATOLL_ASSIGN_OR_RETURN(const std::string name,
                           StringField(Member(items[i], "SpecialToken"), "id", field));
    const Json& special = Member(Member(json, "special_tokens"), name.c_str());
    const Json& list = Member(special, "ids");
    if (!list.is_array()) return Bad(field, "names no entry of special_tokens");
    for (const Json& id : list) {
      ATOLL_ASSIGN_OR_RETURN(const int32_t token, SpecialId(id, ids, field));
      (sequence ? frame.after : frame.before).push_back(token);
    }
  }
  if (!sequence) return Bad(absl::StrCat(where, ".single"), "has no place for the text");
  return frame;
}

// BERT's and RoBERTa's: "cls" and "sep" are pairs of a token and its id.
absl::StatusOr<Frame> ParsePair(const Json& json, int64_t ids, const std::string& where) {
  const Json &cls = Member(json, "cls"), &sep = Member(json, "sep");
  if (!cls.is_array() || cls.size() != 2 || !sep.is_array() || sep.size() != 2) {
    return Bad(where, "cls and sep must be pairs of a token and its id");
  }
  Frame frame;
  ATOLL_ASSIGN_OR_RETURN(const int32_t first, SpecialId(cls[1], ids, where + ".cls"));
  ATOLL_ASSIGN_OR_RETURN(const int32_t last, SpecialId(sep[1], ids, where + ".sep"));
  frame.before.push_back(first);
  frame.after.push_back(last);
  return frame;
}

absl::StatusOr<Frame> ParseSequence(const Json& json, int64_t ids, const std::string& where,
                                    int depth) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Json> list, ListField(json, "processors", where));
  Frame frame;
  for (size_t i = 0; i < list.size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(
        const Frame next,
        ParsePostProcessor(list[i], ids, absl::StrCat(where, "[", i, "]"), depth + 1));
    frame.before.insert(frame.before.begin(), next.before.begin(), next.before.end());
    frame.after.insert(frame.after.end(), next.after.begin(), next.after.end());
  }
  return frame;
}

}  // namespace

absl::StatusOr<Frame> ParsePostProcessor(const Json& json, int64_t ids, const std::string& where,
                                         int depth) {
  if (depth > kMaxDepth) return Bad(where, "is nested too deeply");
  if (json.is_null()) return Frame();
  ATOLL_ASSIGN_OR_RETURN(const std::string type, StringField(json, "type", where));
  if (type == "ByteLevel") return Frame();  // it trims offsets, which nothing here has
  if (type == "TemplateProcessing") return ParseTemplate(json, ids, where);
  if (type == "BertProcessing" || type == "RobertaProcessing") return ParsePair(json, ids, where);
  if (type == "Sequence") return ParseSequence(json, ids, where, depth);
  return Unsupported(where, type);
}

}  // namespace atl::tokenizer
