// Tokenizers of tokenizer.json: the parts of one file put together.

#include <xxhash.h>

#include <utility>

#include "absl/strings/str_join.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/decoder.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/post_processor.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/unicode.h"
#include "common/tokenizer/unigram.h"
#include "common/tokenizer/word_models.h"

namespace atl {
namespace tokenizer {
namespace {

class JsonTokenizer : public Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Parse(const Json& json, uint64_t digest,
                                                                const TokenizerConfig& config);

  int64_t vocabulary() const override { return static_cast<int64_t>(vocabulary_->tokens().size()); }
  uint64_t digest() const override { return digest_; }
  std::span<const int32_t> before() const override { return frame_.before; }
  std::span<const int32_t> after() const override { return frame_.after; }
  const std::string& warning() const override { return warning_; }
  std::vector<SpecialTokenPlace> FindSpecialTokens(std::string_view text) const override {
    std::vector<SpecialTokenPlace> places;
    for (const AddedTokenFinder::Place& place : spelt_.Find(text)) {
      if (!place.token->special) continue;
      places.push_back({place.begin, place.bytes, place.token->left_strip});
    }
    return places;
  }
  std::optional<int32_t> TokenId(std::string_view token) const override {
    const int32_t id = vocabulary_->Find(token);
    return id < 0 ? std::nullopt : std::optional(id);
  }
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids,
                                     bool skip_special) const override;

 private:
  absl::Status ParseModel(const Json& json);
  absl::Status ParseAddedTokens(const Json& list);
  void FollowConfig(const TokenizerConfig& config);
  absl::Status Append(std::string_view text, bool continues, EncodeScratch* scratch,
                      std::vector<int32_t>* out) const override;
  // `at_start` and `continues` as the pre-tokenizer has them.
  absl::Status AppendText(std::string_view text, bool at_start, bool continues,
                          EncodeScratch* scratch, std::vector<int32_t>* out) const;

