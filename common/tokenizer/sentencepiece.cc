// SentencePiece's .model files, as the tokenizer.json that says the same. Where Hugging Face's
// library and SentencePiece's own differ, fields of this folder's own ask for the latter:
// "longest_key" and "kept" of a Precompiled normalizer, "if_continued" of Prepend, "as_spelt" of an
// added token, "lowest_score" and "sums_are_floats" of a Unigram model, and scores that are null.

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/status.h"
#include "common/tokenizer/charsmap.h"
#include "common/tokenizer/json_fields.h"
#include "common/tokenizer/sentencepiece_model.pb.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/unicode.h"
#include "common/tokenizer/views.h"

namespace atl {
namespace {

using sentencepiece::Model;
using tokenizer::Json;

constexpr const char* kSpace = "\xe2\x96\x81";  // what stands for a space
constexpr size_t kPieceBytesMax = 1024;
constexpr int kLeadingSpacesMax = 1024;

Json SpecialToken(int id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// Where a piece can be made by joining two others, each such pair, those of the best score first.
Json ListMerges(const Model& model, const tokenizer::TextIds& ids) {
  struct Merge {
    float score;
    int left, right;
    std::string a, b;
  };
  std::vector<Merge> merges;
  for (const Model::Piece& piece : model.pieces()) {
    const std::string& text = piece.piece();
    if (piece.type() != Model::Piece::NORMAL && piece.type() != Model::Piece::USER_DEFINED)
      continue;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((text[cut] & 0xc0) == 0x80) continue;
      const std::string a = text.substr(0, cut), b = text.substr(cut);
      const auto left = ids.find(a), right = ids.find(b);
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back({piece.score(), left->second, right->second, a, b});
    }
  }
  std::stable_sort(merges.begin(), merges.end(),
                   [](const Merge& a, const Merge& b) { return a.score > b.score; });
  Json list = Json::array();
  for (const Merge& merge : merges) list.push_back({merge.a, merge.b});
  return list;
}

// A user's symbol counts as so many bytes of the best piece, less a little. SentencePiece looks for
// the best score from the least positive number on, so that log probabilities never exceed it.
Json BuildUnigramJson(const Model& model) {
  float best = std::numeric_limits<float>::min();
  float worst = std::numeric_limits<float>::infinity();
  for (const Model::Piece& piece : model.pieces()) {
    if (piece.type() != Model::Piece::NORMAL) continue;
    best = std::max(best, piece.score());
    worst = std::min(worst, piece.score());
  }
  Json scores = Json::array();
  for (const Model::Piece& piece : model.pieces()) {
    Json score;
    if (piece.type() == Model::Piece::NORMAL) score = piece.score();
    if (piece.type() == Model::Piece::USER_DEFINED) {
      score = static_cast<float>(piece.piece().size()) * best - 0.1;
    }
    scores.push_back({piece.piece(), score});
  }
  return {{"type", "Unigram"},
          {"unk_id", model.trainer_spec().unk_id()},
          {"byte_fallback", model.trainer_spec().byte_fallback()},
          {"lowest_score", worst},
          {"sums_are_floats", true},
          {"vocab", scores}};
}

absl::StatusOr<Json> BuildModelJson(const Model& model) {
  const Model::Trainer& trainer = model.trainer_spec();
  Json vocabulary;
  tokenizer::TextIds ids;
  for (int id = 0; id < model.pieces_size(); ++id) {
    const Model::Piece& piece = model.pieces(id);
    if (piece.piece().empty() || piece.piece().size() > kPieceBytesMax ||
        !tokenizer::IsWellFormed(piece.piece())) {
      return absl::InvalidArgumentError(absl::StrCat("piece ", id, " is no text"));
    }
    if (!ids.emplace(piece.piece(), id).second) {
      return absl::InvalidArgumentError(absl::StrCat("piece ", id, " comes twice"));
    }
    vocabulary[piece.piece()] = id;
  }
  if (trainer.unk_id() < 0 || trainer.unk_id() >= model.pieces_size()) {
    return absl::InvalidArgumentError(absl::StrCat("unk_id ", trainer.unk_id(), " is no piece"));
  }
  if (trainer.model_type() == Model::Trainer::UNIGRAM) {
    return BuildUnigramJson(model);
  }
  if (trainer.model_type() == Model::Trainer::BPE) {
    return Json{{"type", "BPE"},       {"unk_token", model.pieces(trainer.unk_id()).piece()},
                {"fuse_unk", true},    {"byte_fallback", trainer.byte_fallback()},
                {"vocab", vocabulary}, {"merges", ListMerges(model, ids)}};
  }
  return absl::UnimplementedError("models of words or characters are not supported");
}

bool MakesLineEndsSpaces(const Model::Normalizer& spec) {
  if (spec.precompiled_charsmap().empty()) return false;
  const auto map = tokenizer::Charsmap::Parse(spec.precompiled_charsmap());
  return map.ok() && map->NormalizedByLongestKey("\n") == " ";
}

Json BuildNormalizerJson(const Model& model) {
  const Model::Normalizer& spec = model.normalizer_spec();
  Json steps = Json::array();
  if (!spec.precompiled_charsmap().empty()) {
    Json kept = Json::array();
    for (const Model::Piece& piece : model.pieces()) {
      if (piece.type() == Model::Piece::USER_DEFINED) kept.push_back(piece.piece());
    }
    steps.push_back({{"type", "Precompiled"},
                     {"precompiled_charsmap", absl::Base64Escape(spec.precompiled_charsmap())},
                     {"longest_key", true},
                     {"kept", kept}});
  }
  // Before extra spaces are removed: a text that continues another may begin with one that counts.
  if (spec.add_dummy_prefix()) {
    // The space that the line end at the cut became was removed at the end of the text before.
    const bool is_removed = spec.remove_extra_whitespaces() && MakesLineEndsSpaces(spec);
    steps.push_back({{"type", "Prepend"}, {"prepend", " "}, {"if_continued", is_removed}});
  }
  if (spec.remove_extra_whitespaces()) {
    const std::string at_end =
        spec.escape_whitespaces() ? absl::StrCat("[ ", kSpace, "]+$") : " +$";
    const std::string at_begin = spec.add_dummy_prefix() ? "" : "^ +|";
    steps.push_back({{"type", "Replace"},
                     {"pattern", {{"Regex", absl::StrCat(at_begin, at_end, "| +(?= )")}}},
                     {"content", ""}});
  }
  if (spec.escape_whitespaces()) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
  }
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

Json MakeDecoder(const Model::Normalizer& spec) {
  Json steps = {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                {{"type", "ByteFallback"}},
                {{"type", "Fuse"}}};
  if (spec.add_dummy_prefix() || spec.remove_extra_whitespaces()) {
    const int spaces = spec.remove_extra_whitespaces() ? kLeadingSpacesMax : 1;
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", spaces}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", steps}};
}

absl::StatusOr<Json> BuildTokenizerJson(const Model& model) {
  if (model.trainer_spec().treat_whitespace_as_suffix()) {
    return absl::UnimplementedError("white space as a suffix is not supported");
  }
  Json json;
  ATOLL_ASSIGN_OR_RETURN(json["model"], BuildModelJson(model));
  json["normalizer"] = BuildNormalizerJson(model);
  json["decoder"] = MakeDecoder(model.normalizer_spec());
  json["added_tokens"] = Json::array();
  for (int id = 0; id < model.pieces_size(); ++id) {
    const Model::Piece& piece = model.pieces(id);
    // Control pieces are never found in text; the vocabulary alone names them.
    if (piece.type() == Model::Piece::USER_DEFINED &&
        model.trainer_spec().model_type() == Model::Trainer::BPE) {
      json["added_tokens"].push_back(SpecialToken(id, piece.piece(), false));
      json["added_tokens"].back()["normalized"] = true;
      json["added_tokens"].back()["as_spelt"] = true;
    }
  }
  const int begin = model.trainer_spec().bos_id();
  if (begin >= 0 && begin < model.pieces_size()) {
    const std::string& name = model.pieces(begin).piece();
    json["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", name}}}}, {{"Sequence", {{"id", "A"}}}}}},
        {"special_tokens", {{name, {{"ids", {begin}}}}}}};
  }
  return json;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseSentencePiece(const std::string& model,
                                                                    const std::string& name,
                                                                    const TokenizerConfig& config) {
  Model parsed;
  if (!parsed.ParseFromString(model) || parsed.pieces_size() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer ", name, ": is not a SentencePiece model"));
  }
  const auto json = BuildTokenizerJson(parsed);
  if (!json.ok()) return Annotate(json.status(), absl::StrCat("tokenizer ", name));
  return ParseTokenizerJson(json->dump(), name, XXH3_64bits(model.data(), model.size()), config);
}

}  // namespace atl
