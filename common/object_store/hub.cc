#include "common/object_store/hub.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/object_store/hub_server.h"
#include "common/object_store/signature.h"
#include "common/object_store/web_store.h"
#include "common/status.h"

namespace atl {
namespace {

using Json = nlohmann::json;

constexpr const char* kScheme = "hf://";
constexpr int64_t kPageBytesMax = 16 << 20;
constexpr int kPagesMax = 1000;

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string ReadToken() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (std::string token = FromEnvironment(name); !token.empty()) return token;
  }
  std::string path = FromEnvironment("HF_TOKEN_PATH");
  if (path.empty()) path = HubHome() + "/token";
  const auto file = InputFile::Open(path);
  const auto text = file.ok() ? file->ReadAll(1 << 16) : file.status();
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

const char* Plural(HubPath::Type type) {
  return type == HubPath::Type::kDataset ? "datasets" : "models";
}

// Values that lie deeper than any that is read are left out: they are copied by recursion.
Json ParseAnswer(const std::string& body) {
  constexpr int kDepthMax = 8;
  const auto is_shallow = [](int depth, Json::parse_event_t, Json&) { return depth < kDepthMax; };
  return Json::parse(body, is_shallow, /*allow_exceptions=*/false);
}

// Returns the address of rel="next" in a header Link; "": there is none.
std::string NextPage(const std::string& link) {
  for (const absl::string_view part : absl::StrSplit(link, ',')) {
    const size_t begin = part.find('<'), end = part.find('>');
    if (begin == absl::string_view::npos || end == absl::string_view::npos || end < begin) continue;
    if (absl::StrContains(part.substr(end), "rel=\"next\"")) {
      return std::string(part.substr(begin + 1, end - begin - 1));
    }
  }
  return "";
}

// Adds the files of a page; folders are left out.
absl::Status AddFiles(const Json& page, const std::string& url, std::vector<HubFile>* files) {
  if (!page.is_array()) return absl::InternalError(absl::StrCat(url, ": no list of files"));
  for (const Json& entry : page) {
    if (!entry.is_object()) return absl::InternalError(absl::StrCat(url, ": no list of files"));
    const Json type = entry.value("type", Json()), path = entry.value("path", Json());
    const Json size = entry.value("size", Json());
    if (type != "file") continue;
    if (!path.is_string() || !size.is_number_unsigned() ||
        !CheckObjectName(path.get<std::string>()).ok()) {
      return absl::InternalError(absl::StrCat(url, ": lists a file without a name or size"));
    }
    HubFile file{path.get<std::string>(), size.get<int64_t>(), "", ""};
    const Json lfs = entry.value("lfs", Json());
    const Json digest = lfs.is_object() ? lfs.value("oid", Json()) : Json();
    const Json oid = entry.value("oid", Json());
    if (digest.is_string()) file.sha256 = digest.get<std::string>();
    if (oid.is_string()) file.tag = oid.get<std::string>();
    files->push_back(std::move(file));
  }
  return absl::OkStatus();
}

class HubStore : public ObjectStore {
 public:
  HubStore(std::string url, HubPath place, RetryOptions retry)
      : url_(std::move(url)),
        place_(std::move(place)),
        server_(std::move(retry)),
        type_(place_.type) {}
  std::string url() const override { return url_; }

