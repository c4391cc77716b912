#include "worker/data/digest_cache.h"

#include <xxhash.h>

#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/logging.h"

namespace atl {
namespace {

constexpr size_t kEntriesMax = 64;
constexpr int64_t kFileBytesMax = 1 << 20;
constexpr size_t kKeyBytesMax = 4096;
constexpr std::chrono::seconds kMinFileAge{2};  // coarser than any file system's times

// An entry on the disk: this, then its key. A checksum of all of them ends the file.
struct Fixed {
  FileIdentity identity;
  TokenFileContent content;
  uint64_t key_bytes;
};
static_assert(std::is_trivially_copyable_v<Fixed> &&
              sizeof(Fixed) == sizeof(FileIdentity) + sizeof(TokenFileContent) + 8);

// Neither it nor its name has changed lately, or ever will have by a clock that is ahead.
bool IsOldEnough(const FileIdentity& identity) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t by_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(now - kMinFileAge).count();
  return identity.modified_ns < by_ns && identity.changed_ns < by_ns;
}

}  // namespace

DigestCache::DigestCache(Files& files, std::string path) : files_(files), path_(std::move(path)) {
  Load();
}

std::optional<TokenFileContent> DigestCache::Find(const std::string& key,
                                                  const FileIdentity& identity) const {
  for (const Entry& entry : entries_) {
    if (entry.key == key && entry.identity == identity) return entry.content;
  }
  return std::nullopt;
}

void DigestCache::Store(const std::string& key, const FileIdentity& identity,
                        const TokenFileContent& content) {
  if (!IsOldEnough(identity) || key.size() > kKeyBytesMax) return;
  entries_.remove_if([&](const Entry& entry) { return entry.key == key; });
  entries_.push_front({key, identity, content});
  if (entries_.size() > kEntriesMax) entries_.pop_back();
  Save();
}

void DigestCache::Load() {
  const auto bytes = files_.Read(path_, kFileBytesMax);
  if (!bytes.ok() || bytes->size() < sizeof(uint64_t)) return;
  const size_t end = bytes->size() - sizeof(uint64_t);
  uint64_t checksum;
  std::memcpy(&checksum, bytes->data() + end, sizeof checksum);
  if (checksum != XXH3_64bits(bytes->data(), end)) return;
  for (size_t at = 0; end - at >= sizeof(Fixed) && entries_.size() < kEntriesMax;) {
    Fixed fixed;
    std::memcpy(&fixed, bytes->data() + at, sizeof fixed);
    at += sizeof fixed;
    if (fixed.key_bytes > end - at) return;
    const auto* key = reinterpret_cast<const char*>(bytes->data() + at);
    entries_.push_back({std::string(key, fixed.key_bytes), fixed.identity, fixed.content});
    at += fixed.key_bytes;
  }
}

void DigestCache::Save() const {
  std::string bytes;
  for (const Entry& entry : entries_) {
    const Fixed fixed{entry.identity, entry.content, entry.key.size()};
    bytes.append(reinterpret_cast<const char*>(&fixed), sizeof fixed);
    bytes += entry.key;
  }
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  const absl::Status saved = WriteFileAtomically(files_, path_, std::array{AsBytes(bytes)});
  if (!saved.ok()) LogWarning("data", "digests of data files are not kept: ", saved.message());
}

absl::StatusOr<TokenFileContent> GetTokenFileContent(const TokenFile& file,
                                                     const DataOptions& options) {
  if (options.digests != nullptr) {
    if (const auto known = options.digests->Find(file.Key(), file.identity())) return *known;
  }
  ATOLL_ASSIGN_OR_RETURN(const TokenFileContent content, file.Scan(options.watch));
  if (options.digests != nullptr) options.digests->Store(file.Key(), file.identity(), content);
  return content;
}

}  // namespace atl
