#include "worker/data/token_cache.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

constexpr char kWhole[] = "tokens-", kUnfinished[] = "making-";
// What its maker has not finished by then it never will.
constexpr auto kAbandoned = std::chrono::hours(48);

int64_t BytesIn(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const uintmax_t size = entry.file_size(error);
    if (!error) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

}  // namespace

TokenCache::TokenCache(std::string folder, int64_t bytes_max)
    : folder_(std::move(folder)), bytes_max_(bytes_max) {}

absl::StatusOr<std::string> TokenCache::GetOrMake(
    uint64_t key, const std::function<absl::Status(const std::string&)>& make) {
  const fs::path whole = fs::path(folder_) / absl::StrFormat("%s%016x", kWhole, key);
  std::error_code error;
  if (fs::exists(whole / kCacheIndexName, error)) {
    fs::last_write_time(whole / kCacheIndexName, fs::file_time_type::clock::now(), error);
    return whole.string();
  }
  // Made beside and renamed: several workers of this machine may come here at once.
  fs::create_directories(folder_, error);
  std::string made = (fs::path(folder_) / absl::StrCat(kUnfinished, "XXXXXX")).string();
  if (mkdtemp(made.data()) == nullptr) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("data cache ", folder_, " (set ATOLL_DATA_CACHE to another folder)"));
  }
  MakeRoom(whole.string());
  const absl::Status status = make(made);
  if (status.ok()) fs::rename(made, whole, error);
  if (!status.ok() || error) fs::remove_all(made, error);
  ATOLL_RETURN_IF_ERROR(status);
  MakeRoom(whole.string());
  return whole.string();  // ours, or that of a worker that was faster
}

void TokenCache::MakeRoom(const std::string& used) const {
  struct Kept {
    fs::file_time_type used;
    int64_t bytes;
    fs::path path;
  };
  std::vector<Kept> kept;
  int64_t bytes = 0;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, kUnfinished)) {
      const auto written = entry.last_write_time(error);
      if (!error && now - written > kAbandoned) fs::remove_all(entry.path(), error);
    }
    if (!absl::StartsWith(name, kWhole) || entry.path() == used) continue;
    const auto at = fs::last_write_time(entry.path() / kCacheIndexName, error);
    kept.push_back({error ? fs::file_time_type::min() : at, BytesIn(entry.path()), entry.path()});
    bytes += kept.back().bytes;
  }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.used < b.used; });
  for (const Kept& old : kept) {
    if (bytes <= bytes_max_) return;
    fs::remove_all(old.path, error);
    bytes -= old.bytes;
  }
}

}  // namespace atl
