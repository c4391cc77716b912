#include "worker/data/data_file.h"

#include <curl/curl.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/object_store/hub.h"
#include "common/status.h"
#include "worker/data/block_cache.h"

namespace atl {
namespace {

// Sequences are read in shuffled order, a few kilobytes at a time: larger blocks would fetch what
// no lease needs, smaller ones wait longer for the network than for their bytes.
constexpr int64_t kBlockBytes = 64 << 10;
// A sequential reader gets twice as many blocks with each request, up to so many.
constexpr int64_t kBlocksMax = 64;
constexpr int64_t kPrefetchBlocksMax = 4096;
constexpr size_t kRequestsAtOnce = 8;
constexpr int64_t kObjectsMax = 1 << 20;

class LocalFile : public DataFile {
 public:
  explicit LocalFile(InputFile file) : file_(std::move(file)) {}
  const std::string& path() const override { return file_.path(); }
  const FileIdentity& identity() const override { return file_.identity(); }
  std::optional<uint64_t> tag() const override { return std::nullopt; }
  absl::Status Read(int64_t offset, void* out, int64_t bytes, const Cancelled&) const override {
    return Annotate(file_.Read(offset, out, bytes), "data file");
  }
  absl::Status Prefetch(std::span<const ByteRange>, const Cancelled&) const override {
    return absl::OkStatus();  // the system's cache has what is read often
  }

 private:
  InputFile file_;
};

class RemoteFile : public DataFile {
 public:
  // The first Read fetches up to `first_blocks` with one request.
  RemoteFile(std::string path, std::shared_ptr<ObjectStore> store, ObjectInfo info,
             BlockCache* cache, int64_t first_blocks = 1)
      : path_(std::move(path)), store_(std::move(store)), info_(std::move(info)), cache_(cache) {
    if (first_blocks > 1) next_block_ = 0;
    at_once_ = first_blocks;
    const std::string content = absl::StrCat(info_.bytes, "\n", info_.tag);
    const std::string name = absl::StrCat(path_, "\n", content);
    tag_ = XXH3_64bits(content.data(), content.size());
    name_ = XXH3_64bits(name.data(), name.size());
    identity_.inode = tag_;
    identity_.bytes = info_.bytes;
    if (info_.exact_tag) return;
    const int64_t seconds = curl_getdate(info_.tag.c_str(), nullptr);
    identity_.modified_ns = seconds < 0 ? INT64_MAX : seconds * 1'000'000'000;
  }
  const std::string& path() const override { return path_; }
  const FileIdentity& identity() const override { return identity_; }
  std::optional<uint64_t> tag() const override {
    return info_.exact_tag ? std::optional(tag_) : std::nullopt;
  }

  absl::Status Read(int64_t offset, void* out, int64_t bytes,
                    const Cancelled& cancelled) const override {
    if (offset < 0 || bytes > info_.bytes - offset) {
      return absl::DataLossError(absl::StrCat("data file ", path_, ": ends at byte ", info_.bytes,
                                              " of ", offset + bytes));
    }
    auto* to = static_cast<std::byte*>(out);
    while (bytes > 0) {
      const int64_t block = offset / kBlockBytes, inside = offset % kBlockBytes;
      const int64_t count = std::min(bytes, BlockBytes(block) - inside);
      ATOLL_RETURN_IF_ERROR(ReadBlock(block, inside, {to, static_cast<size_t>(count)}, cancelled));
      to += count;
      offset += count;
      bytes -= count;
    }
    return absl::OkStatus();
  }

  absl::Status Prefetch(std::span<const ByteRange> ranges,
                        const Cancelled& cancelled) const override;

 private:
  int64_t BlockBytes(int64_t block) const {
    return std::min(kBlockBytes, info_.bytes - block * kBlockBytes);
  }
  std::string BlockName(int64_t block) const { return absl::StrFormat("%016x-%d", name_, block); }

  // Blocks [begin, end), from the server; they are kept in the cache.
  absl::StatusOr<std::vector<std::byte>> Fetch(int64_t begin, int64_t end,
                                               const Cancelled& cancelled) const {
    std::vector<std::byte> bytes(
        static_cast<size_t>(std::min(end * kBlockBytes, info_.bytes) - begin * kBlockBytes));
    ATOLL_RETURN_IF_ERROR(Annotate(
        store_->Read(info_.name, begin * kBlockBytes, bytes, {cancelled, info_.tag}), "data file"));
    for (int64_t block = begin; block < end; ++block) {
      cache_->Store(BlockName(block),
                    std::span(bytes).subspan(static_cast<size_t>((block - begin) * kBlockBytes),
                                             static_cast<size_t>(BlockBytes(block))));
    }
    return bytes;
  }