  uint64_t digest_ = 0;
  std::shared_ptr<Vocabulary> vocabulary_ = std::make_shared<Vocabulary>();
  std::vector<bool> special_;  // by id
  AddedTokenFinder raw_, in_normalized_;
  AddedTokenFinder spelt_;  // all of them, as they are spelt
  Normalizer normalizer_;
  bool normalizes_ = false;
  ParsedPreTokenizer pre_tokenizer_;
  std::unique_ptr<TokenModel> model_;
  Decoder decoder_;
  Frame frame_;
  std::string warning_;
};

// Returns whether transformers' class replaces the post-processor of tokenizer.json by the two
// flags.
bool HasOwnFrame(const std::string& tokenizer_class) {
  for (const char* name :
       {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"}) {
    if (tokenizer_class == name || tokenizer_class == absl::StrCat(name, "Fast")) return true;
  }
  return false;
}

// By those classes a text begins with the bos token unless add_bos_token is false, and ends with
// the eos token where add_eos_token is true.
void JsonTokenizer::FollowConfig(const TokenizerConfig& config) {
  const bool own = HasOwnFrame(config.tokenizer_class);
  if (!own && !config.add_bos.has_value() && !config.add_eos.has_value()) return;
  const auto wanted = [&](std::optional<bool> flag, bool absent, const char* name,
                          const std::vector<int32_t>& now) {
    const auto id = TokenId(config.SpecialToken(name));
    if (!own && !flag.has_value()) return now;
    if (!flag.value_or(absent)) return std::vector<int32_t>();
    return id.has_value() ? std::vector{*id} : now;
  };
  Frame frame{wanted(config.add_bos, true, "bos_token", frame_.before),
              wanted(config.add_eos, false, "eos_token", frame_.after)};
  if (frame.before == frame_.before && frame.after == frame_.after) return;
  const auto flag = [](const char* name, std::optional<bool> value) {
    return absl::StrCat(name, value.has_value() ? (*value ? " = true" : " = false") : " absent");
  };
  warning_ = absl::StrCat(
      config.path, ": ", flag("add_bos_token", config.add_bos), ", ",
      flag("add_eos_token", config.add_eos), " and tokenizer.json's post_processor say different ",
      "tokens around a text; as transformers' ",
      config.tokenizer_class.empty() ? "PreTrainedTokenizerFast" : config.tokenizer_class,
      own ? " does, the former are followed" : " does, the latter is followed");
  if (!own) return;
  frame_ = std::move(frame);
  for (const std::vector<int32_t>* side : {&frame_.before, &frame_.after}) {
    digest_ = XXH3_64bits_withSeed(side->data(), side->size() * sizeof(int32_t), digest_ + 1);
  }
}

absl::Status JsonTokenizer::ParseModel(const Json& json) {
  const std::string where = "model";
  if (!json.is_object()) {
    return Bad(where, "must be an object: is this a tokenizer.json of Hugging Face's tokenizers?");
  }
  ATOLL_ASSIGN_OR_RETURN(std::string type, StringField(json, "type", where));
  const Json& list = Member(json, "vocab");
  if (type.empty()) {  // older files say no type
    type = !Member(json, "merges").is_null() ? "BPE" : list.is_array() ? "Unigram" : "WordPiece";
  }
  if (type == "Unigram") {
    ATOLL_ASSIGN_OR_RETURN(*vocabulary_, UnigramModel::ParseVocabulary(list, "model.vocab"));
    ATOLL_ASSIGN_OR_RETURN(model_, UnigramModel::Parse(json, *vocabulary_, where));
    return absl::OkStatus();
  }
  ATOLL_ASSIGN_OR_RETURN(*vocabulary_, Vocabulary::Parse(list, "model.vocab"));
  if (type == "BPE") {
    ATOLL_ASSIGN_OR_RETURN(
        model_, BpeModel::Parse(json, *vocabulary_, pre_tokenizer_.bytes_are_symbols, where));
  } else if (type == "WordPiece") {
    ATOLL_ASSIGN_OR_RETURN(model_, ParseWordPiece(json, vocabulary_, where));
  } else if (type == "WordLevel") {
    ATOLL_ASSIGN_OR_RETURN(model_, ParseWordLevel(json, vocabulary_, where));
  } else {
    return Unsupported(where, type);
  }
  return absl::OkStatus();
}

absl::Status JsonTokenizer::ParseAddedTokens(const Json& list) {
  if (list.is_null()) return absl::OkStatus();
  if (!list.is_array()) return Bad("added_tokens", "must be a list");
  vocabulary_->Expect(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = absl::StrCat("added_tokens[", i, "]");
    const Json& json = list[i];
    AddedToken token;
    ATOLL_ASSIGN_OR_RETURN(token.content, TextField(json, "content", where, ""));
    ATOLL_ASSIGN_OR_RETURN(const int64_t id, IntField(json, "id", where, -1, 0, kMaxIds - 1));
    if (id < 0) return Bad(absl::StrCat(where, ".id"), "must be given");
    token.id = static_cast<int32_t>(id);
    ATOLL_ASSIGN_OR_RETURN(token.single_word, BoolField(json, "single_word", where, false));
    ATOLL_ASSIGN_OR_RETURN(token.left_strip, BoolField(json, "lstrip", where, false));
    ATOLL_ASSIGN_OR_RETURN(token.right_strip, BoolField(json, "rstrip", where, false));
    ATOLL_ASSIGN_OR_RETURN(token.special, BoolField(json, "special", where, false));
    ATOLL_ASSIGN_OR_RETURN(token.normalized, BoolField(json, "normalized", where, !token.special));
    ATOLL_RETURN_IF_ERROR(vocabulary_->Add(token.content, id, where));
    if (token.special) {
      special_.resize(std::max(special_.size(), static_cast<size_t>(id) + 1));
      special_[static_cast<size_t>(id)] = true;
    }
    spelt_.Add(token.content, token);
    if (!token.normalized) {
      raw_.Add(token.content, token);
      continue;
    }
    std::string content = token.content;
    ATOLL_ASSIGN_OR_RETURN(const bool as_spelt, BoolField(json, "as_spelt", where, false));
    if (!as_spelt) ATOLL_RETURN_IF_ERROR(normalizer_(&content, false));
    in_normalized_.Add(content, token);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> JsonTokenizer::Parse(
    const Json& json, uint64_t digest, const TokenizerConfig& config) {
  if (!json.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  auto result = std::make_unique<JsonTokenizer>();
  result->digest_ = digest;
  const Json& normalizer = Member(json, "normalizer");
  result->normalizes_ = !normalizer.is_null();
  ATOLL_ASSIGN_OR_RETURN(result->normalizer_, ParseNormalizer(normalizer, "normalizer"));
  ATOLL_ASSIGN_OR_RETURN(result->pre_tokenizer_,
                         ParsePreTokenizer(Member(json, "pre_tokenizer"), "pre_tokenizer"));
  ATOLL_RETURN_IF_ERROR(result->ParseModel(Member(json, "model")));
  ATOLL_RETURN_IF_ERROR(result->ParseAddedTokens(Member(json, "added_tokens")));
  ATOLL_ASSIGN_OR_RETURN(result->decoder_, ParseDecoder(Member(json, "decoder"), "decoder"));
  ATOLL_ASSIGN_OR_RETURN(
      result->frame_,
      ParsePostProcessor(Member(json, "post_processor"), result->vocabulary(), "post_processor"));
  result->FollowConfig(config);
  return result;
}

absl::Status JsonTokenizer::AppendText(std::string_view text, bool at_start, bool continues,
                                       EncodeScratch* scratch, std::vector<int32_t>* out) const {
  Pieces pieces;
  pieces.text = std::string(text);
  pieces.at_start = at_start;
  pieces.continues = continues;
  pieces.ranges.push_back({0, text.size()});
  for (const PreTokenizer& step : pre_tokenizer_.steps) ATOLL_RETURN_IF_ERROR(step(&pieces));
  for (const Pieces::Range& range : pieces.ranges) {
    const std::string_view piece = pieces.piece(range);
    if (piece.empty() || scratch->words.Find(piece, out)) continue;
    const size_t before = out->size();
    model_->Encode(piece, &scratch->model, out);
    scratch->words.Add(piece, std::span<const int32_t>(*out).subspan(before));
  }
  return absl::OkStatus();
}

absl::Status JsonTokenizer::Append(std::string_view text, bool continues, EncodeScratch* scratch,
                                   std::vector<int32_t>* out) const {
  std::vector<AddedTokenFinder::Segment> segments, inner;
  raw_.Split(text, &segments);
  for (const AddedTokenFinder::Segment& segment : segments) {
    if (segment.id >= 0) {
      out->push_back(segment.id);
      continue;
    }
    const bool first = segment.text.data() == text.data();
    std::string normalized;
    std::string_view given = segment.text;
    if (normalizes_) {
      normalized = std::string(given);
      ATOLL_RETURN_IF_ERROR(normalizer_(&normalized, first && continues));
      given = normalized;
    }
    inner.clear();
    in_normalized_.Split(given, &inner);
    for (const AddedTokenFinder::Segment& part : inner) {
      if (part.id >= 0) {
        out->push_back(part.id);
      } else {
        const bool begins = first && part.text.data() == given.data();
        ATOLL_RETURN_IF_ERROR(
            AppendText(part.text, begins && !continues, begins && continues, scratch, out));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> JsonTokenizer::Decode(std::span<const int32_t> ids,
                                                  bool skip_special) const {
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary()) continue;
    const auto index = static_cast<size_t>(id);
    if (skip_special && index < special_.size() && special_[index]) continue;
    tokens.push_back(vocabulary_->tokens()[index]);
  }
  if (tokens.empty()) return std::string();
  ATOLL_RETURN_IF_ERROR(decoder_(&tokens));
  return Repaired(absl::StrJoin(tokens, ""));
}

}  // namespace
}  // namespace tokenizer

absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseTokenizerJson(std::string_view text,
                                                                    const std::string& name,
                                                                    std::optional<uint64_t> digest,
                                                                    const TokenizerConfig& config) {
  const std::string where = absl::StrCat("tokenizer ", name);
  const tokenizer::Json json =
      tokenizer::Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": is not JSON"));
  }
  auto parsed = tokenizer::JsonTokenizer::Parse(
      json, digest.has_value() ? *digest : XXH3_64bits(text.data(), text.size()), config);
  if (!parsed.ok()) return Annotate(parsed.status(), where);
  return parsed;
}

}  // namespace atl
