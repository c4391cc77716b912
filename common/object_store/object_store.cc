#include "common/object_store/object_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/object_store/hub.h"
#include "common/object_store/s3_store.h"
#include "common/object_store/web_store.h"
#include "common/paths.h"
#include "common/status.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNameBytes = 1024;  // S3's
constexpr int kWriteAttempts = 16;

class FolderStore : public ObjectStore {
 public:
  explicit FolderStore(std::string folder) : folder_(std::move(folder)) {}
  std::string url() const override { return folder_.string(); }

  absl::StatusOr<ObjectInfo> Stat(const std::string& name, const CallOptions&) override {
    ATOLL_RETURN_IF_ERROR(CheckObjectName(name));
    ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(Path(name)));
    if (!found || !found->is_file)
      return absl::NotFoundError(Path(name) + ": there is no such file");
    return Info(name, found->identity);
  }

  absl::Status Read(const std::string& name, int64_t offset, std::span<std::byte> out,
                    const CallOptions& call) override {
    ATOLL_RETURN_IF_ERROR(CheckObjectName(name));
    ATOLL_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(Path(name)));
    if (!call.tag.empty() && Info(name, file.identity()).tag != call.tag) {
      return ChangedError(Path(name));
    }
    if (std::ssize(out) > file.bytes() - offset) {
      return absl::OutOfRangeError(
          absl::StrCat("reading ", Path(name), ": ends at byte ", file.bytes()));
    }
    return file.Read(offset, out.data(), std::ssize(out));
  }

  absl::Status Write(const std::string& name, std::span<const ByteSpan> buffers) override {
    ATOLL_RETURN_IF_ERROR(CheckObjectName(name));
    absl::Status status;
    // Remove, of another object, may take the folder away before it holds this one.
    for (int attempt = 0; attempt < kWriteAttempts; ++attempt) {
      // First its own: where that cannot be, the error is the same for every object.
      ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(folder_.string()));
      ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(fs::path(Path(name)).parent_path().string()));
      status = WriteFileAtomically(RealFiles(), Path(name), buffers);
      if (!absl::IsNotFound(status)) break;
    }
    return status;
  }

  absl::StatusOr<std::vector<ObjectInfo>> List(const std::string& prefix, int64_t most,
                                               const CallOptions& call) override {
    std::vector<ObjectInfo> objects;
    ATOLL_RETURN_IF_ERROR(Annotate(AddObjects("", prefix, call.cancelled, &objects),
                                   absl::StrCat("listing ", url())));
    std::sort(objects.begin(), objects.end(),
              [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
    if (static_cast<int64_t>(objects.size()) > most) objects.resize(static_cast<size_t>(most));
    return objects;
  }

  absl::Status Remove(const std::string& name) override {
    ATOLL_RETURN_IF_ERROR(CheckObjectName(name));
    if (unlink(Path(name).c_str()) != 0 && errno != ENOENT) return Error("removing", name);
    // Folders that hold nothing any more; rmdir refuses any other.
    fs::path folder = fs::path(name).parent_path();
    while (!folder.empty() && rmdir((folder_ / folder).c_str()) == 0) folder = folder.parent_path();
    return absl::OkStatus();
  }

 private:
  // Adds the objects in and below `within` ("": the whole store; else it ends in '/'). What is
  // removed meanwhile is left out, and nothing else.
  absl::Status AddObjects(const std::string& within, const std::string& prefix,
                          const Cancelled& cancelled, std::vector<ObjectInfo>* objects) const {
    if (within.size() > kMaxNameBytes) return absl::OkStatus();  // no name is so long
    if (cancelled && cancelled()) return absl::AbortedError("the call is cancelled");
    const auto names = RealFiles().List((folder_ / within).string());
    if (absl::IsNotFound(names.status())) return absl::OkStatus();
    ATOLL_RETURN_IF_ERROR(names.status());
    for (const std::string& each : *names) {
      const std::string name = within + each;
      const std::string below = name + "/";
      if (!absl::StartsWith(name, prefix) && !absl::StartsWith(prefix, below)) continue;
      struct stat itself, info;
      if (lstat(Path(name).c_str(), &itself) != 0 || stat(Path(name).c_str(), &info) != 0) {
        if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) continue;
        return Error("looking at", name);
      }
      // A link to a folder is not followed: it could lead to where it lies.
      if (S_ISDIR(itself.st_mode)) {
        ATOLL_RETURN_IF_ERROR(AddObjects(below, prefix, cancelled, objects));
      } else if (S_ISREG(info.st_mode) && absl::StartsWith(name, prefix)) {
        const int64_t modified_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
        objects->push_back(Info(name, {.bytes = info.st_size, .modified_ns = modified_ns}));
      }
    }
    return absl::OkStatus();
  }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  absl::Status Error(const char* what, const std::string& name) const {
    return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", Path(name)));
  }
  static ObjectInfo Info(const std::string& name, const FileIdentity& file) {
    return {name, file.bytes, absl::StrCat(file.modified_ns, "-", file.bytes)};
  }

  const fs::path folder_;
};

}  // namespace

