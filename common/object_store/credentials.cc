#include "common/object_store/credentials.h"

#include <cstdlib>
#include <ctime>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/object_store/key_services.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr int64_t kFileBytesMax = 1 << 20;
constexpr int64_t kReadAgainSeconds = 60, kRenewBeforeSeconds = 300, kEndsSeconds = 10;

using Section = std::map<std::string, std::string>;

// The lines "name = value" of [section], in the form that AWS's files have.
Section ParseSection(const std::string& text, absl::string_view section) {
  Section found;
  bool inside = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      inside = absl::StripAsciiWhitespace(line.substr(1, line.find(']') - 1)) == section;
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (!inside) continue;
    found.emplace(absl::StripAsciiWhitespace(pair.first), absl::StripAsciiWhitespace(pair.second));
  }
  return found;
}

void Take(const Section& section, const char* name, std::string* value) {
  const auto found = section.find(name);
  if (found != section.end() && !found->second.empty()) *value = found->second;
}

void TakeVariable(const Variable& variable, std::initializer_list<const char*> names,
                  std::string* value) {
  for (const char* name : names) {
    const auto found = variable(name);
    if (found.has_value() && !found->empty()) {
      *value = *found;
      return;
    }
  }
}

std::string DefaultStsEndpoint(const std::string& region) {
  return absl::StrCat("https://sts.", region, ".amazonaws.com");
}

// Returns the field of the profile that is not supported here; "": none.
std::string UnsupportedField(const Section& settings, const Section& keys) {
  for (const char* name : {"credential_process", "sso_session", "sso_start_url", "source_profile",
                           "credential_source"}) {
    if (settings.contains(name) || keys.contains(name)) return name;
  }
  return "";
}

// All of a search for keys.
class Search {
 public:
  Search(const Variable& variable, const FileText& file, const Fetch& fetch)
      : variable_(variable), file_(file), fetch_(fetch) {
    const std::string home = variable("HOME").value_or("");
    profile_ = variable("AWS_PROFILE").value_or("default");
    credentials_ = variable("AWS_SHARED_CREDENTIALS_FILE").value_or(home + "/.aws/credentials");
    const std::string config = variable("AWS_CONFIG_FILE").value_or(home + "/.aws/config");
    settings_ = ParseSection(file(config).value_or(""),
                             profile_ == "default" ? profile_ : absl::StrCat("profile ", profile_));
    keys_ = ParseSection(file(credentials_).value_or(""), profile_);
  }

  absl::StatusOr<S3Access> Run() {
    S3Access place;
    Take(settings_, "region", &place.region);
    Take(settings_, "endpoint_url", &place.endpoint);
    TakeVariable(variable_, {"AWS_REGION", "AWS_DEFAULT_REGION"}, &place.region);
    TakeVariable(variable_, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, &place.endpoint);
    while (!place.endpoint.empty() && place.endpoint.back() == '/') place.endpoint.pop_back();
    ATOLL_ASSIGN_OR_RETURN(S3Access access, FindKeys(place.region));
    access.region = place.region;
    access.endpoint = place.endpoint;
    return access;
  }

