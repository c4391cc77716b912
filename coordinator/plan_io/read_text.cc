#include "coordinator/plan_io/read_text.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace atl {

absl::StatusOr<std::string> ReadText(std::istream& file, const std::string& path,
                                     int64_t most_bytes) {
  std::string text;
  char block[1 << 16];
  while (file.read(block, sizeof(block)) || file.gcount() > 0) {
    text.append(block, static_cast<size_t>(file.gcount()));
    if (static_cast<int64_t>(text.size()) > most_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": larger than ", most_bytes, " bytes; that is too much"));
    }
  }
  if (!file.bad()) return text;
  return absl::InvalidArgumentError(absl::StrCat(path, ": is not a file that can be read"));
}

absl::StatusOr<std::string> ReadText(const std::string& path, int64_t most_bytes) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a folder, not a file"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return absl::NotFoundError(absl::StrCat(path, ": cannot open: ", std::strerror(errno)));
  return ReadText(file, path, most_bytes);
}

}  // namespace atl
