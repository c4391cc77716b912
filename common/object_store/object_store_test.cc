#include "common/object_store/object_store.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/http/http_server.h"
#include "common/object_store/credentials.h"
#include "common/object_store/http.h"
#include "common/object_store/signature.h"
#include "tests/faults/io_faults.h"

namespace atl {
namespace {

// ---- vocabulary of these tests ----

class Folder {
 public:
  Folder() {
    path_ = (std::filesystem::temp_directory_path() / "atoll_store_test_XXXXXX").string();
    REQUIRE(mkdtemp(path_.data()) != nullptr);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

ByteSpan Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string ReadText(ObjectStore& store, const std::string& name, int64_t offset, size_t bytes) {
  std::string text(bytes, '\0');
  const absl::Status status = store.Read(name, offset, std::as_writable_bytes(std::span(text)), {});
  INFO(status.message());
  REQUIRE(status.ok());
  return text;
}

using Settings = std::map<std::string, std::string>;

absl::StatusOr<S3Access> Access(const Settings& variables, const Settings& files) {
  const auto in = [](const Settings& settings) {
    return [&settings](const std::string& name) -> std::optional<std::string> {
      const auto found = settings.find(name);
      return found == settings.end() ? std::nullopt : std::optional(found->second);
    };
  };
  return FindS3Access(in(variables), in(files));
}

// ---- folders ----

TEST_CASE("an object in a folder is written whole, read by ranges, listed and removed") {
  Folder folder;
  const auto store = *OpenObjectStore(folder.path());
  const std::string a = "hello ", b = "world";
  const ByteSpan buffers[] = {Bytes(a), Bytes(b)};
  REQUIRE(store->Write("x/one", buffers).ok());
  REQUIRE(store->Write("x/two", {buffers, 1}).ok());
  CHECK(ReadText(*store, "x/one", 6, 5) == "world");
  CHECK(store->Stat("x/one", {})->bytes == 11);
  const auto listed = *store->List("x/", 10, {});
  REQUIRE(listed.size() == 2);
  CHECK(listed[1].name == "x/two");
  CHECK(store->List("x/", 1, {})->size() == 1);
  CHECK(store->List("y", 10, {})->empty());
  std::string more(12, '\0');
  CHECK(absl::IsOutOfRange(store->Read("x/one", 0, std::as_writable_bytes(std::span(more)), {})));
  REQUIRE(store->Remove("x/one").ok());
  REQUIRE(store->Remove("x/one").ok());
  CHECK(absl::IsNotFound(store->Stat("x/one", {}).status()));
}

TEST_CASE("names that lead elsewhere and addresses of another kind are refused") {
  Folder folder;
  const auto store = *OpenObjectStore(folder.path());
  for (const char* name : {"", "..", "a/../b", "/a", "a//b", "a/"}) {
    CHECK(absl::IsInvalidArgument(store->Stat(name, {}).status()));
  }
  for (const char* url : {"", "ftp://host/x", "s3://", "s3://b/../c"}) {
    CHECK(absl::IsInvalidArgument(OpenObjectStore(url).status()));
  }
}

// ---- S3's signature and credentials ----

// The examples of Amazon's documentation of Signature Version 4 for S3.
S3Request Example(const std::string& path) {
  S3Request request;
  request.method = "GET";
  request.host = "examplebucket.s3.amazonaws.com";
  request.path = path;
  request.payload_sha256 = Sha256Hex({});
  return request;
}
constexpr int64_t kExampleTime = 1369353600;  // 2013-05-24

std::string ComputeSignature(const S3Request& request) {
  S3Access access;
  access.key_id = "AKIAIOSFODNN7EXAMPLE";
  access.secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
  const std::string header = SignS3(request, access, kExampleTime).at("authorization");
  return header.substr(header.find("Signature=") + 10);
}

TEST_CASE("signatures are those of Amazon's examples") {
  S3Request get = Example("/test.txt");
  get.headers["range"] = "bytes=0-9";
  CHECK(ComputeSignature(get) ==
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");

  S3Request put = Example("/test$file.text");
  put.method = "PUT";
  put.headers["date"] = "Fri, 24 May 2013 00:00:00 GMT";
  put.headers["x-amz-storage-class"] = "REDUCED_REDUNDANCY";
  const std::string body = "Welcome to Amazon S3.";
  const ByteSpan buffer = Bytes(body);
  put.payload_sha256 = Sha256Hex({&buffer, 1});
  CHECK(ComputeSignature(put) ==
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");

  S3Request lifecycle = Example("/");
  lifecycle.query["lifecycle"] = "";
  CHECK(ComputeSignature(lifecycle) ==
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");

  S3Request list = Example("/");
  list.query = {{"max-keys", "2"}, {"prefix", "J"}};
  CHECK(ComputeSignature(list) ==
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_CASE("credentials: variables come before files, and a profile has its own") {
  const Settings files = {{"/h/.aws/credentials",
                           "[default]\naws_access_key_id = A\naws_secret_access_key=B\n"
                           "# no\n[other]\naws_access_key_id=C\naws_secret_access_key=D=\n"
                           "aws_session_token=T\n"},
                          {"/h/.aws/config",
                           "[default]\nregion=eu-north-1\n[profile other]\nregion = us-west-2\n"
                           "endpoint_url = http://localhost:1/\n"}};
  const auto plain = Access({{"HOME", "/h"}}, files);
  CHECK((plain->key_id == "A" && plain->secret == "B" && plain->region == "eu-north-1"));
  const auto other = Access({{"HOME", "/h"}, {"AWS_PROFILE", "other"}}, files);
  CHECK((other->key_id == "C" && other->secret == "D=" && other->session_token == "T"));
  CHECK((other->region == "us-west-2" && other->endpoint == "http://localhost:1"));
  const auto variables = Access({{"HOME", "/h"},
                                 {"AWS_PROFILE", "other"},
                                 {"AWS_ACCESS_KEY_ID", "V"},
                                 {"AWS_SECRET_ACCESS_KEY", "W"},
                                 {"AWS_DEFAULT_REGION", "ap-1"}},
                                files);
  CHECK((variables->key_id == "V" && variables->session_token.empty()));
  CHECK(variables->region == "ap-1");
  CHECK(absl::IsUnauthenticated(Access({}, {}).status()));
}

TEST_CASE("nothing_is_read_from_link_local_and_metadata_addresses") {
  for (const char* url :
       {"http://169.254.169.254/latest/meta-data", "http://169.254.170.2/", "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/", "http://[fd00:ec2::254]/", "http://100.100.100.200/",
        "http://168.63.129.16/", "http://[fd20:ce::254]/", "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a83f:8110::1]/"}) {
    INFO(url);
    WebRequest request;
    request.url = url;
    CHECK(absl::IsPermissionDenied(SendHttp(request).status()));
  }
  WebRequest elsewhere;
  elsewhere.url = "http://127.0.0.1:1/";
  CHECK(absl::IsUnavailable(SendHttp(elsewhere).status()));
}

TEST_CASE("redirections_are_followed_as_far_as_the_process_may_read") {
  std::string target;
  const auto server = HttpServer::Start({"--listen", "127.0.0.1:0"}, [&](const HttpRequest& got) {
    HttpReply reply;
    reply.body = got.path == "/to" ? "moved" : "the object";
    if (got.path == "/to") {
      reply.status = 307;
      reply.location = target;
    }
    return reply;
  });
  REQUIRE(server.ok());
  const std::string url = (*server)->url();
  const auto read = [&] {
    WebRequest request;
    request.url = url + "/to";
    request.follow_redirects = true;
    return SendHttp(request);
  };
  target = "/data/x";
  REQUIRE(read().ok());
  CHECK(read()->body == "the object");
  target = "/to";
  CHECK(absl::IsFailedPrecondition(read().status()));  // in a circle
  target = "http://169.254.169.254/";
  CHECK(absl::IsPermissionDenied(read().status()));

  ConfineRedirects([&](const std::string& to) { return to == url + "/data/x"; });
  target = "/data/x";
  CHECK(read().ok());
  target = "/secret";
  CHECK(absl::IsPermissionDenied(read().status()));
  ConfineRedirects({});
}

TEST_CASE("a_list_beside_the_removal_of_other_objects_has_all_that_stays") {
  Folder folder;
  const auto store = *OpenObjectStore(folder.path());
  const std::string a = "x";
  const ByteSpan buffers[] = {Bytes(a)};
  for (int i = 0; i < 4; ++i)
    REQUIRE(store->Write(absl::StrCat("job-", i, "/w/one"), buffers).ok());
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) {
      for (int i = 0; i < 8; ++i) (void)store->Write(absl::StrCat("job-1/s-", i, "/two"), buffers);
      for (int i = 0; i < 8; ++i) (void)store->Remove(absl::StrCat("job-1/s-", i, "/two"));
      std::filesystem::remove_all(folder.path() + "/job-2/w");
      (void)store->Write("job-2/w/one", buffers);
    }
  });
  int missed = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto listed = store->List("", 1000, {});
    REQUIRE(listed.ok());
    int found = 0;
    for (const ObjectInfo& object : *listed) {
      found += object.name == "job-0/w/one" || object.name == "job-1/w/one" ||
               object.name == "job-3/w/one";
    }
    missed += found != 3;
  }
  stop = true;
  other.join();
  CHECK(missed == 0);
}

TEST_CASE("a_folder_that_cannot_be_read_to_its_end_is_no_short_list") {
  Folder folder;
  const auto store = *OpenObjectStore(folder.path());
  const std::string a = "x";
  const ByteSpan buffers[] = {Bytes(a)};
  REQUIRE(store->Write("a/b/one", buffers).ok());
  for (const char* call : {"opendir", "readdir", "stat", "lstat"}) {
    for (int at = 1; at <= 3; ++at) {
      const InjectedFault fault({folder.path(), call, EIO, at});
      CHECK_FALSE(store->List("", 1000, {}).ok());
    }
  }
  CHECK(store->List("", 1000, {})->size() == 1);
}

TEST_CASE("folders_of_removed_objects_do_not_stay_and_others_are_not_looked_into") {
  Folder folder;
  const auto store = *OpenObjectStore(folder.path());
  const std::string a = "x";
  const ByteSpan buffers[] = {Bytes(a)};
  REQUIRE(store->Write("a/b/one", buffers).ok());
  REQUIRE(store->Write("a/c/two", buffers).ok());
  REQUIRE(store->Remove("a/b/one").ok());
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/a/b"));
  CHECK(store->List("", 10, {})->size() == 1);
  const InjectedFault fault({folder.path(), "opendir", EIO, /*at=*/100});
  CHECK(store->List("b/", 10, {})->empty());
  CHECK(fault.operations() == 1);
  REQUIRE(store->Remove("a/c/two").ok());
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a_redirection_to_another_host_goes_without_the_credentials") {
  std::string seen = "none";
  const auto storage = HttpServer::Start({"--listen", "127.0.0.1:0"}, [&](const HttpRequest& got) {
    seen = got.Header("authorization") + "|" + got.Header("range");
    return HttpReply{};
  });
  REQUIRE(storage.ok());
  std::string target = (*storage)->url() + "/blob?Signature=a/b";
  std::string at_home;
  const auto hub = HttpServer::Start({"--listen", "127.0.0.1:0"}, [&](const HttpRequest& got) {
    HttpReply reply;
    at_home = got.Header("authorization");
    if (got.path == "/to") {
      reply.status = 307;
      reply.location = target;
    }
    return reply;
  });
  REQUIRE(hub.ok());
  WebRequest request;
  request.url = (*hub)->url() + "/to";
  request.headers = {{"authorization", "Bearer secret"}, {"range", "bytes=0-9"}};
  request.follow_redirects = true;
  REQUIRE(SendHttp(request).ok());
  CHECK(at_home == "Bearer secret");
  CHECK(seen == "|bytes=0-9");
  target = "/elsewhere";
  REQUIRE(SendHttp(request).ok());
  CHECK(at_home == "Bearer secret");
}

TEST_CASE("a_read_that_is_silent_is_tried_beside_and_the_first_answer_counts") {
  std::atomic<int> requests = 0;
  std::atomic<bool> ended = false;
  const auto server = HttpServer::Start({"--listen", "127.0.0.1:0"}, [&](const HttpRequest&) {
    HttpReply reply;
    reply.body = absl::StrCat("answer ", ++requests);
    // The first one is forgotten.
    while (reply.body == "answer 1" && !ended) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return reply;
  });
  REQUIRE(server.ok());
  WebRequest request;
  request.url = (*server)->url() + "/object";
  const auto answer = SendHttp(request);
  ended = true;
  REQUIRE(answer.status().message() == "");
  CHECK(answer->body != "answer 1");
}

}  // namespace
}  // namespace atl
