#include "common/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "common/check.h"
#include "common/tokenizer/views.h"
#include "common/utf8.h"

namespace atl::tokenizer {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Below this every character is its own composed form.
constexpr unsigned char kFirstByteOfMarks = 0xcc;

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// How many bytes at `at`, which start no character, decoders replace together: the beginning of a
// character that breaks off, or one byte.
size_t BrokenBytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const unsigned first = byte(0), second = byte(1);
  const auto continues = [](unsigned b) { return (b & 0xc0) == 0x80; };
  size_t whole = 1;
  bool second_fits = continues(second);
  if (first >= 0xe0 && first < 0xf0) {
    whole = 3;
    if (first == 0xe0) second_fits = second >= 0xa0 && second < 0xc0;
    if (first == 0xed) second_fits = second >= 0x80 && second < 0xa0;
  } else if (first >= 0xf0 && first < 0xf5) {
    whole = 4;
    if (first == 0xf0) second_fits = second >= 0x90 && second < 0xc0;
    if (first == 0xf4) second_fits = second >= 0x80 && second < 0x90;
  }
  if (whole == 1 || !second_fits) return 1;
  return whole == 4 && continues(byte(2)) ? 3 : 2;
}

utf8proc_category_t Category(int32_t code) { return utf8proc_category(code); }

bool InRange(utf8proc_category_t category, utf8proc_category_t first, utf8proc_category_t last) {
  return category >= first && category <= last;
}

}  // namespace

Character CharacterAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<int32_t>(text[at + i]) & 0x3f; };
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {((first & 0x1f) << 6) | byte(1), 2};
  if (first < 0xf0) return {((first & 0x0f) << 12) | (byte(1) << 6) | byte(2), 3};
  return {((first & 0x07) << 18) | (byte(1) << 12) | (byte(2) << 6) | byte(3), 4};
}

size_t LastCharacterBytes(std::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && (text[text.size() - bytes] & 0xc0) == 0x80) ++bytes;
  return bytes;
}

void AppendCharacter(int32_t code, std::string* out) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(code, bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

bool IsWellFormed(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const size_t bytes = CharacterBytes(View(text), i);
    if (bytes == 0) return false;
    i += bytes;
  }
  return true;
}

std::string Repaired(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = CharacterBytes(View(text), i);
    if (bytes > 0) {
      result.append(text, i, bytes);
      i += bytes;
    } else {
      result += kReplacement;
      i += std::min(BrokenBytes(text, i), text.size() - i);
    }
  }
  return result;
}

bool IsWhiteSpace(int32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool IsPunctuation(int32_t code) {
  return InRange(Category(code), UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool IsNumber(int32_t code) {
  return InRange(Category(code), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool IsWordCharacter(int32_t code) {
  const utf8proc_category_t category = Category(code);
  return InRange(category, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_NO) ||
         category == UTF8PROC_CATEGORY_PC;
}

bool IsNonspacingMark(int32_t code) { return Category(code) == UTF8PROC_CATEGORY_MN; }

bool IsMark(int32_t code) {
  return InRange(Category(code), UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);
}

bool IsOther(int32_t code) {
  return InRange(Category(code), UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO);
}

bool IsAsciiPunctuation(int32_t code) {
  return (code >= 33 && code <= 47) || (code >= 58 && code <= 64) || (code >= 91 && code <= 96) ||
         (code >= 123 && code <= 126);
}

std::string Normalized(std::string_view text, Form form) {
  const bool unchanged =
      form == Form::kNfc
          ? std::all_of(text.begin(), text.end(),
                        [](char c) { return static_cast<unsigned char>(c) < kFirstByteOfMarks; })
          : IsAscii(text);
  if (unchanged) return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == Form::kNfc || form == Form::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::kNfkc || form == Form::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                  static_cast<utf8proc_option_t>(options));
  ATOLL_CHECK(bytes >= 0);  // well-formed text always has a normalization
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(mapped, std::free);
  return std::string(reinterpret_cast<const char*>(mapped), static_cast<size_t>(bytes));
}

std::string Lowercased(std::string_view text) {
  constexpr int32_t kDottedI = 0x130;  // the one character whose lower case is two
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Character c = CharacterAt(text, i);
    i += c.bytes;
    if (c.code < 0x80) {
      result += static_cast<char>(c.code >= 'A' && c.code <= 'Z' ? c.code + 32 : c.code);
    } else if (c.code == kDottedI) {
      result += "i\xcc\x87";
    } else {
      AppendCharacter(utf8proc_tolower(c.code), &result);
    }
  }
  return result;
}

size_t GraphemeBytes(std::string_view text, size_t at) {
  Character before = CharacterAt(text, at);
  size_t end = at + before.bytes;
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    const Character next = CharacterAt(text, end);
    if (utf8proc_grapheme_break_stateful(before.code, next.code, &state)) break;
    end += next.bytes;
    before = next;
  }
  return end - at;
}

}  // namespace atl::tokenizer
