// Human-readable sizes.

#ifndef ATOLL_COMMON_BYTES_TEXT_H_
#define ATOLL_COMMON_BYTES_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace atl {

// "312 B", "1.5 KiB", "312.0 MiB", "23.14 GiB", "7.50 TiB".
inline std::string BytesText(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value < 1024) return absl::StrCat(bytes, " B");
  if (value < 1024.0 * 1024) return absl::StrFormat("%.1f KiB", value / 1024);
  if (value < 1024.0 * 1024 * 1024) return absl::StrFormat("%.1f MiB", value / 1024 / 1024);
  if (value < 1024.0 * 1024 * 1024 * 1024) {
    return absl::StrFormat("%.2f GiB", value / 1024 / 1024 / 1024);
  }
  return absl::StrFormat("%.2f TiB", value / 1024 / 1024 / 1024 / 1024);
}

}  // namespace atl

#endif  // ATOLL_COMMON_BYTES_TEXT_H_
