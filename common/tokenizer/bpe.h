// Byte pair encoding: a piece begins as single characters (or bytes); the pair of neighbours that
// stands first in the list of merges is joined, until none is left.

#ifndef ATOLL_COMMON_TOKENIZER_BPE_H_
#define ATOLL_COMMON_TOKENIZER_BPE_H_

#include <memory>
#include <string>
#include <vector>

#include "common/tokenizer/model.h"

namespace atl::tokenizer {

class BpeModel : public TokenModel {
 public:
  // `bytes_are_symbols`: pieces are cut into bytes, whose tokens are spelt as byte_level.h says.
  static absl::StatusOr<std::unique_ptr<BpeModel>> Parse(const Json& json,
                                                         const Vocabulary& vocabulary,
                                                         bool bytes_are_symbols,
                                                         const std::string& where);

  void Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* out) const override;

 private:
  struct Merge {
    uint32_t rank;
    int32_t joined;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  const Merge* Find(int32_t left, int32_t right) const {
    const auto found = merges_.find(Key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  absl::Status ParseMerges(const Json& merges, const Vocabulary& vocabulary,
                           const std::string& where);
  absl::Status AddMerge(const std::string& left, const std::string& right, size_t rank,
                        const Vocabulary& vocabulary, const std::string& where);
  void BeginWithBytes(std::string_view piece, std::vector<Scratch::Symbol>* symbols) const;
  void BeginWithCharacters(std::string_view piece, std::vector<Scratch::Symbol>* symbols) const;
  void AddUnknown(size_t bytes, std::vector<Scratch::Symbol>* symbols) const;
  void MergeShort(std::vector<Scratch::Symbol>* symbols, Scratch* scratch) const;
  void MergeLong(std::vector<Scratch::Symbol>* symbols, Scratch* scratch) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;
  TextIds words_;                  // by the bytes that pieces have
  std::vector<int32_t> bytes_;     // symbol of each byte, -1: none
  std::vector<int32_t> fallback_;  // "<0xXX>"; empty: no byte_fallback
  std::string prefix_, suffix_;
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;  // a piece that is a token is that token
};

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_BPE_H_
