#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/cache_folder.h"
#include "common/check.h"
#include "common/files.h"
#include "common/object_store/hub.h"
#include "common/object_store/hub_server.h"
#include "common/object_store/signature.h"
#include "common/status.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPartBytes = 8 << 20;
constexpr size_t kFilesMax = 10'000;
constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",      "tokenizer.model",    "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "chat_template.json", "added_tokens.json",     "vocab.json",
    "vocab.txt",           "merges.txt"};
constexpr const char* kConfigFiles[] = {"config.json", "generation_config.json"};

bool IsOneOf(absl::string_view name, std::span<const char* const> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns whether the file of a folder, by its name in it, is one of these.
bool IsWanted(absl::string_view name, HubFiles files) {
  const bool config = IsOneOf(name, kConfigFiles);
  switch (files) {
    case HubFiles::kConfig:
      return config;
    case HubFiles::kTokenizer:
      return IsOneOf(name, kTokenizerFiles);
    case HubFiles::kWeights:
      return config || IsOneOf(name, kTokenizerFiles) ||
             (!absl::StrContains(name, "/") && (absl::EndsWith(name, ".safetensors") ||
                                                absl::EndsWith(name, ".safetensors.index.json")));
  }
  return false;
}

// The file without which a folder has nothing of what is wanted.
bool HasMain(const fs::path& folder, HubFiles files) {
  std::error_code error;
  const auto has = [&](const char* name) { return fs::exists(folder / name, error); };
  switch (files) {
    case HubFiles::kConfig:
      return has("config.json");
    case HubFiles::kTokenizer:
      return has("tokenizer.json") || has("tokenizer.model");
    case HubFiles::kWeights:
      return has("config.json") &&
             (has("model.safetensors") || has("model.safetensors.index.json"));
  }
  return false;
}

// "models--ORG--NAME", as the hub's tools lay out their cache.
fs::path RepoFolder(const fs::path& cache, const HubPath& place) {
  const char* const type = place.type == HubPath::Type::kDataset ? "datasets" : "models";
  return cache / absl::StrCat(type, "--", absl::StrReplaceAll(place.repo, {{"/", "--"}}));
}

fs::path HubCache() {
  const char* const named = std::getenv("HF_HUB_CACHE");
  return named != nullptr && *named != '\0' ? fs::path(named) : fs::path(HubHome()) / "hub";
}

// The commit that the cache has for the revision; "": none.
std::string KnownCommit(const fs::path& cache, const HubPath& place) {
  std::error_code error;
  const fs::path repo = RepoFolder(cache, place);
  if (fs::is_directory(repo / "snapshots" / place.revision, error)) return place.revision;
  const auto file = InputFile::Open((repo / "refs" / place.revision).string());
  const auto text = file.ok() ? file->ReadAll(1000) : file.status();
  const std::string commit = text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
  return CheckObjectName(commit).ok() && !absl::StrContains(commit, "/") ? commit : "";
}

// Whole, or not there at all.
absl::Status FetchFile(ObjectStore& store, const HubFile& file, const fs::path& to,
                       const Cancelled& cancelled) {
  std::error_code error;
  if (fs::file_size(to, error) == static_cast<uintmax_t>(file.bytes) && !error) {
    return absl::OkStatus();
  }
  Files& files = RealFiles();
  ATOLL_RETURN_IF_ERROR(files.MakeFolder(to.parent_path().string()));
  const std::string part = to.string() + ".part";
  ATOLL_ASSIGN_OR_RETURN(const auto out, files.OpenAppend(part));
  ATOLL_RETURN_IF_ERROR(out->Truncate(0));
  ByteDigest sha(EVP_sha256());
  std::vector<std::byte> bytes;
  for (int64_t done = 0; done < file.bytes;) {
    bytes.resize(static_cast<size_t>(std::min(kPartBytes, file.bytes - done)));
    ATOLL_RETURN_IF_ERROR(store.Read(file.path, done, bytes, {.cancelled = cancelled}));
    const ByteSpan span = bytes;
    ATOLL_RETURN_IF_ERROR(out->Append({&span, 1}));
    sha.Add(bytes);
    done += std::ssize(bytes);
  }
  if (!file.sha256.empty() && absl::BytesToHexString(sha.Finish()) != file.sha256) {
    (void)files.Remove(part);
    return absl::DataLossError(absl::StrCat(store.url(), "/", file.path,
                                            ": what was fetched has another SHA-256 than the hub "
                                            "says; fetch it again"));
  }
  ATOLL_RETURN_IF_ERROR(out->Sync());
  return files.Rename(part, to.string());
}

// Fetches what is wanted of the commit into our own cache.
absl::StatusOr<fs::path> FetchSnapshot(const HubServer& server, HubPath place,
                                       const std::string& folder, const std::string& commit,
                                       HubFiles files, const Cancelled& cancelled) {
  const fs::path snapshot =
      RepoFolder(fs::path(DataCacheFolder()) / "hub", place) / "snapshots" / commit;
  place.revision = commit;
  place.path = folder;
  ATOLL_ASSIGN_OR_RETURN(const std::vector<HubFile> all, server.List(place, cancelled));
  const auto store = server.Open(place);
  const std::string below = folder.empty() ? "" : folder + "/";
  size_t count = 0;
  for (const HubFile& file : all) {
    if (!absl::StartsWith(file.path, below)) continue;
    if (!IsWanted(absl::string_view(file.path).substr(below.size()), files)) continue;
    if (++count > kFilesMax) return absl::OutOfRangeError("the repository has too many files");
    ATOLL_RETURN_IF_ERROR(FetchFile(*store, file, snapshot / file.path, cancelled));
  }
  return snapshot;
}

absl::StatusOr<std::string> FetchOnce(const std::string& path, HubFiles files,
                                      const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(HubPath place, ParseHubPath(path));
  if (place.type == HubPath::Type::kEither) place.type = HubPath::Type::kModel;
  // A path may name a file of the folder.
  const std::string extension = fs::path(place.path).extension().string();
  const bool is_file = extension == ".json" || extension == ".model" ||
                       extension == ".safetensors" || extension == ".jinja";
  const std::string folder = is_file ? fs::path(place.path).parent_path().string() : place.path;
  const HubServer server;
  const auto found = server.FindCommit(place, cancelled);
  const bool answers = !absl::IsUnavailable(found.status());
  if (!found.ok() && answers) return Annotate(found.status(), path);
  const std::string commit = found.ok() ? *found : KnownCommit(HubCache(), place);
  const fs::path kept = RepoFolder(HubCache(), place) / "snapshots" / commit;
  if (!commit.empty() && HasMain(kept / folder, files)) return (kept / place.path).string();
  if (!answers) return Annotate(found.status(), path);
  auto fetched = FetchSnapshot(server, place, folder, commit, files, cancelled);
  if (!fetched.ok()) return Annotate(fetched.status(), path);
  if (!HasMain(*fetched / folder, files)) {
    return absl::NotFoundError(absl::StrCat(path, ": the repository has no ",
                                            files == HubFiles::kConfig ? "config.json"
                                            : files == HubFiles::kTokenizer
                                                ? "tokenizer.json or tokenizer.model"
                                                : "config.json with weights in safetensors",
                                            " there"));
  }
  return (*fetched / place.path).string();
}

}  // namespace

absl::StatusOr<std::string> FetchFromHub(const std::string& path, HubFiles files,
                                         const Cancelled& cancelled) {
  if (!IsHubPath(path)) return path;
  static std::mutex mutex;  // held while it fetches: two at once would fetch the same
  static std::map<std::pair<std::string, HubFiles>, std::string> found;
  const std::lock_guard lock(mutex);
  const auto known = found.find({path, files});
  std::error_code error;
  if (known != found.end() && fs::exists(known->second, error)) return known->second;
  ATOLL_ASSIGN_OR_RETURN(std::string local, FetchOnce(path, files, cancelled));
  found[{path, files}] = local;
  return local;
}

}  // namespace atl
