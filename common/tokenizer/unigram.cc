#include "common/tokenizer/unigram.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/tokenizer/unicode.h"

namespace atl::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10;

}  // namespace

absl::StatusOr<Vocabulary> UnigramModel::ParseVocabulary(const Json& json,
                                                         const std::string& where) {
  if (!json.is_array() || json.empty()) return Bad(where, "must be a list of tokens and scores");
  Vocabulary vocabulary;
  vocabulary.Expect(json.size());
  for (size_t id = 0; id < json.size(); ++id) {
    const Json& entry = json[id];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
        !(entry[1].is_number() || entry[1].is_null())) {
      return Bad(absl::StrCat(where, "[", id, "]"), "must be a token and its score");
    }
    ATOLL_RETURN_IF_ERROR(
        vocabulary.Add(entry[0].get<std::string>(), static_cast<int64_t>(id), where));
  }
  return vocabulary;
}

absl::StatusOr<std::unique_ptr<UnigramModel>> UnigramModel::Parse(const Json& json,
                                                                  const Vocabulary& vocabulary,
                                                                  const std::string& where) {
  auto model = std::make_unique<UnigramModel>();
  const auto count = static_cast<int64_t>(vocabulary.tokens().size());
  ATOLL_ASSIGN_OR_RETURN(const int64_t unknown, IntField(json, "unk_id", where, -1, -1, count - 1));
  model->unknown_ = static_cast<int32_t>(unknown);
  ATOLL_ASSIGN_OR_RETURN(const bool fallback, BoolField(json, "byte_fallback", where, false));
  ATOLL_ASSIGN_OR_RETURN(model->sums_are_floats_, BoolField(json, "sums_are_floats", where, false));
  if (fallback) model->fallback_ = ByteTokens(vocabulary);
  const Json& list = Member(json, "vocab");
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < list.size(); ++id) {
    const std::string& token = vocabulary.tokens()[id];
    if (list[id][1].is_null()) {
      model->scores_.push_back(0);
      continue;
    }
    model->scores_.push_back(list[id][1].get<double>());
    lowest = std::min(lowest, model->scores_.back());
    if (token.empty()) continue;
    model->ids_.emplace(token, static_cast<int32_t>(id));
    model->longest_ = std::max(model->longest_, token.size());
  }
  const Json& given = Member(json, "lowest_score");
  if (given.is_number()) lowest = given.get<double>();
  model->unknown_score_ = model->Rounded(lowest - kUnknownPenalty);
  return model;
}

void UnigramModel::AddUnknown(std::string_view text, std::vector<int32_t>* out) const {
  if (!fallback_.empty()) {
    for (const char c : text) out->push_back(fallback_[static_cast<unsigned char>(c)]);
  } else if (unknown_ >= 0) {
    out->push_back(unknown_);
  }
}

void UnigramModel::Encode(std::string_view piece, Scratch* scratch,
                          std::vector<int32_t>* out) const {
  // best[i]: the best way to cut the first i bytes; only ends of characters are reached.
  std::vector<Scratch::Best>& best = scratch->best;
  constexpr double kUnreached = -std::numeric_limits<double>::infinity();
  best.assign(piece.size() + 1, {kUnreached, -1, -1});
  best[0] = {0, -1, -1};
  const auto offer = [&](size_t begin, size_t end, int32_t id, double score) {
    const double sum = best[begin].score + score;
    if (best[end].begin < 0 || sum > best[end].score) {
      best[end] = {Rounded(sum), id, static_cast<int32_t>(begin)};
    }
  };
  for (size_t begin = 0; begin < piece.size();) {
    const size_t character = CharacterAt(piece, begin).bytes;
    const size_t last = std::min(piece.size(), begin + longest_);
    bool single = false;
    for (size_t end = begin + 1; end <= last; ++end) {
      if (end < piece.size() && (piece[end] & 0xc0) == 0x80) continue;
      const auto found = ids_.find(piece.substr(begin, end - begin));
      if (found == ids_.end()) continue;
      offer(begin, end, found->second, scores_[static_cast<size_t>(found->second)]);
      single |= end == begin + character;
    }
    if (!single) offer(begin, begin + character, unknown_, unknown_score_);
    begin += character;
  }
  std::vector<std::pair<int32_t, std::string_view>> tokens;
  for (size_t end = piece.size(); end > 0;) {
    const auto begin = static_cast<size_t>(best[end].begin);
    const std::string_view text = piece.substr(begin, end - begin);
    const bool unknown = ids_.find(text) == ids_.end();
    if (unknown && !tokens.empty() && tokens.back().first == -1) {
      // Neighbouring unknown characters are one token.
      tokens.back().second = piece.substr(begin, text.size() + tokens.back().second.size());
    } else {
      tokens.emplace_back(unknown ? -1 : best[end].id, text);
    }
    end = begin;
  }
  for (auto token = tokens.rbegin(); token != tokens.rend(); ++token) {
    if (token->first >= 0) {
      out->push_back(token->first);
    } else {
      AddUnknown(token->second, out);
    }
  }
}

}  // namespace atl::tokenizer
