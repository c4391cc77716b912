// Remembers the tokens of pieces that were encoded lately: natural text repeats its words.

#ifndef ATOLL_COMMON_TOKENIZER_WORD_CACHE_H_
#define ATOLL_COMMON_TOKENIZER_WORD_CACHE_H_

#include <xxhash.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace atl::tokenizer {

// Bounded memory, about 2 MB: a piece has one place, and a newer one takes it. Longer pieces, and
// those of more tokens, are not kept. One thread at a time.
class WordCache {
 public:
  // Appends the piece's tokens, if they are known.
  bool Find(std::string_view piece, std::vector<int32_t>* out) {
    if (piece.size() > kMaxBytes) return false;
    const Entry& entry = GetSlot(piece);
    if (entry.bytes != piece.size() || entry.tokens == 0 ||
        std::memcmp(entry.text.data(), piece.data(), piece.size()) != 0) {
      return false;
    }
    out->insert(out->end(), entry.ids.begin(), entry.ids.begin() + entry.tokens);
    return true;
  }

  void Add(std::string_view piece, std::span<const int32_t> ids) {
    if (piece.size() > kMaxBytes || ids.empty() || ids.size() > kMaxTokens) return;
    Entry& entry = GetSlot(piece);
    entry.bytes = static_cast<uint8_t>(piece.size());
    entry.tokens = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.text.data(), piece.data(), piece.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr size_t kMaxBytes = 30, kMaxTokens = 8;
  static constexpr size_t kSlots = 1 << 15;
  struct Entry {
    uint8_t bytes = 0, tokens = 0;
    std::array<char, kMaxBytes> text;
    std::array<int32_t, kMaxTokens> ids;
  };

  Entry& GetSlot(std::string_view piece) {
    if (entries_.empty()) entries_.resize(kSlots);
    return entries_[XXH3_64bits(piece.data(), piece.size()) % kSlots];
  }

  std::vector<Entry> entries_;
};

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_WORD_CACHE_H_
