// Writes a command's output file.

#ifndef ATOLL_CLI_WRITE_FILE_H_
#define ATOLL_CLI_WRITE_FILE_H_

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "common/status.h"

namespace atl::cli {

inline absl::Status WriteFile(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be written", errno == 0 ? "" : ": ",
                                               errno == 0 ? "" : std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace atl::cli

#endif  // ATOLL_CLI_WRITE_FILE_H_