 private:
  absl::StatusOr<S3Access> FindKeys(const std::string& region) {
    S3Access access;
    if (variable_("AWS_ACCESS_KEY_ID").has_value()) {  // the three belong together
      access.key_id = *variable_("AWS_ACCESS_KEY_ID");
      access.secret = variable_("AWS_SECRET_ACCESS_KEY").value_or("");
      access.session_token = variable_("AWS_SESSION_TOKEN").value_or("");
      access.source = "the variable AWS_ACCESS_KEY_ID";
      if (!access.key_id.empty() && !access.secret.empty()) return access;
      return NoKey();
    }
    WebIdentity identity;
    TakeVariable(variable_, {"AWS_ROLE_ARN"}, &identity.role);
    TakeVariable(variable_, {"AWS_WEB_IDENTITY_TOKEN_FILE"}, &identity.token_file);
    TakeVariable(variable_, {"AWS_ROLE_SESSION_NAME"}, &identity.session);
    if (IsWhole(identity)) return FetchKeys(identity, region);
    for (const Section& section : {settings_, keys_}) {
      Take(section, "aws_access_key_id", &access.key_id);
      Take(section, "aws_secret_access_key", &access.secret);
      Take(section, "aws_session_token", &access.session_token);
    }
    access.source = absl::StrCat(credentials_, " [", profile_, "]");
    if (!access.key_id.empty() && !access.secret.empty()) return access;
    Take(settings_, "role_arn", &identity.role);
    Take(settings_, "web_identity_token_file", &identity.token_file);
    Take(settings_, "role_session_name", &identity.session);
    if (IsWhole(identity)) return FetchKeys(identity, region);
    if (const std::string field = UnsupportedField(settings_, keys_); !field.empty()) {
      return absl::UnauthenticatedError(
          absl::StrCat("S3: the profile ", profile_, " has ", field,
                       ", which is not supported: aws configure export-credentials --profile ",
                       profile_, " --format env"));
    }
    return FindContainerKeys();
  }
  bool IsWhole(const WebIdentity& identity) const {
    return fetch_ != nullptr && !identity.role.empty() && !identity.token_file.empty();
  }
  absl::StatusOr<S3Access> FetchKeys(WebIdentity identity, const std::string& region) {
    identity.endpoint = DefaultStsEndpoint(region);
    TakeVariable(variable_, {"AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"}, &identity.endpoint);
    return FetchWebIdentityKeys(identity, file_, fetch_);
  }
  absl::StatusOr<S3Access> FindContainerKeys() {
    std::string url, authorization, token_file;
    TakeVariable(variable_, {"AWS_CONTAINER_CREDENTIALS_FULL_URI"}, &url);
    TakeVariable(variable_, {"AWS_CONTAINER_AUTHORIZATION_TOKEN"}, &authorization);
    TakeVariable(variable_, {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"}, &token_file);
    if (const auto path = variable_("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
        path.has_value() && !path->empty()) {
      url = absl::StrCat("http://169.254.170.2", *path);
    }
    if (fetch_ == nullptr) return NoKey();
    if (url.empty()) return FindMachineKeys();
    if (!token_file.empty()) {
      authorization = std::string(absl::StripAsciiWhitespace(file_(token_file).value_or("")));
    }
    return FetchContainerKeys(url, authorization, fetch_);
  }
  absl::StatusOr<S3Access> FindMachineKeys() {
    std::string disabled, endpoint = "http://169.254.169.254";
    TakeVariable(variable_, {"AWS_EC2_METADATA_DISABLED"}, &disabled);
    TakeVariable(variable_, {"AWS_EC2_METADATA_SERVICE_ENDPOINT"}, &endpoint);
    if (absl::AsciiStrToLower(disabled) == "true") return NoKey();
    while (!endpoint.empty() && endpoint.back() == '/') endpoint.pop_back();
    auto access = FetchMachineKeys(endpoint, fetch_);
    return absl::IsNotFound(access.status()) ? NoKey() : access;
  }
  absl::Status NoKey() const {
    return absl::UnauthenticatedError(absl::StrCat(
        "S3: no access key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to ",
        credentials_, " under [", profile_, "]"));
  }

  const Variable& variable_;
  const FileText& file_;
  const Fetch& fetch_;
  std::string profile_, credentials_;
  Section settings_, keys_;
};

// A clock that was set back ends what it began.
bool IsWithin(int64_t now, int64_t begin, int64_t seconds) {
  return now >= begin && now - begin < seconds;
}

// Answers of key services, by what was sent to them: every file of a job needs keys.
class FetchedAnswers {
 public:
  static FetchedAnswers& Get() {
    static FetchedAnswers fetched;
    return fetched;
  }
  absl::StatusOr<WebAnswer> Fetch(const WebRequest& request, bool anew) {
    std::string name = request.url;
    for (const ByteSpan& part : request.body) {
      name.append(reinterpret_cast<const char*>(part.data()), part.size());
    }
    const std::lock_guard lock(mutex_);
    const int64_t now = std::time(nullptr);
    const auto known = kept_.find(name);
    const int64_t until = anew ? kAnewSeconds : kKeptSeconds;
    if (known != kept_.end() && IsWithin(now, known->second.at, until)) {
      return known->second.answer;
    }
    auto answer = SendHttpWithRetries([&] { return request; }, {.tries = 3});
    if (!answer.ok() || answer->status != 200) return answer;
    if (kept_.size() >= kAnswersMax) kept_.clear();
    kept_[name] = {now, *answer};
    return answer;
  }

 private:
  // STS and containers give keys for 15 minutes at the least.
  static constexpr int64_t kKeptSeconds = 300, kAnewSeconds = 10;
  static constexpr size_t kAnswersMax = 16;
  struct Kept {
    int64_t at = 0;
    WebAnswer answer;
  };
  std::mutex mutex_;
  std::map<std::string, Kept> kept_;
};

}  // namespace

absl::StatusOr<S3Access> FindS3Access(const Variable& variable, const FileText& file,
                                      const Fetch& fetch) {
  return Search(variable, file, fetch).Run();
}

absl::StatusOr<S3Access> FindS3Access(bool anew) {
  // A file that could not be read this time: keys from elsewhere may be of another identity.
  absl::Status unread;
  auto found = FindS3Access(
      [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
      },
      [&unread](const std::string& path) -> std::optional<std::string> {
        const auto file = InputFile::Open(path);
        // Not there, another user's, or /dev/null.
        if (absl::IsNotFound(file.status()) || absl::IsPermissionDenied(file.status()) ||
            absl::IsInvalidArgument(file.status())) {
          return std::nullopt;
        }
        auto text = file.ok() ? file->ReadAll(kFileBytesMax) : file.status();
        unread.Update(text.status());
        return text.ok() ? std::optional(*std::move(text)) : std::nullopt;
      },
      [anew](const WebRequest& request) { return FetchedAnswers::Get().Fetch(request, anew); });
  const bool by_variables = found.ok() && std::getenv("AWS_ACCESS_KEY_ID") != nullptr;
  if (!unread.ok() && !by_variables) return Annotate(unread, "S3: keys");
  return found;
}

S3Keys::S3Keys(S3Access access, Find find, std::function<int64_t()> unix_seconds)
    : find_(std::move(find)), unix_seconds_(std::move(unix_seconds)), access_(std::move(access)) {
  read_at_ = Now();
}

int64_t S3Keys::Now() const { return unix_seconds_ ? unix_seconds_() : std::time(nullptr); }

void S3Keys::Read(bool anew) {
  read_at_ = Now();
  auto found = find_(anew);
  if (found.ok()) access_ = *std::move(found);
}

S3Access S3Keys::Get() {
  const std::lock_guard lock(mutex_);
  if (!find_) return access_;
  const int64_t now = Now();
  const bool ends =
      access_.expires_unix_s != 0 && now > access_.expires_unix_s - kRenewBeforeSeconds;
  if (!IsWithin(now, read_at_, ends ? kEndsSeconds : kReadAgainSeconds)) Read(ends);
  return access_;
}

bool S3Keys::Renew(const S3Access& refused) {
  const std::lock_guard lock(mutex_);
  if (!access_.SameKeys(refused)) return true;  // another thread has
  if (!find_) return false;
  Read(/*anew=*/true);
  return !access_.SameKeys(refused);
}

}  // namespace atl