  absl::StatusOr<ObjectInfo> Stat(const std::string& name, const CallOptions& call) override {
    return OfEither<ObjectInfo>([&](HubPath::Type type) -> absl::StatusOr<ObjectInfo> {
      const auto store = server_.Open(WithType(type));
      ATOLL_ASSIGN_OR_RETURN(ObjectInfo info, store->Stat(Below(name), call));
      info.name = name;
      return info;
    });
  }
  absl::Status Read(const std::string& name, int64_t offset, std::span<std::byte> out,
                    const CallOptions& call) override {
    return OfEither<bool>([&](HubPath::Type type) -> absl::StatusOr<bool> {
             ATOLL_RETURN_IF_ERROR(
                 server_.Open(WithType(type))->Read(Below(name), offset, out, call));
             return true;
           })
        .status();
  }
  absl::StatusOr<std::vector<ObjectInfo>> List(const std::string& prefix, int64_t most,
                                               const CallOptions& call) override {
    ATOLL_ASSIGN_OR_RETURN(const std::vector<HubFile> files,
                           OfEither<std::vector<HubFile>>([&](HubPath::Type type) {
                             return server_.List(WithType(type), call.cancelled);
                           }));
    std::vector<ObjectInfo> objects;
    const std::string below = place_.path.empty() ? "" : place_.path + "/";
    for (const HubFile& file : files) {
      absl::string_view name = file.path;
      if (!absl::ConsumePrefix(&name, below) || !absl::StartsWith(name, prefix)) continue;
      objects.push_back({std::string(name), file.bytes, file.tag, !file.tag.empty()});
    }
    std::sort(objects.begin(), objects.end(),
              [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
    if (std::ssize(objects) > most) objects.resize(static_cast<size_t>(most));
    return objects;
  }

 private:
  std::string Below(const std::string& name) const {
    return place_.path.empty() ? name : absl::StrCat(place_.path, "/", name);
  }
  HubPath WithType(HubPath::Type type) const {
    HubPath place = place_;
    place.type = type;
    return place;
  }
  // Calls for the data set, else for the model; the hub answers 401 for what is not there, too. The
  // kind that the first call finds stays.
  template <typename T, typename Call>
  absl::StatusOr<T> OfEither(const Call& call) {
    HubPath::Type type;
    {
      const std::lock_guard lock(mutex_);
      type = type_;
    }
    if (type != HubPath::Type::kEither) return call(type);
    absl::StatusOr<T> found = call(HubPath::Type::kDataset);
    type = HubPath::Type::kDataset;
    if (absl::IsNotFound(found.status()) || absl::IsPermissionDenied(found.status())) {
      absl::StatusOr<T> other = call(HubPath::Type::kModel);
      if (!other.ok()) return found;
      found = std::move(other);
      type = HubPath::Type::kModel;
    }
    const std::lock_guard lock(mutex_);
    if (found.ok()) type_ = type;
    return found;
  }

  const std::string url_;
  const HubPath place_;
  const HubServer server_;
  std::mutex mutex_;
  HubPath::Type type_;
};

}  // namespace

std::string HubHome() {
  if (std::string home = FromEnvironment("HF_HOME"); !home.empty()) return home;
  if (std::string cache = FromEnvironment("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/huggingface";
  }
  return FromEnvironment("HOME") + "/.cache/huggingface";
}

HubServer::HubServer(RetryOptions retry) : retry_(std::move(retry)) {
  endpoint_ = FromEnvironment("HF_ENDPOINT");
  while (!endpoint_.empty() && endpoint_.back() == '/') endpoint_.pop_back();
  if (endpoint_.empty()) endpoint_ = "https://huggingface.co";
  if (const std::string token = ReadToken(); !token.empty()) {
    headers_["authorization"] = "Bearer " + token;
  }
}

std::unique_ptr<ObjectStore> HubServer::Open(const HubPath& place) const {
  const char* const type = place.type == HubPath::Type::kDataset ? "datasets/" : "";
  return NewWebStore({.url = absl::StrCat(endpoint_, "/", type, place.repo, "/resolve/",
                                          UriEscape(place.revision, false)),
                      .headers = headers_,
                      .retry = retry_,
                      .refusal_hint = "set HF_TOKEN, and accept the repository's terms, if it has "
                                      "any, on its page"});
}

absl::StatusOr<WebAnswer> HubServer::Fetch(const std::string& url,
                                           const Cancelled& cancelled) const {
  WebRequest request;
  request.url = url;
  request.headers = headers_;
  request.answer_bytes_max = kPageBytesMax;
  request.follow_redirects = true;
  request.cancelled = cancelled;
  ATOLL_ASSIGN_OR_RETURN(WebAnswer answer, SendHttpWithRetries([&] { return request; }, retry_));
  if (answer.status == 200) return answer;
  const std::string message =
      absl::StrCat(url, ": HTTP ", answer.status, " ", answer.Header("x-error-message"));
  const bool refused = answer.status == 401 || answer.status == 403;
  return AnswerError(answer.status,
                     message + (refused ? "; is the name right? else set HF_TOKEN" : ""));
}

absl::StatusOr<std::vector<HubFile>> HubServer::List(const HubPath& place,
                                                     const Cancelled& cancelled) const {
  std::string url = absl::StrCat(endpoint_, "/api/", Plural(place.type), "/", place.repo, "/tree/",
                                 UriEscape(place.revision, false), place.path.empty() ? "" : "/",
                                 UriEscape(place.path, true), "?recursive=true");
  std::vector<HubFile> files;
  for (int page = 0; !url.empty(); ++page) {
    if (page == kPagesMax) {
      return absl::OutOfRangeError(absl::StrCat(url, ": lists more than ", page, " pages"));
    }
    ATOLL_ASSIGN_OR_RETURN(const WebAnswer answer, Fetch(url, cancelled));
    ATOLL_RETURN_IF_ERROR(AddFiles(ParseAnswer(answer.body), url, &files));
    url = NextPage(answer.Header("link"));
    if (!url.empty() && !absl::StartsWith(url, endpoint_ + "/")) {
      return absl::InternalError(absl::StrCat("the hub's next page is elsewhere: ", url));
    }
  }
  return files;
}

absl::StatusOr<std::string> HubServer::FindCommit(const HubPath& place,
                                                  const Cancelled& cancelled) const {
  const std::string url = absl::StrCat(endpoint_, "/api/", Plural(place.type), "/", place.repo,
                                       "/revision/", UriEscape(place.revision, false));
  ATOLL_ASSIGN_OR_RETURN(const WebAnswer answer, Fetch(url, cancelled));
  const Json info = ParseAnswer(answer.body);
  const Json commit = info.is_object() ? info.value("sha", Json()) : Json();
  if (commit.is_string() && CheckObjectName(commit.get<std::string>()).ok() &&
      !absl::StrContains(commit.get<std::string>(), "/")) {
    return commit.get<std::string>();
  }
  return absl::InternalError(absl::StrCat(url, ": names no commit"));
}

bool IsHubPath(std::string_view path) { return path.starts_with(kScheme); }

absl::StatusOr<HubPath> ParseHubPath(const std::string& url) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", url, "\": must be hf://[datasets/]ORG/NAME[@REVISION]/PATH"));
  };
  absl::string_view rest = url;
  if (!absl::ConsumePrefix(&rest, kScheme)) return bad();
  rest = absl::StripSuffix(rest, "/");
  HubPath place;
  if (absl::ConsumePrefix(&rest, "datasets/")) place.type = HubPath::Type::kDataset;
  if (absl::ConsumePrefix(&rest, "models/")) place.type = HubPath::Type::kModel;
  std::vector<std::string> parts = absl::StrSplit(rest, '/');
  if (parts.size() < 2) return bad();
  if (parts[0] == "spaces" || parts[0] == "buckets") {
    return absl::InvalidArgumentError(absl::StrCat("\"", url, "\": ", parts[0],
                                                   " of the hub are not read, but data sets and "
                                                   "models"));
  }
  const size_t at = parts[1].find('@');
  size_t used = 2;
  if (at != std::string::npos) {
    // Reads a revision as other tools write it: refs%2Fpr%2F1, and a short form of the branch of
    // conversions.
    place.revision = absl::StrReplaceAll(parts[1].substr(at + 1), {{"%2F", "/"}, {"%2f", "/"}});
    if (place.revision == "~parquet") place.revision = "refs/convert/parquet";
    parts[1].resize(at);
    // refs/pr/1 and refs/convert/parquet are one revision each.
    if (place.revision == "refs" && parts.size() >= 4) {
      place.revision = absl::StrCat("refs/", parts[2], "/", parts[3]);
      used = 4;
    }
  }
  place.repo = absl::StrCat(parts[0], "/", parts[1]);
  place.path = absl::StrJoin(parts.begin() + static_cast<std::ptrdiff_t>(used), parts.end(), "/");
  if (!CheckObjectName(place.repo).ok() || !CheckObjectName(place.revision).ok() ||
      (!place.path.empty() && !CheckObjectName(place.path).ok())) {
    return bad();
  }
  return place;
}

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenHubStore(const std::string& url,
                                                          RetryOptions retry) {
  ATOLL_ASSIGN_OR_RETURN(HubPath place, ParseHubPath(url));
  return std::make_unique<HubStore>(std::string(absl::StripSuffix(url, "/")), std::move(place),
                                    std::move(retry));
}

}  // namespace atl
