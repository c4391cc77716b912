#include "common/tokenizer/word_models.h"

#include <algorithm>
#include <utility>

namespace atl::tokenizer {
namespace {

class WordPiece : public TokenModel {
 public:
  WordPiece(std::shared_ptr<const Vocabulary> vocabulary, std::string prefix, int32_t unknown,
            int64_t max_characters)
      : vocabulary_(std::move(vocabulary)),
        prefix_(std::move(prefix)),
        unknown_(unknown),
        max_characters_(max_characters) {
    for (const std::string& token : vocabulary_->tokens()) {
      longest_ = std::max(longest_, token.size());
    }
  }

  void Encode(std::string_view piece, Scratch*, std::vector<int32_t>* out) const override {
    const auto characters =
        std::count_if(piece.begin(), piece.end(), [](char c) { return (c & 0xc0) != 0x80; });
    const size_t before = out->size();
    if (characters > max_characters_ || !EncodeWord(piece, out)) {
      out->resize(before);
      out->push_back(unknown_);
    }
  }

 private:
  // False: some part of the word begins with no token.
  bool EncodeWord(std::string_view word, std::vector<int32_t>* out) const {
    std::string candidate;
    for (size_t begin = 0; begin < word.size();) {
      const std::string_view start = begin > 0 ? std::string_view(prefix_) : std::string_view();
      size_t bytes = std::min(word.size() - begin, longest_);
      int32_t id = -1;
      for (; bytes > 0; --bytes) {
        const bool between = begin + bytes == word.size() || (word[begin + bytes] & 0xc0) != 0x80;
        if (!between) continue;
        candidate.assign(start);
        candidate.append(word, begin, bytes);
        id = vocabulary_->Find(candidate);
        if (id >= 0) break;
      }
      if (id < 0) return false;
      out->push_back(id);
      begin += bytes;
    }
    return true;
  }

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::string prefix_;
  int32_t unknown_;
  int64_t max_characters_;
  size_t longest_ = 0;
};

class WordLevel : public TokenModel {
 public:
  WordLevel(std::shared_ptr<const Vocabulary> vocabulary, int32_t unknown)
      : vocabulary_(std::move(vocabulary)), unknown_(unknown) {}
  void Encode(std::string_view piece, Scratch*, std::vector<int32_t>* out) const override {
    const int32_t id = vocabulary_->Find(piece);
    if (id >= 0 || unknown_ >= 0) out->push_back(id >= 0 ? id : unknown_);
  }

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  int32_t unknown_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenModel>> ParseWordPiece(
    const Json& json, std::shared_ptr<const Vocabulary> vocabulary, const std::string& where) {
  ATOLL_ASSIGN_OR_RETURN(const int32_t unknown, UnknownId(json, *vocabulary, where));
  if (unknown < 0) return Bad(absl::StrCat(where, ".unk_token"), "must be given");
  ATOLL_ASSIGN_OR_RETURN(std::string prefix,
                         StringField(json, "continuing_subword_prefix", where, "##"));
  ATOLL_ASSIGN_OR_RETURN(const int64_t most,
                         IntField(json, "max_input_chars_per_word", where, 100, 1, 1 << 20));
  return std::make_unique<WordPiece>(std::move(vocabulary), std::move(prefix), unknown, most);
}

absl::StatusOr<std::unique_ptr<TokenModel>> ParseWordLevel(
    const Json& json, std::shared_ptr<const Vocabulary> vocabulary, const std::string& where) {
  ATOLL_ASSIGN_OR_RETURN(const int32_t unknown, UnknownId(json, *vocabulary, where));
  return std::make_unique<WordLevel>(std::move(vocabulary), unknown);
}

}  // namespace atl::tokenizer
