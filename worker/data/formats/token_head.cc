#include "worker/data/formats/token_head.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/file_kind.h"
#include "common/status.h"
#include "worker/data/formats/text_share.h"

namespace atl {
namespace {

constexpr int64_t kHeaderNumbers = 256;
constexpr int64_t kHeaderBytes = 4 * kHeaderNumbers;
constexpr size_t kTextBytesMin = 64;  // fewer could be numbers

// A magic number and version of llm.c (and of modded-nanogpt), and the width of tokens.
struct Layout {
  int32_t magic, version;
  int64_t token_bytes;
};
constexpr Layout kLayouts[] = {{20240520, 1, 2}, {20240801, 7, 4}};

// Its files that hold no tokens.
struct OtherFile {
  int32_t magic;
  const char* what;
};
constexpr OtherFile kOtherFiles[] = {{20240326, "a model checkpoint"},
                                     {20240327, "a debugging state"},
                                     {20240328, "a tokenizer"},
                                     {20240522, "evaluation data (HellaSwag)"},
                                     {20240527, "a training state"}};

using Header = std::array<int32_t, kHeaderNumbers>;

absl::Status Bad(absl::string_view problem) { return absl::InvalidArgumentError(problem); }

absl::StatusOr<TokenHead> ReadHeader(const Header& header, int64_t file_bytes) {
  const int64_t rest = file_bytes - kHeaderBytes, tokens = header[2];
  for (const Layout& layout : kLayouts) {
    if (layout.magic != header[0] || layout.version != header[1]) continue;
    if (tokens >= 0 && rest == layout.token_bytes * tokens) {
      return TokenHead{kHeaderBytes, layout.token_bytes};
    }
    return Bad(absl::StrCat("its header says ", tokens, " tokens of ", 8 * layout.token_bytes,
                            " bits, its size of ", file_bytes, " bytes says ",
                            rest / layout.token_bytes,
                            rest < layout.token_bytes * tokens ? ": the file was cut off" : ""));
  }
  // The size says what the tokens of another version are.
  for (const int64_t token_bytes : {2, 4}) {
    if (tokens > 0 && rest == token_bytes * tokens) return TokenHead{kHeaderBytes, token_bytes};
  }
  return Bad(absl::StrCat("its header of llm.c has version ", header[1], ", and ", tokens,
                          " tokens, which its size of ", file_bytes, " bytes does not fit"));
}

// A shard of MosaicML's streaming or of litdata: the number of samples, then where each begins and
// the last one ends, which is where the file does.
bool IsIndexedShard(std::string_view head, int64_t file_bytes) {
  const auto number = [&](uint64_t i) {
    uint32_t value = 0;
    std::memcpy(&value, head.data() + 4 * i, sizeof value);
    return value;
  };
  const uint64_t numbers = head.size() / 4;
  if (numbers < 3 || number(0) == 0 || number(1) != 4 * (uint64_t{number(0)} + 2)) return false;
  const uint64_t last = uint64_t{number(0)} + 1;
  if (last < numbers && number(last) != file_bytes) return false;
  for (uint64_t i = 2; i <= std::min(last, numbers - 1); ++i) {
    if (number(i) < number(i - 1) || number(i) > file_bytes) return false;
  }
  return true;
}

// Returns whether the beginning looks like a header of a magic number and some counts: 256 numbers,
// nearly all of them zero, of which the first is a date, or one counts what follows.
bool LooksLikeHeader(const Header& header, int64_t file_bytes) {
  const auto behind = header.begin() + 16;
  if (header[0] == 0 || std::any_of(behind, header.end(), [](int32_t n) { return n != 0; })) {
    return false;
  }
  const bool is_date = header[0] >= 20200101 && header[0] <= 20391231;
  return is_date || std::any_of(header.begin(), behind, [&](int32_t count) {
           const int64_t rest = file_bytes - kHeaderBytes;
           return count > 0 && (rest == count || rest == int64_t{2} * count ||
                                rest == int64_t{4} * count || rest == int64_t{8} * count);
         });
}

}  // namespace

absl::StatusOr<TokenHead> ParseTokenHead(std::string_view head, int64_t file_bytes) {
  const FoundKind found = DetectFileKind(head);
  // Bytes as tokens of 16 bits look like text of that width.
  if (found.kind != FileKind::kUnknown && found.kind != FileKind::kWideText) {
    return WrongKindError("", found, "tokens");
  }
  TextShare share;
  share.Add(head, 0);
  if (head.size() >= kTextBytesMin && share.bad() == 0) {
    return Bad("is text, not tokens: set data.format = \"text\" or \"jsonl\"");
  }
  if (IsIndexedShard(head, file_bytes)) {
    return Bad(
        "is a shard of MosaicML's streaming or of litdata, not tokens: write the tokens alone");
  }
  Header header{};
  std::memcpy(header.data(), head.data(), std::min<size_t>(head.size(), sizeof header));
  const auto is = [&](int32_t magic) { return header[0] == magic; };
  for (const OtherFile& other : kOtherFiles) {
    if (is(other.magic) && header[1] >= 0 && header[1] < 100) {
      return Bad(absl::StrCat("is ", other.what, " of llm.c, not tokens"));
    }
  }
  for (const Layout& layout : kLayouts) {
    const bool swapped = is(static_cast<int32_t>(__builtin_bswap32(layout.magic)));
    if (!is(layout.magic) && !swapped) continue;
    if (swapped) return Bad("has a header of llm.c in big-endian order; write it little-endian");
    if (file_bytes < kHeaderBytes) return Bad("is cut off in its header of llm.c");
    return ReadHeader(header, file_bytes);
  }
  if (file_bytes > kHeaderBytes && LooksLikeHeader(header, file_bytes)) {
    return Bad(absl::StrCat("begins as a header of 1024 bytes does, whose first number ", header[0],
                            " is of no known kind; write the tokens alone"));
  }
  return TokenHead{};
}

absl::Status CheckTokenWidth(std::span<const int32_t> tokens, int64_t token_bytes) {
  constexpr size_t kTokensMin = 128;
  // Numbers below 2^18 have an upper half below 4 in 32 bits, and of 0 in 64 bits.
  const int32_t upper_max = token_bytes == 2 ? 3 : 0;
  if (tokens.size() < kTokensMin || token_bytes > 4) return absl::OkStatus();
  const size_t pairs = tokens.size() / 2;
  size_t large = 0, upper_large = 0, upper_real = 0, lower_real = 0;
  for (size_t i = 0; i + 1 < tokens.size(); i += 2) {
    const int32_t lower = tokens[i], upper = tokens[i + 1];
    if (lower > upper_max) ++large;
    if (upper > upper_max) ++upper_large;
    // Whole numbers up to 2^17 as floats or doubles: their upper 16 bits.
    const auto is_real = [](int32_t half) { return half >= 0x3f80 && half < 0x4800; };
    if (is_real(upper)) ++upper_real;
    if (is_real(lower)) ++lower_real;
  }
  if (token_bytes == 2 && upper_real * 3 > pairs && upper_real == upper_large &&
      lower_real * 2 < upper_real) {
    return Bad(
        "every second number is the upper half of a number with a fraction (float32 or "
        "float64): write whole numbers: numpy's astype('uint32')");
  }
  if (upper_large > 0 || large * 4 < pairs) return absl::OkStatus();
  return Bad(absl::StrCat("every second number of ", 8 * token_bytes, " bits is ",
                          upper_max == 0 ? "0" : "from 0 to 3", ": are these numbers of ",
                          16 * token_bytes, " bits?",
                          token_bytes == 2 ? " data.format = \"tokens32\"" : ""));
}

}  // namespace atl
