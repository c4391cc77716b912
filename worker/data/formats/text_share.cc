#include "worker/data/formats/text_share.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/utf8.h"

namespace atl {
namespace {

constexpr size_t kCharacterBytesMax = 4;

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Control characters but those of layout and of terminals.
bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 && (byte < 7 || byte > 13) && byte != 0x1b;
}

}  // namespace

void TextShare::Add(std::string_view block, int64_t at) {
  bytes_ += std::ssize(block);
  size_t i = 0;
  while (at > 0 && i < std::min(block.size(), kCharacterBytesMax - 1) && IsContinuation(block[i])) {
    ++i;
  }
  while (i < block.size()) {
    const size_t bytes = CharacterBytes({block.data(), block.size()}, i);
    const auto first = static_cast<unsigned char>(block[i]);
    const bool may_be_cut = block.size() - i < kCharacterBytesMax && first >= 0xc2 &&
                            first < 0xf5 &&
                            std::all_of(block.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                        block.end(), IsContinuation);
    if (bytes == 0 && may_be_cut) return;
    if (bytes == 0 || (bytes == 1 && IsControl(block[i]))) {
      if (bad_++ == 0) first_bad_ = at + static_cast<int64_t>(i);
    }
    i += std::max<size_t>(bytes, 1);
  }
}

std::string TextShare::Text() const {
  const double share = 100 * static_cast<double>(bad_) / static_cast<double>(bytes_);
  return absl::StrFormat("%.*f%% of %d bytes are no UTF-8 text, the first at byte %d",
                         share < 1 ? 3 : 1, share, bytes_, first_bad_);
}

}  // namespace atl
