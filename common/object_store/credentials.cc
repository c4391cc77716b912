#include "common/object_store/credentials.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace atl {
namespace {

constexpr std::streamsize kFileBytesMax = 1 << 20;

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

}  // namespace

absl::StatusOr<S3Access> FindS3Access(const Variable& variable, const FileText& file) {
  const std::string home = variable("HOME").value_or("");
  const std::string profile = variable("AWS_PROFILE").value_or("default");
  const std::string credentials =
      variable("AWS_SHARED_CREDENTIALS_FILE").value_or(home + "/.aws/credentials");
  const std::string config = variable("AWS_CONFIG_FILE").value_or(home + "/.aws/config");
  S3Access access;
  const Section settings =
      ParseSection(file(config).value_or(""),
                   profile == "default" ? profile : absl::StrCat("profile ", profile));
  const Section keys = ParseSection(file(credentials).value_or(""), profile);
  Take(settings, "region", &access.region);
  Take(settings, "endpoint_url", &access.endpoint);
  for (const Section& section : {settings, keys}) {
    Take(section, "aws_access_key_id", &access.key_id);
    Take(section, "aws_secret_access_key", &access.secret);
    Take(section, "aws_session_token", &access.session_token);
  }
  if (variable("AWS_ACCESS_KEY_ID").has_value()) {  // the three belong together
    access.key_id = *variable("AWS_ACCESS_KEY_ID");
    access.secret = variable("AWS_SECRET_ACCESS_KEY").value_or("");
    access.session_token = variable("AWS_SESSION_TOKEN").value_or("");
  }
  TakeVariable(variable, {"AWS_REGION", "AWS_DEFAULT_REGION"}, &access.region);
  TakeVariable(variable, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, &access.endpoint);
  while (!access.endpoint.empty() && access.endpoint.back() == '/') access.endpoint.pop_back();
  if (access.key_id.empty() || access.secret.empty()) {
    return absl::UnauthenticatedError(absl::StrCat(
        "S3: no access key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to ",
        credentials, " under [", profile, "]"));
  }
  return access;
}

absl::StatusOr<S3Access> FindS3Access() {
  return FindS3Access(
      [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
      },
      [](const std::string& path) -> std::optional<std::string> {
        std::ifstream stream(path, std::ios::binary);
        if (!stream) return std::nullopt;
        std::string text(static_cast<size_t>(kFileBytesMax), '\0');
        stream.read(text.data(), kFileBytesMax);
        text.resize(static_cast<size_t>(stream.gcount()));
        return text;
      });
}

}  // namespace atl
