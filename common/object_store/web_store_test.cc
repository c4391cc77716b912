#include "common/object_store/web_store.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;

// ---- vocabulary of these tests ----

constexpr const char* kText = "the object's text";

// A server that answers every request by a function, in this process.
class Server {
 public:
  using Answer = std::function<WebAnswer(const WebRequest&)>;
  explicit Server(Answer answer) : answer_(std::move(answer)) {
    WebOptions options{.url = "http://h/d", .headers = {{"authorization", "Bearer t"}}};
    options.retry.tries = 1;
    options.retry.send = [this](const WebRequest& request) -> absl::StatusOr<WebAnswer> {
      seen_.push_back(request.method + " " + request.url);
      WebAnswer answer = answer_(request);
      if (request.method == "HEAD") answer.body.clear();
      if (std::ssize(answer.body) > request.answer_bytes_max) {
        return absl::InvalidArgumentError("longer than wanted");
      }
      return answer;
    };
    store_ = NewWebStore(std::move(options));
  }
  absl::StatusOr<ObjectInfo> Stat(const std::string& name = "x") { return store_->Stat(name, {}); }
  std::string Refusal() {
    const auto info = Stat();
    REQUIRE_FALSE(info.ok());
    return std::string(info.status().message());
  }
  std::string Read(int64_t offset, size_t bytes, const std::string& tag) {
    std::string text(bytes, '\0');
    const absl::Status status =
        store_->Read("x", offset, std::as_writable_bytes(std::span(text)), {.tag = tag});
    return status.ok() ? text : std::string(status.message());
  }
  const std::vector<std::string>& seen() const { return seen_; }

 private:
  Answer answer_;
  std::vector<std::string> seen_;
  std::unique_ptr<ObjectStore> store_;
};

// Answers GET as a server with ranges does.
WebAnswer Ranged(const WebRequest& request, const std::string& text = kText) {
  const auto range = request.headers.find("range");
  if (range == request.headers.end()) return {200, {{"etag", "\"a\""}}, text};
  const size_t begin = std::stoul(range->second.substr(6));
  const size_t last = std::stoul(range->second.substr(range->second.find('-') + 1));
  const auto size = std::to_string(text.size());
  if (begin >= text.size()) return {416, {{"content-range", "bytes */" + size}, {"etag", "\"a\""}}};
  return {
      206,
      {{"etag", "\"a\""}, {"content-range", absl::StrCat("bytes ", begin, "-", last, "/", size)}},
      text.substr(begin, last - begin + 1)};
}

// One that answers HEAD with `status`.
Server RefusesHead(int status, const std::string& text = kText) {
  return Server([=](const WebRequest& request) {
    return request.method == "HEAD" ? WebAnswer{status, {}} : Ranged(request, text);
  });
}

// ---- tests ----

TEST_CASE("an_object_is_sized_by_its_first_byte_where_head_is_refused") {
  for (const int status : {400, 401, 403, 405, 501}) {
    INFO(status);
    Server server = RefusesHead(status);
    const auto info = server.Stat();
    REQUIRE(info.ok());
    CHECK((info->bytes == 17 && info->tag == "\"a\"" && info->exact_tag));
    CHECK(server.Read(4, 6, info->tag) == "object");
  }
  CHECK(RefusesHead(403, "").Stat()->bytes == 0);
}

TEST_CASE("an_object_without_a_length_is_sized_by_a_range") {
  Server server([](const WebRequest& request) {
    return request.method == "HEAD" ? WebAnswer{200, {{"etag", "\"a\""}}} : Ranged(request);
  });
  CHECK(server.Stat()->bytes == 17);
}

TEST_CASE("a_length_of_0_in_an_answer_to_head_is_believed_only_if_get_has_no_byte") {
  const auto bytes = [](const WebAnswer& got) {
    Server server([&](const WebRequest& request) {
      if (request.method == "GET") return got;
      return WebAnswer{200, {{"etag", "\"a\""}, {"content-length", "0"}}};
    });
    return server.Stat()->bytes;
  };
  CHECK(bytes({206, {{"etag", "\"a\""}, {"content-range", "bytes 0-0/17"}}, "t"}) == 17);
  CHECK(bytes({200, {{"etag", "\"a\""}}, ""}) == 0);
  CHECK(bytes({416, {{"etag", "\"a\""}}, "out of range"}) == 0);
}

TEST_CASE("servers_that_cannot_be_read_by_parts_are_refused_with_the_cause") {
  CHECK_THAT(Server([](const WebRequest&) {
               return WebAnswer{200, {{"etag", "\"a\""}}, std::string(5 << 20, 'a')};
             }).Refusal(),
             Contains("no ranges"));
  CHECK_THAT(Server([](const WebRequest&) {
               return WebAnswer{200, {{"content-length", "17"}}};
             }).Refusal(),
             Contains("neither ETag nor Last-Modified"));
  CHECK_THAT(Server([](const WebRequest&) {
               return WebAnswer{
                   200, {{"content-length", "17"}, {"etag", "\"a\""}, {"content-encoding", "br"}}};
             }).Refusal(),
             Contains("Content-Encoding: br"));
  Server whole([](const WebRequest&) {
    return WebAnswer{200, {{"content-length", "17"}, {"etag", "\"a\""}}, kText};
  });
  REQUIRE(whole.Stat().ok());
  CHECK_THAT(whole.Read(4, 6, "\"a\""), Contains("no ranges"));
}

TEST_CASE("a_refusal_of_both_requests_says_what_the_store_says") {
  const auto refusal = [](int status, const std::string& body) {
    return Server([=](const WebRequest&) { return WebAnswer{status, {}, body}; }).Refusal();
  };
  CHECK_THAT(refusal(403,
                     "<Error><Code>AccessDenied</Code><Message>Request has expired</Message>"
                     "</Error>"),
             Contains("HTTP 403 AccessDenied Request has expired"));
  CHECK_THAT(refusal(401, ""), Contains("HTTP 401") && Contains("does not let this machine"));
  CHECK_THAT(refusal(405, ""), Contains("HTTP 405"));
  CHECK(absl::IsNotFound(Server([](const WebRequest&) {
                           return WebAnswer{404, {}};
                         })
                             .Stat()
                             .status()));
}

TEST_CASE("a_weak_tag_counts_with_the_time_of_the_last_change") {
  std::string changed = "Sat, 28 Nov 2026 10:00:00 GMT";
  Server server([&](const WebRequest& request) {
    WebAnswer answer = Ranged(request);
    answer.headers["etag"] = "W/\"a\"";
    answer.headers["last-modified"] = changed;
    answer.headers["content-length"] = "17";
    CHECK(request.headers.count("if-match") == 0);
    return answer;
  });
  const auto info = server.Stat();
  REQUIRE(info.ok());
  CHECK_FALSE(info->exact_tag);
  CHECK(server.Read(0, 3, info->tag) == "the");
  changed = "Sat, 28 Nov 2026 11:00:00 GMT";
  CHECK_THAT(server.Read(0, 3, info->tag), Contains("has changed"));
}

TEST_CASE("addresses_are_escaped_where_they_have_to_be_and_signatures_may_be_long") {
  Server server = RefusesHead(403);
  const std::string query = "?X-Amz-Signature=a%2Fb/c&token=" + std::string(3000, 't');
  REQUIRE(server.Stat("my file \xc3\xa9.txt" + query).ok());
  CHECK(server.seen()[0] == "HEAD http://h/d/my%20file%20%C3%A9.txt" + query);
  CHECK(absl::IsInvalidArgument(server.Stat(std::string(20'000, 'x')).status()));
}

}  // namespace
}  // namespace atl
