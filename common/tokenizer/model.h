// Turns a piece of text into tokens: "model" of tokenizer.json. bpe.h, word_models.h and unigram.h
// have the kinds.

#ifndef ATOLL_COMMON_TOKENIZER_MODEL_H_
#define ATOLL_COMMON_TOKENIZER_MODEL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/json_fields.h"
#include "common/tokenizer/views.h"

namespace atl::tokenizer {

// Ids are below this, and at most so many of them are of no token: together these bound what a
// hostile file can take.
inline constexpr int64_t kMaxIds = 1 << 24;
inline constexpr int64_t kUnusedIdsMax = 1 << 17;

// Tokens by id and ids by token. Ids may have gaps.
class Vocabulary {
 public:
  // {"token": id, ...}, or [["token", id], ...]. Refused: ids out of range or given twice.
  static absl::StatusOr<Vocabulary> Parse(const Json& json, const std::string& where);

  // Announces how many more tokens may be added.
  void Expect(size_t tokens) { expected_ = static_cast<int64_t>(ids_.size() + tokens); }
  absl::Status Add(std::string token, int64_t id, const std::string& where);

  // -1: there is no such token.
  int32_t Find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  const std::vector<std::string>& tokens() const { return tokens_; }  // by id; "" where none
  std::vector<std::string>& mutable_tokens() { return tokens_; }

 private:
  std::vector<std::string> tokens_;
  TextIds ids_;
  int64_t expected_ = 0;  // tokens in all
};

// Memory that a thread needs to encode, kept from piece to piece.
struct Scratch {
  struct Symbol {
    int32_t id, previous, next;
    uint32_t bytes;
  };
  struct Candidate {
    uint32_t rank;
    int32_t at, left, right, joined;
    bool operator<(const Candidate& other) const {  // the top of a heap is the largest
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  struct Best {
    double score;
    int32_t id, begin;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::vector<Best> best;
};

// Thread-safe.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the tokens of a piece. A piece that is not empty may have none. REQUIRES: well-formed.
  virtual void Encode(std::string_view piece, Scratch* scratch,
                      std::vector<int32_t>* out) const = 0;
};

// The id of "unk_token"; -1: there is none.
absl::StatusOr<int32_t> UnknownId(const Json& json, const Vocabulary& vocabulary,
                                  const std::string& where);

// The ids of "<0x00>" to "<0xFF>"; empty: one is missing.
std::vector<int32_t> ByteTokens(const Vocabulary& vocabulary);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_MODEL_H_