  absl::Status ReadBlock(int64_t block, int64_t inside, std::span<std::byte> out,
                         const Cancelled& cancelled) const {
    const auto copy = [&] {
      const auto at = held_.begin() + (block - held_begin_) * kBlockBytes + inside;
      std::copy_n(at, out.size(), out.begin());
    };
    const auto holds = [&] {
      return block >= held_begin_ &&
             (block - held_begin_) * kBlockBytes < static_cast<int64_t>(held_.size());
    };
    const std::lock_guard lock(mutex_);
    if (holds()) {
      copy();
      return absl::OkStatus();
    }
    std::vector<std::byte> kept(static_cast<size_t>(BlockBytes(block)));
    const bool reads_on = block == next_block_;
    next_block_ = block + 1;
    if (cache_->Read(BlockName(block), kept)) {
      held_ = std::move(kept);
      held_begin_ = block;
    } else {
      at_once_ = reads_on ? std::min(2 * at_once_, kBlocksMax) : 1;
      int64_t end = block + 1;
      const int64_t blocks = (info_.bytes + kBlockBytes - 1) / kBlockBytes;
      while (end < std::min(block + at_once_, blocks) && !cache_->Has(BlockName(end))) ++end;
      held_.clear();
      ATOLL_ASSIGN_OR_RETURN(held_, Fetch(block, end, cancelled));
      held_begin_ = block;
      next_block_ = end;
    }
    copy();
    return absl::OkStatus();
  }

  const std::string path_;
  const std::shared_ptr<ObjectStore> store_;
  const ObjectInfo info_;
  BlockCache* const cache_;
  uint64_t tag_, name_;
  FileIdentity identity_;
  mutable std::mutex mutex_;
  mutable std::vector<std::byte> held_;  // the blocks that were read last, from held_begin_ on
  mutable int64_t held_begin_ = 0;
  mutable int64_t next_block_ =
      -1;  // where the last call ended; 0 before a first one that reads on
  mutable int64_t at_once_ = 1;
};

absl::Status RemoteFile::Prefetch(std::span<const ByteRange> ranges,
                                  const Cancelled& cancelled) const {
  std::set<int64_t> missing;
  for (const ByteRange& range : ranges) {
    if (range.bytes <= 0) continue;
    const int64_t end = std::min(range.offset + range.bytes, info_.bytes);
    for (int64_t b = range.offset / kBlockBytes; b * kBlockBytes < end; ++b) {
      if (static_cast<int64_t>(missing.size()) >= kPrefetchBlocksMax) break;
      if (missing.count(b) == 0 && !cache_->Has(BlockName(b))) missing.insert(b);
    }
  }
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const int64_t block : missing) {
    if (!runs.empty() && runs.back().second == block && block - runs.back().first < kBlocksMax) {
      ++runs.back().second;
    } else {
      runs.emplace_back(block, block + 1);
    }
  }
  if (runs.size() < 2) return absl::OkStatus();  // Read does as well
  std::mutex mutex;
  absl::Status status;
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto fetch = [&] {
    for (size_t i = next++; i < runs.size() && !failed; i = next++) {
      const auto got = Fetch(runs[i].first, runs[i].second,
                             [&] { return failed.load() || (cancelled && cancelled()); });
      if (got.ok()) continue;
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) status = got.status();
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < std::min(kRequestsAtOnce, runs.size()); ++i) others.emplace_back(fetch);
    fetch();
  }
  return status;
}

// Errors of the store name the address; those of its credentials get it here.
absl::Status OfPath(const absl::Status& status, const std::string& path) {
  if (absl::StrContains(status.message(), path)) return Annotate(status, "data file");
  return Annotate(status, absl::StrCat("data file ", path));
}

}  // namespace

bool IsRemotePath(const std::string& path) {
  return absl::StartsWith(path, "s3://") || absl::StartsWith(path, "http://") ||
         absl::StartsWith(path, "https://") || IsHubPath(path);
}

