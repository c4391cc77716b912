// Characters of UTF-8 text, as the tokenizers need them: Unicode's general categories, White_Space,
// normalization forms, lower case, grapheme clusters. utf8proc has the tables.

#ifndef ATOLL_COMMON_TOKENIZER_UNICODE_H_
#define ATOLL_COMMON_TOKENIZER_UNICODE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace atl::tokenizer {

// The character at `at` of well-formed UTF-8. REQUIRES: at < text.size(), at a character's start.
struct Character {
  int32_t code;
  uint32_t bytes;
};
Character CharacterAt(std::string_view text, size_t at);

// The bytes of the last character. REQUIRES: well-formed and not empty.
size_t LastCharacterBytes(std::string_view text);

void AppendCharacter(int32_t code, std::string* out);

// Returns whether all of the text is well-formed UTF-8.
bool IsWellFormed(std::string_view text);

// Returns the text with U+FFFD for each maximal part that is not well-formed (WHATWG's and Rust's
// lossy decoding).
std::string Repaired(std::string_view text);

bool IsWhiteSpace(int32_t code);        // the property White_Space
bool IsPunctuation(int32_t code);       // categories P*
bool IsNumber(int32_t code);            // categories N*
bool IsWordCharacter(int32_t code);     // categories L*, M*, N*, Pc
bool IsNonspacingMark(int32_t code);    // category Mn
bool IsMark(int32_t code);              // categories M*
bool IsOther(int32_t code);             // categories Cc, Cf, Co, Cs
bool IsAsciiPunctuation(int32_t code);  // punctuation and symbols of ASCII

enum class Form : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// REQUIRES: well-formed.
std::string Normalized(std::string_view text, Form form);
std::string Lowercased(std::string_view text);

// Bytes of the grapheme cluster at `at`. REQUIRES: well-formed, at < text.size().
size_t GraphemeBytes(std::string_view text, size_t at);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_UNICODE_H_
