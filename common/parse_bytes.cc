#include "common/parse_bytes.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace atl {

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  absl::string_view digits = text;
  int shift = 0;
  for (const auto& [unit, bits] : {std::pair("KiB", 10), {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}) {
    if (shift == 0 && absl::ConsumeSuffix(&digits, unit)) shift = bits;
  }
  int64_t number = 0;
  if (!absl::SimpleAtoi(digits, &number) || number < 0 ||
      number > (std::numeric_limits<int64_t>::max() >> shift)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no number of bytes; write 4GiB, 512MiB or 65536"));
  }
  return number << shift;
}

}  // namespace atl
