#include "worker/data/block_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "common/files.h"
#include "common/logging.h"
#include "common/parse_bytes.h"
#include "common/paths.h"
#include "common/status.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDefaultBytes = int64_t{10} << 30;
constexpr int64_t kCountEvery = 8;  // this share of the bound was stored
constexpr const char* kUnfinished = "new-";

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

uint64_t Checksum(std::span<const std::byte> block) {
  return XXH3_64bits(block.data(), block.size());
}

absl::Status WriteFile(const std::string& path, std::span<const std::byte> block) {
  const uint64_t checksum = Checksum(block);
  const ByteSpan parts[] = {block, std::as_bytes(std::span(&checksum, 1))};
  ATOLL_ASSIGN_OR_RETURN(const auto file, RealFiles().OpenAppend(path));
  ATOLL_RETURN_IF_ERROR(file->Truncate(0));
  return file->Append(parts);
}

}  // namespace

absl::StatusOr<int64_t> DataCacheBytes() {
  const std::string given = Variable("ATOLL_DATA_CACHE_BYTES");
  if (given.empty()) return kDefaultBytes;
  const auto bytes = ParseBytes(given);
  if (!bytes.ok()) return Annotate(bytes.status(), "ATOLL_DATA_CACHE_BYTES");
  return *bytes;
}

absl::StatusOr<BlockCache*> BlockCache::Get() {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int64_t>, std::unique_ptr<BlockCache>> caches;
  ATOLL_ASSIGN_OR_RETURN(const int64_t bytes_max, DataCacheBytes());
  const std::string folder = DataCacheFolder() + "/blocks";
  const std::lock_guard lock(mutex);
  auto& cache = caches[{folder, bytes_max}];
  if (cache == nullptr) cache = std::make_unique<BlockCache>(folder, bytes_max);
  return cache.get();
}

BlockCache::BlockCache(std::string folder, int64_t bytes_max)
    : folder_(std::move(folder)), bytes_max_(bytes_max) {}

std::string BlockCache::Path(const std::string& name) const { return folder_ + "/" + name; }

bool BlockCache::Has(const std::string& name) const {
  return access(Path(name).c_str(), R_OK) == 0;
}

bool BlockCache::Read(const std::string& name, std::span<std::byte> block) const {
  const auto file = InputFile::Open(Path(name));
  const auto bytes = static_cast<int64_t>(block.size());
  uint64_t checksum = 0;
  if (!file.ok() || file->bytes() != bytes + static_cast<int64_t>(sizeof checksum) ||
      !file->Read(0, block.data(), bytes).ok() ||
      !file->Read(bytes, &checksum, sizeof checksum).ok() || checksum != Checksum(block)) {
    return false;
  }
  utimensat(AT_FDCWD, Path(name).c_str(), nullptr, 0);  // it was read now
  return true;
}

void BlockCache::Store(const std::string& name, std::span<const std::byte> block) {
  const std::lock_guard lock(mutex_);
  const auto bytes = static_cast<int64_t>(block.size() + sizeof(uint64_t));
  if (bytes > bytes_max_) return;
  std::error_code error;
  if (!counted_) fs::create_directories(folder_, error);
  if (!counted_ || kept_ + bytes > bytes_max_ || since_ > bytes_max_ / kCountEvery) {
    MakeRoom(bytes);
  }
  kept_ += bytes;
  since_ += bytes;
  const std::string made =
      Path(absl::StrCat(kUnfinished, static_cast<int64_t>(getpid()), "-", next_++));
  absl::Status written = WriteFile(made, block);
  if (written.ok()) written = RealFiles().Rename(made, Path(name));
  if (written.ok()) return;
  LogWarning("data", "blocks of remote files are not kept: ", written.message());
  unlink(made.c_str());
}

// Where there is too little, more goes than has to: the folder is not listed for every block.
void BlockCache::MakeRoom(int64_t bytes) {
  struct Kept {
    int64_t read_ns;
    int64_t bytes;
    std::string path;
  };
  std::vector<Kept> blocks;
  int64_t found_bytes = 0;
  const auto names = RealFiles().List(folder_);
  absl::Status status = names.status();
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const auto found = FindPath(Path(name));
    status.Update(found.status());
    if (!found.ok() || !*found) continue;  // another process may have removed it
    const FileIdentity& identity = (*found)->identity;
    blocks.push_back({identity.modified_ns, identity.bytes, Path(name)});
    found_bytes += identity.bytes;
  }
  if (!status.ok()) {  // counted anew with the next block; nothing is removed by half a list
    LogWarning("data", "blocks of remote files cannot be counted: ", status.message());
    return;
  }
  kept_ = found_bytes;
  counted_ = true;
  since_ = 0;
  if (kept_ + bytes <= bytes_max_) return;
  std::sort(blocks.begin(), blocks.end(),
            [](const Kept& a, const Kept& b) { return a.read_ns < b.read_ns; });
  for (const Kept& old : blocks) {
    if (kept_ + bytes <= bytes_max_ - bytes_max_ / kCountEvery) return;
    if (unlink(old.path.c_str()) == 0) kept_ -= old.bytes;
  }
}

}  // namespace atl
