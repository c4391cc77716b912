// Text that may come from anywhere, as protobuf's strings have to be: one that is not well-formed
// UTF-8 can be written but never read again.

#ifndef ATOLL_COMMON_UTF8_H_
#define ATOLL_COMMON_UTF8_H_

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace atl {

// Returns how many bytes of `text` at `begin` are one well-formed character (RFC 3629); 0: none.
inline size_t CharacterBytes(absl::string_view text, size_t begin) {
  const auto at = [&](size_t i) -> unsigned {
    return begin + i < text.size() ? static_cast<unsigned char>(text[begin + i]) : 0;
  };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xc2 && first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (first < 0xc2 || bytes == 0) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than needed, halves of UTF-16, beyond Unicode.
  if ((first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) >= 0xa0)) return 0;
  if ((first == 0xf0 && at(1) < 0x90) || (first == 0xf4 && at(1) >= 0x90)) return 0;
  return bytes;
}

// At most `limit_bytes` of it, cut between characters, with a '?' for each byte that is of none.
inline std::string WellFormed(absl::string_view text, size_t limit_bytes) {
  const bool plain = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (plain) return std::string(text.substr(0, limit_bytes));  // almost always
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = CharacterBytes(text, i);
    if (result.size() + (bytes == 0 ? 1 : bytes) > limit_bytes) break;
    if (bytes == 0) {
      result += '?';
      ++i;
    } else {
      result.append(text.data() + i, bytes);
      i += bytes;
    }
  }
  return result;
}

}  // namespace atl

#endif  // ATOLL_COMMON_UTF8_H_