absl::StatusOr<std::unique_ptr<DataFile>> OpenDataFile(const std::string& path,
                                                       const Cancelled& cancelled) {
  if (!IsRemotePath(path)) {
    auto file = InputFile::Open(path);
    if (!file.ok()) return Annotate(file.status(), "data file");
    return std::make_unique<LocalFile>(*std::move(file));
  }
  if (path.find('/', path.find("://") + 3) == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("data file ", path, ": names no object: it must be ",
                     absl::StartsWith(path, "s3") ? "s3://BUCKET/NAME" : "SCHEME://HOST/NAME"));
  }
  ATOLL_ASSIGN_OR_RETURN(BlockCache * cache, BlockCache::Get());
  // A query may have more of them.
  const size_t slash = path.rfind('/', absl::StartsWith(path, "http") ? path.find('?') : path.npos);
  auto store = OpenObjectStore(path.substr(0, slash));
  if (!store.ok()) return OfPath(store.status(), path);
  auto info = (*store)->Stat(path.substr(slash + 1), {cancelled, ""});
  if (!info.ok()) return OfPath(info.status(), path);
  return std::make_unique<RemoteFile>(path, *std::move(store), *std::move(info), cache);
}

absl::StatusOr<std::vector<std::string>> ExpandRemoteGlob(const std::string& path,
                                                          const Cancelled& cancelled,
                                                          LeftOut* left_out) {
  const size_t begin = FindPattern(path);
  const std::string folder = path.substr(0, begin - 1), pattern = path.substr(begin);
  auto store = OpenObjectStore(folder);
  if (!store.ok()) return OfPath(store.status(), path);
  const auto objects = (*store)->List(pattern.substr(0, pattern.find_first_of("*?[")),
                                      kObjectsMax + 1, {cancelled, ""});
  if (!objects.ok()) return OfPath(objects.status(), path);
  if (std::ssize(*objects) > kObjectsMax) {
    return absl::InvalidArgumentError(absl::StrCat("data path ", path, ": more than ", kObjectsMax,
                                                   " objects begin as it does; name fewer"));
  }
  std::vector<std::string> files;
  const auto depth = std::count(pattern.begin(), pattern.end(), '/');
  const bool reads_below = absl::StrContains(pattern, "**");
  std::string last_folder;
  for (const ObjectInfo& object : *objects) {
    const std::string& name = object.name;
    // Consoles make an object "NAME/" of a folder.
    if (!name.empty() && name.back() != '/' && MatchesPattern(pattern, name)) {
      files.push_back(absl::StrCat(folder, "/", name));
    }
    size_t end = name.find('/');
    for (int64_t i = 0; i < depth && end != std::string::npos; ++i) end = name.find('/', end + 1);
    if (left_out == nullptr || reads_below || end == std::string::npos) continue;
    if (name.compare(0, end, last_folder) == 0 || !MatchesPattern(pattern, name.substr(0, end))) {
      continue;
    }
    last_folder = name.substr(0, end);
    left_out->Add(absl::StrCat(folder, "/", last_folder, "/"), "a folder");
  }
  if (files.empty()) {
    return absl::NotFoundError(absl::StrCat("data path ", path, ": no object matches"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::shared_ptr<const RemoteFolder>> RemoteFolder::Open(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(BlockCache * cache, BlockCache::Get());
  auto store = OpenObjectStore(path);
  if (!store.ok()) return OfPath(store.status(), path);
  const std::string plain(absl::StripSuffix(path, "/"));
  return std::shared_ptr<const RemoteFolder>(new RemoteFolder(plain, *std::move(store), cache));
}

absl::StatusOr<std::vector<ObjectInfo>> RemoteFolder::List(int64_t most,
                                                           const Cancelled& cancelled) const {
  auto objects = store_->List("", most + 1, {cancelled, ""});
  if (!objects.ok()) return OfPath(objects.status(), path_);
  if (std::ssize(*objects) > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("data path ", path_, ": holds more than ", most, " objects"));
  }
  return objects;
}

std::unique_ptr<DataFile> RemoteFolder::OpenListed(const ObjectInfo& object) const {
  return std::make_unique<RemoteFile>(absl::StrCat(path_, "/", object.name), store_, object, cache_,
                                      kBlocksMax);
}

}  // namespace atl