absl::Status ObjectStore::Write(const std::string&, std::span<const ByteSpan>) {
  return ReadOnly();
}

absl::StatusOr<std::vector<ObjectInfo>> ObjectStore::List(const std::string&, int64_t,
                                                          const CallOptions&) {
  return ReadOnly();
}

absl::Status ObjectStore::Remove(const std::string&) { return ReadOnly(); }

absl::Status ObjectStore::ReadOnly() const {
  return absl::UnimplementedError(absl::StrCat(
      url(), ": a web server and the hub can only be read; name an s3:// bucket or a folder"));
}

absl::Status ChangedError(const std::string& url) {
  return absl::DataLossError(absl::StrCat(
      url, ": has changed since it was opened; put the old one back, or start the job anew"));
}

absl::Status CheckObjectName(const std::string& name) {
  bool good = !name.empty() && name.size() <= kMaxNameBytes;
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    good = good && !part.empty() && part != "." && part != ".." &&
           part.find('\0') == absl::string_view::npos;
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" cannot name an object"));
}

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(const std::string& url) {
  absl::string_view rest = absl::StripSuffix(url, "/");
  if (absl::StartsWith(rest, "http://") || absl::StartsWith(rest, "https://")) {
    return NewWebStore({.url = std::string(rest)});
  }
  if (IsHubPath(url)) return OpenHubStore(url);
  if (!absl::ConsumePrefix(&rest, "s3://")) {
    if (absl::StrContains(url, "://") || url.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", url, "\": must be s3://BUCKET/PREFIX, http(s)://..., or a folder"));
    }
    return std::make_unique<FolderStore>(url);
  }
  S3Options options;
  const std::pair<std::string, std::string> parts = absl::StrSplit(rest, absl::MaxSplits('/', 1));
  options.bucket = parts.first;
  options.prefix = parts.second;
  if (!CheckObjectName(options.bucket).ok() ||
      (!options.prefix.empty() && !CheckObjectName(options.prefix).ok())) {
    return absl::InvalidArgumentError(absl::StrCat("\"", url, "\": must be s3://BUCKET/PREFIX"));
  }
  ATOLL_ASSIGN_OR_RETURN(options.access, FindS3Access());
  if (!options.access.endpoint.empty() && !absl::StartsWith(options.access.endpoint, "http://") &&
      !absl::StartsWith(options.access.endpoint, "https://")) {
    return absl::InvalidArgumentError(absl::StrCat("AWS_ENDPOINT_URL = ", options.access.endpoint,
                                                   ": must begin with http:// or https://"));
  }
  options.renew = [](bool anew) { return FindS3Access(anew); };
  return NewS3Store(std::move(options));
}

}  // namespace atl
