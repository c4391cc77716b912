// Text to tokens and back, as Hugging Face's tokenizer.json or SentencePiece's .model says.
//
//   ATOLL_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer("llama/tokenizer.json"));
//   Encoder encoder(*tokenizer);  // one a thread
//   ATOLL_RETURN_IF_ERROR(encoder.Encode("some text", &ids));
//
// Files are untrusted: whatever is in them, the answer is a tokenizer or one error that names file
// and field.

#ifndef ATOLL_COMMON_TOKENIZER_TOKENIZER_H_
#define ATOLL_COMMON_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/model.h"
#include "common/tokenizer/tokenizer_config.h"
#include "common/tokenizer/word_cache.h"

namespace atl {

// A text longer than this is refused: cut it into documents or lines.
inline constexpr size_t kMaxTextBytes = size_t{256} << 20;

struct EncodeScratch {
  tokenizer::Scratch model;
  tokenizer::WordCache words;
};

// The place where a text spells a special token.
struct SpecialTokenPlace {
  size_t begin = 0, bytes = 0;
  bool takes_spaces_before = false;  // the token has the white space before it, too
};

// Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // One more than the largest id.
  virtual int64_t vocabulary() const = 0;

  // Returns a digest of the file's bytes: equal for the same tokenizer on two machines.
  virtual uint64_t digest() const = 0;

  // The id of a token, special ones included.
  virtual std::optional<int32_t> TokenId(std::string_view token) const = 0;

  // The tokens that the file puts before and after a text (BERT's [CLS], Llama's <s>).
  virtual std::span<const int32_t> before() const = 0;
  virtual std::span<const int32_t> after() const = 0;

  // Finds special tokens in order. REQUIRES: well-formed UTF-8.
  virtual std::vector<SpecialTokenPlace> FindSpecialTokens(std::string_view text) const = 0;

  // Returns a warning of what transformers does otherwise than tokenizer.json says; "": nothing.
  virtual const std::string& warning() const = 0;

  // Text of tokens, special ones left out where `skip_special`. Ids that are no token add nothing.
  virtual absl::StatusOr<std::string> Decode(std::span<const int32_t> ids,
                                             bool skip_special) const = 0;

 private:
  friend class Encoder;
  // Appends the tokens of well-formed text, without before() and after(). `continues`: as of
  // Encoder::Encode.
  virtual absl::Status Append(std::string_view text, bool continues, EncodeScratch* scratch,
                              std::vector<int32_t>* out) const = 0;
};

// `path`: a tokenizer.json, a folder that holds tokenizer.json or tokenizer.model, or a
// SentencePiece .model. The tokens around a text are those of transformers, which follows
// add_bos_token and add_eos_token of the tokenizer_config.json beside it in some classes.
absl::StatusOr<std::unique_ptr<const Tokenizer>> OpenTokenizer(const std::string& path);

// The same for a tokenizer.json in memory; `name` stands in messages.
// `digest`: of the file that the text was made from; nullopt: the text's own. `config`: of what
// lies beside it.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseTokenizerJson(
    std::string_view text, const std::string& name, std::optional<uint64_t> digest = std::nullopt,
    const TokenizerConfig& config = {});

// The same for a SentencePiece model in memory.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseSentencePiece(
    const std::string& model, const std::string& name, const TokenizerConfig& config = {});

// Encodes texts one after the other. One thread at a time; the tokenizer must outlive it.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Appends the text's tokens. Bytes that are not UTF-8 count as U+FFFD. `continues`: the text is a
  // later part of one that was cut behind a line end or before a space, so that the tokenizer puts
  // no space in front of it, unless it removes the white space at the cut.
  absl::Status Encode(std::string_view text, std::vector<int32_t>* out, bool continues = false);

  // Encodes a text with the tokens before and after it.
  absl::Status EncodeFramed(std::string_view text, std::vector<int32_t>* out);

 private:
  const Tokenizer& tokenizer_;
  EncodeScratch scratch_;
};

// The token that ends a document for the tokenizer at `path`: what tokenizer_config.json next to it
// names as "eos_token"; without one, the first of the usual names that is a token.
absl::StatusOr<std::optional<int32_t>> EndOfText(const Tokenizer& tokenizer,
                                                 const std::string& path);

}  // namespace atl

#endif  // ATOLL_COMMON_TOKENIZER_TOKENIZER_H_
