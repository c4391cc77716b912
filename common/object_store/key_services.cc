#include "common/object_store/key_services.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/object_store/signature.h"
#include "common/object_store/xml.h"
#include "common/status.h"

namespace atl {
namespace {

absl::Status NoKeys(const std::string& source, absl::string_view problem) {
  return absl::UnauthenticatedError(absl::StrCat("S3: ", source, ": ", problem));
}

// "2026-11-29T13:00:00Z"; 0: none.
int64_t ParseEnd(const std::string& text) {
  absl::Time time;
  return absl::ParseTime(absl::RFC3339_full, text, &time, nullptr) ? absl::ToUnixSeconds(time) : 0;
}

// The text of a field of a JSON object; "": there is none.
std::string JsonField(const std::string& json, const char* name) {
  const auto is_flat = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    return depth < 2;  // deeper values are copied by recursion
  };
  const auto object = nlohmann::json::parse(json, is_flat, /*allow_exceptions=*/false);
  const auto value = object.is_object() ? object.value(name, nlohmann::json()) : nlohmann::json();
  return value.is_string() ? value.get<std::string>() : "";
}

absl::StatusOr<S3Access> Checked(S3Access access, const WebAnswer& answer) {
  if (!access.key_id.empty() && !access.secret.empty()) return access;
  const std::string code = XmlText(answer.body, "Code");
  return NoKeys(access.source, absl::StrCat("HTTP ", answer.status, " ",
                                            code.empty() ? JsonField(answer.body, "code") : code,
                                            " ", XmlText(answer.body, "Message")));
}

absl::StatusOr<S3Access> TakeJsonKeys(S3Access access, const WebAnswer& answer) {
  if (answer.status == 200) {
    access.key_id = JsonField(answer.body, "AccessKeyId");
    access.secret = JsonField(answer.body, "SecretAccessKey");
    access.session_token = JsonField(answer.body, "Token");
    access.expires_unix_s = ParseEnd(JsonField(answer.body, "Expiration"));
  }
  return Checked(std::move(access), answer);
}

// A machine's own addresses, and those of ECS and EKS on its link.
bool MayGetToken(const std::string& url) {
  for (const char* host :
       {"127.0.0.1", "localhost", "[::1]", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"}) {
    const std::string begin = absl::StrCat("http://", host);
    const bool is_host = absl::StartsWith(url, begin) && url.size() > begin.size() &&
                         (url[begin.size()] == ':' || url[begin.size()] == '/');
    if (is_host) return true;
  }
  return absl::StartsWith(url, "https://");
}

}  // namespace

absl::StatusOr<S3Access> FetchWebIdentityKeys(const WebIdentity& identity, const FileText& file,
                                              const Fetch& fetch) {
  S3Access access;
  access.source = absl::StrCat("web identity ", identity.token_file, " of ", identity.role);
  const auto token = file(identity.token_file);
  if (!token.has_value()) return NoKeys(access.source, "the token's file cannot be read");
  const std::map<std::string, std::string> query = {
      {"Action", "AssumeRoleWithWebIdentity"},
      {"Version", "2011-06-15"},
      {"RoleArn", identity.role},
      {"RoleSessionName", identity.session.empty() ? "atoll" : identity.session},
      {"WebIdentityToken", std::string(absl::StripAsciiWhitespace(*token))}};
  const std::string body = QueryText(query);
  const ByteSpan buffer = std::as_bytes(std::span(body));
  WebRequest request;
  request.method = "POST";
  request.url = absl::StrCat(identity.endpoint, "/");
  request.headers = {{"content-type", "application/x-www-form-urlencoded"}};
  request.body = {&buffer, 1};
  const auto answer = fetch(request);
  if (!answer.ok()) return NoKeys(access.source, answer.status().message());
  access.key_id = XmlText(answer->body, "AccessKeyId");
  access.secret = XmlText(answer->body, "SecretAccessKey");
  access.session_token = XmlText(answer->body, "SessionToken");
  access.expires_unix_s = ParseEnd(XmlText(answer->body, "Expiration"));
  return Checked(std::move(access), *answer);
}

absl::StatusOr<S3Access> FetchContainerKeys(const std::string& url,
                                            const std::string& authorization, const Fetch& fetch) {
  if (!MayGetToken(url)) {
    return absl::InvalidArgumentError(
        absl::StrCat("AWS_CONTAINER_CREDENTIALS_FULL_URI = ", url,
                     ": must be https://, or http:// of this machine or its link"));
  }
  S3Access access;
  access.source = absl::StrCat("container endpoint ", url);
  WebRequest request;
  request.url = url;
  request.link_local = true;
  if (!authorization.empty()) request.headers = {{"authorization", authorization}};
  const auto answer = fetch(request);
  if (!answer.ok()) return NoKeys(access.source, answer.status().message());
  return TakeJsonKeys(std::move(access), *answer);
}

absl::StatusOr<S3Access> FetchMachineKeys(const std::string& endpoint, const Fetch& fetch) {
  S3Access access;
  access.source = absl::StrCat("EC2 metadata ", endpoint);
  WebRequest request;
  request.method = "PUT";
  request.url = absl::StrCat(endpoint, "/latest/api/token");
  request.headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}};
  request.link_local = true;
  const auto token = fetch(request);
  if (!token.ok()) return absl::NotFoundError(absl::StrCat(access.source, ": not there"));
  if (token->status != 200) return Checked(std::move(access), *token);
  request.method = "GET";
  request.url = absl::StrCat(endpoint, "/latest/meta-data/iam/security-credentials/");
  request.headers = {{"x-aws-ec2-metadata-token", token->body}};
  const auto role = fetch(request);
  if (!role.ok()) return NoKeys(access.source, role.status().message());
  if (role->status == 404) return NoKeys(access.source, "the machine has no role");
  if (role->status != 200) return Checked(std::move(access), *role);
  request.url += std::string(absl::StripAsciiWhitespace(role->body));
  const auto answer = fetch(request);
  if (!answer.ok()) return NoKeys(access.source, answer.status().message());
  return TakeJsonKeys(std::move(access), *answer);
}

}  // namespace atl
