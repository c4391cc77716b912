// Where decoders that read files find their input.

#ifndef ATOLL_TESTS_FUZZ_SCRATCH_H_
#define ATOLL_TESTS_FUZZ_SCRATCH_H_

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/testing/files_simulated.h"

namespace atl::fuzz {

// Files of this process, in memory where that is possible.
class Scratch {
 public:
  Scratch() {
    const char* const given = std::getenv("TEST_TMPDIR");
    const std::filesystem::path base = given != nullptr ? given : "/dev/shm";
    folder_ = base / ("atoll-fuzz-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~Scratch() { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, std::string_view bytes) const {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
    return path;
  }
  std::string folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

inline const Scratch& Folder() {
  static const Scratch scratch;
  return scratch;
}

inline std::span<const std::byte> AsSpan(std::string_view bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

inline std::string AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void PutFile(SimulatedFiles& disk, const std::string& path, std::string_view bytes) {
  const auto file = disk.OpenAppend(path);
  ATOLL_CHECK(file.ok(), path);
  ATOLL_CHECK((*file)->Append(std::array{AsSpan(bytes)}).ok(), path);
  ATOLL_CHECK((*file)->Sync().ok(), path);
}

}  // namespace atl::fuzz

#endif  // ATOLL_TESTS_FUZZ_SCRATCH_H_
