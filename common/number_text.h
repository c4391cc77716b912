// Human-readable numbers and times: never a power of ten.

#ifndef ATOLL_COMMON_NUMBER_TEXT_H_
#define ATOLL_COMMON_NUMBER_TEXT_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace atl {

// Up to so many significant digits: "0.00123", "12.5", "123456".
inline std::string NumberText(double value, int digits = 4) {
  if (!std::isfinite(value) || value == 0) return absl::StrFormat("%g", value);
  const int magnitude = static_cast<int>(std::floor(std::log10(std::abs(value))));
  const int decimals = std::clamp(digits - 1 - magnitude, 0, 15);
  std::string text = absl::StrFormat("%.*f", decimals, value);
  if (decimals == 0) return text;
  text.resize(text.find_last_not_of('0') + 1);
  return std::string(absl::StripSuffix(text, "."));
}

// "32 us", "4.21 ms", "1.3 s", "4 min 10 s", "3 h 5 min", "12 d 4 h".
inline std::string SecondsText(double seconds) {
  if (!(seconds >= 1e-9) || !std::isfinite(seconds)) return NumberText(seconds) + " s";
  if (seconds < 1e-3) return NumberText(1e6 * seconds) + " us";
  if (seconds < 1) return NumberText(1e3 * seconds) + " ms";
  if (seconds < 120) return NumberText(seconds) + " s";
  if (seconds >= 1e15) return NumberText(seconds / 86400) + " d";
  const int64_t s = std::llround(seconds);
  if (s < 7200) return absl::StrCat(s / 60, " min ", s % 60, " s");
  if (s < 172'800) return absl::StrCat(s / 3600, " h ", s % 3600 / 60, " min");
  return absl::StrCat(s / 86400, " d ", s % 86400 / 3600, " h");
}

}  // namespace atl

#endif  // ATOLL_COMMON_NUMBER_TEXT_H_
