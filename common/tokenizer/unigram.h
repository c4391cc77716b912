// Unigram: of all ways to cut a piece into tokens the one whose scores (log probabilities) sum to
// the most.

#ifndef ATOLL_COMMON_TOKENIZER_UNIGRAM_H_
#define ATOLL_COMMON_TOKENIZER_UNIGRAM_H_

#include <memory>
#include <string>
#include <vector>

#include "common/tokenizer/model.h"

namespace atl::tokenizer {

class UnigramModel : public TokenModel {
 public:
  // Unlike the other models' vocabularies this one's is a list of tokens and scores. A token whose
  // score is null is not found in text.
  static absl::StatusOr<Vocabulary> ParseVocabulary(const Json& json, const std::string& where);

  static absl::StatusOr<std::unique_ptr<UnigramModel>> Parse(const Json& json,
                                                             const Vocabulary& vocabulary,
                                                             const std::string& where);

  void Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* out) const override;

 private:
  double Rounded(double score) const {
    return sums_are_floats_ ? static_cast<float>(score) : score;
  }
  void AddUnknown(std::string_view text, std::vector<int32_t>* out) const;

  TextIds ids_;
  std::vector<double> scores_;
  std::vector<int32_t> fallback_;  // "<0xXX>"; empty: no byte_fallback
  size_t longest_ = 0;             // bytes of a token
  int32_t unknown_ = -1;
  double unknown_score_ = 0;
  // Sums are kept in single precision, as SentencePiece keeps them: it decides between equal ones.
  bool sums_are_floats_ = false;
};

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_UNIGRAM_H_
