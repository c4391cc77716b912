#include "common/object_store/credentials.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/object_store/s3_store.h"
#include "tests/faults/io_faults.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;
using Settings = std::map<std::string, std::string>;

// ---- vocabulary of these tests ----

absl::StatusOr<S3Access> Access(const Settings& variables, const Settings& files,
                                const Fetch& fetch = {}) {
  const auto in = [](const Settings& settings) {
    return [&settings](const std::string& name) -> std::optional<std::string> {
      const auto found = settings.find(name);
      return found == settings.end() ? std::nullopt : std::optional(found->second);
    };
  };
  return FindS3Access(in(variables), in(files), fetch);
}

std::string BodyText(const WebRequest& request) {
  std::string text;
  for (const ByteSpan& part : request.body) {
    text.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  return text;
}

// STS, which knows one token.
absl::StatusOr<WebAnswer> Sts(const WebRequest& request) {
  CHECK(request.url == "http://sts/");
  const std::string body = BodyText(request);
  CHECK(absl::StrContains(body, "Action=AssumeRoleWithWebIdentity"));
  CHECK(absl::StrContains(body, "RoleArn=arn%3Aaws%3Aiam"));
  if (!absl::StrContains(body, "WebIdentityToken=good")) {
    return WebAnswer{400, {}, "<Error><Code>ExpiredTokenException</Code></Error>"};
  }
  return WebAnswer{200,
                   {},
                   "<Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>B</SecretAccessKey>"
                   "<SessionToken>C</SessionToken><Expiration>2026-11-29T13:00:00Z</Expiration>"
                   "</Credentials>"};
}

// An S3 server that takes the keys of one session token, and its store.
struct Bucket {
  std::unique_ptr<ObjectStore> Open(const std::string& token, S3Keys::Find renew) {
    S3Options options;
    options.bucket = "b";
    options.access = {.key_id = "k", .secret = "s", .session_token = token, .endpoint = "http://s"};
    options.renew = std::move(renew);
    options.unix_seconds = [this] { return now; };
    options.retry.tries = 1;
    options.retry.send = [this](const WebRequest& request) -> absl::StatusOr<WebAnswer> {
      if (request.headers.at("x-amz-security-token") != accepted) {
        const bool head = request.method == "HEAD";  // which has no body
        return WebAnswer{400, {}, head ? "" : "<Error><Code>ExpiredToken</Code></Error>"};
      }
      return WebAnswer{200, {{"etag", "\"e\""}, {"content-length", "3"}}, "abc"};
    };
    return NewS3Store(std::move(options));
  }
  std::string accepted = "t2";
  int64_t now = 1000;
};

S3Access WithToken(const std::string& token, int64_t expires = 0) {
  return {.key_id = "k", .secret = "s", .session_token = token, .expires_unix_s = expires};
}

// ---- tests ----

TEST_CASE("a_web_identity_is_changed_into_keys") {
  const Settings variables = {{"AWS_ROLE_ARN", "arn:aws:iam::1:role/r"},
                              {"AWS_WEB_IDENTITY_TOKEN_FILE", "/token"},
                              {"AWS_ENDPOINT_URL_STS", "http://sts"},
                              {"AWS_REGION", "eu-north-1"}};
  const auto access = Access(variables, {{"/token", "good\n"}}, Sts);
  REQUIRE(access.ok());
  CHECK((access->key_id == "A" && access->secret == "B" && access->session_token == "C"));
  CHECK((access->expires_unix_s == 1795957200 && access->region == "eu-north-1"));
  const auto refused = Access(variables, {{"/token", "bad"}}, Sts);
  CHECK(absl::IsUnauthenticated(refused.status()));
  CHECK_THAT(std::string(refused.status().message()),
             Contains("/token of arn:aws:iam::1:role/r") && Contains("ExpiredTokenException"));
  CHECK_THAT(std::string(Access(variables, {}, Sts).status().message()),
             Contains("the token's file cannot be read"));
}

TEST_CASE("a_profile_may_have_a_web_identity") {
  const Settings files = {{"/c",
                           "[profile p]\nrole_arn = arn:aws:iam::1:role/r\n"
                           "web_identity_token_file = /token\n"},
                          {"/token", "good"}};
  const auto access = Access(
      {{"AWS_PROFILE", "p"}, {"AWS_CONFIG_FILE", "/c"}, {"AWS_ENDPOINT_URL_STS", "http://sts"}},
      files, Sts);
  REQUIRE(access.ok());
  CHECK(access->session_token == "C");
}

TEST_CASE("a_profile_of_an_unsupported_kind_is_named") {
  const auto access = Access({{"AWS_CONFIG_FILE", "/c"}},
                             {{"/c", "[default]\nsso_session = s\nregion = r\n"}}, Sts);
  CHECK(absl::IsUnauthenticated(access.status()));
  CHECK_THAT(std::string(access.status().message()),
             Contains("sso_session") && Contains("export-credentials"));
}

TEST_CASE("a_container_gives_keys_to_its_token") {
  std::string wanted = "http://169.254.170.2/v2/credentials/1";
  const Fetch endpoint = [&](const WebRequest& request) -> absl::StatusOr<WebAnswer> {
    CHECK(request.url == wanted);
    CHECK(request.link_local);
    const auto token = request.headers.find("authorization");
    if (token == request.headers.end() || token->second != "secret") return WebAnswer{403, {}};
    return WebAnswer{200, {}, R"({"RoleArn": "r", "AccessKeyId": "A", "SecretAccessKey": "B\/",
                                  "Token": "C", "Expiration": "2026-11-29T13:00:00Z"})"};
  };
  Settings variables = {{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/1"},
                        {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "secret"}};
  const auto access = Access(variables, {}, endpoint);
  REQUIRE(access.ok());
  CHECK((access->key_id == "A" && access->secret == "B/" && access->session_token == "C"));
  CHECK(access->expires_unix_s == 1795957200);
  wanted = "http://169.254.170.23/v1/credentials";
  variables = {{"AWS_CONTAINER_CREDENTIALS_FULL_URI", wanted},
               {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/t"}};
  CHECK(Access(variables, {{"/t", "secret\n"}}, endpoint).ok());
  CHECK(absl::IsUnauthenticated(Access(variables, {}, endpoint).status()));
  variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://example.org/x";
  CHECK(absl::IsInvalidArgument(Access(variables, {}, endpoint).status()));
}

TEST_CASE("a_machine_of_ec2_gives_keys_of_its_role") {
  std::string role = "trainer";
  const Fetch metadata = [&](const WebRequest& request) -> absl::StatusOr<WebAnswer> {
    CHECK(request.link_local);
    const std::string host = "http://169.254.169.254";
    if (request.method == "PUT" && request.url == host + "/latest/api/token") {
      CHECK(request.headers.contains("x-aws-ec2-metadata-token-ttl-seconds"));
      return WebAnswer{200, {}, "t"};
    }
    const std::string roles = host + "/latest/meta-data/iam/security-credentials/";
    const auto token = request.headers.find("x-aws-ec2-metadata-token");
    if (token == request.headers.end() || token->second != "t") return WebAnswer{401, {}};
    if (request.url == roles) return role.empty() ? WebAnswer{404, {}} : WebAnswer{200, {}, role};
    CHECK(request.url == roles + role);
    return WebAnswer{200, {}, R"({"Code": "Success", "AccessKeyId": "A", "SecretAccessKey": "B",
                                  "Token": "C", "Expiration": "2026-11-29T13:00:00Z"})"};
  };
  const auto access = Access({}, {}, metadata);
  REQUIRE(access.ok());
  CHECK((access->key_id == "A" && access->secret == "B" && access->session_token == "C"));
  CHECK(access->expires_unix_s == 1795957200);
  CHECK_THAT(
      std::string(Access({{"AWS_EC2_METADATA_DISABLED", "TRUE"}}, {}, metadata).status().message()),
      Contains("no access key"));
  role = "";
  CHECK_THAT(std::string(Access({}, {}, metadata).status().message()), Contains("has no role"));
  const Fetch nowhere = [](const WebRequest&) { return absl::UnavailableError("no route"); };
  CHECK_THAT(std::string(Access({}, {}, nowhere).status().message()), Contains("no access key"));
}

TEST_CASE("refused_keys_are_read_again_and_the_request_is_made_with_the_new_ones") {
  Bucket bucket;
  int read = 0;
  const auto store = bucket.Open("t1", [&](bool anew) -> absl::StatusOr<S3Access> {
    CHECK(anew);
    ++read;
    return WithToken("t2");
  });
  CHECK(store->Stat("x", {}).ok());
  std::string text(3, '\0');
  CHECK(store->Read("x", 0, std::as_writable_bytes(std::span(text)), {}).ok());
  CHECK((text == "abc" && read == 1));
}

TEST_CASE("keys_that_have_ended_and_are_not_renewed_yet_are_waited_for") {
  Bucket bucket;
  const auto store = bucket.Open("t1", [](bool) { return WithToken("t1"); });
  const absl::Status status = store->Stat("x", {}).status();
  CHECK(absl::IsUnavailable(status));
  CHECK_THAT(std::string(status.message()), Contains("ExpiredToken") && Contains("renew"));
}

TEST_CASE("keys_are_read_again_before_they_end") {
  int64_t now = 1000;
  std::vector<bool> reads;
  S3Keys keys(
      WithToken("t1", 2000),
      [&](bool anew) -> absl::StatusOr<S3Access> {
        reads.push_back(anew);
        if (now < 1900) return WithToken("t1", 2000);
        return WithToken("t2", 5000);
      },
      [&] { return now; });
  CHECK(keys.Get().session_token == "t1");
  CHECK(reads.empty());
  now = 1060;
  CHECK(keys.Get().session_token == "t1");
  CHECK(reads == std::vector<bool>{false});
  now = 1950;
  CHECK(keys.Get().session_token == "t2");
  CHECK(reads == std::vector<bool>{false, true});
  now = -300'000'000;  // set back by ten years
  CHECK(keys.Get().session_token == "t1");
  CHECK(reads == std::vector<bool>{false, true, false});
}

TEST_CASE("a_file_of_keys_that_cannot_be_read_once_is_no_lack_of_keys") {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/keys");
  std::filesystem::create_directories(folder);
  const auto set = [](const char* name, const std::string& value) {
    REQUIRE(setenv(name, value.c_str(), 1) == 0);
  };
  set("AWS_SHARED_CREDENTIALS_FILE", folder + "/credentials");
  set("AWS_CONFIG_FILE", "/dev/null");
  set("AWS_EC2_METADATA_DISABLED", "true");
  CHECK(absl::IsUnauthenticated(FindS3Access(false).status()));
  std::ofstream(folder + "/credentials")
      << "[default]\naws_access_key_id = id\naws_secret_access_key = secret\n";
  for (const long at : {1, 2, 3}) {  // open, fstat, pread
    INFO(at);
    const InjectedFault fault({.folder = folder, .error = EIO, .at = at});
    const auto found = FindS3Access(false);
    REQUIRE_FALSE(found.ok());
    CHECK_FALSE(absl::IsUnauthenticated(found.status()));
    CHECK_THAT(std::string(found.status().message()), Contains(folder));
  }
  const auto found = FindS3Access(false);
  REQUIRE(found.ok());
  CHECK(found->key_id == "id");
}

}  // namespace
}  // namespace atl
