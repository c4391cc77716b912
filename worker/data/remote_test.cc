// Data on a web server and in an object store: a server in this process, which counts what it
// gives.

#include <httplib.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "common/object_store/http.h"
#include "worker/data/block_cache.h"
#include "worker/data/dataset.h"
#include "worker/data/testing/image_encoders.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

constexpr int64_t kBlock = 64 << 10;

class Server {
 public:
  Server() {
    server_.Get(".*", [this](const httplib::Request& request, httplib::Response& response) {
      Answer(request, response);
    });
    server_.set_keep_alive_max_count(1);  // else Stop waits for connections to grow old
    port_ = server_.bind_to_any_port("127.0.0.1");
    REQUIRE(port_ > 0);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~Server() {
    held_ = false;
    Stop();
  }
  void Stop() {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  // "" as tag: the server gives none.
  void Put(const std::string& path, std::string body, std::string tag) {
    const std::lock_guard lock(mutex_);
    files_[path] = {std::move(body), std::move(tag)};
  }
  // The next `count` requests have this answer instead.
  void Refuse(int count, int status, std::string body) {
    const std::lock_guard lock(mutex_);
    refusals_ = count;
    status_ = status;
    refusal_ = std::move(body);
  }
  void Hold() { held_ = true; }  // answers nothing until the end
  int64_t bytes() const { return bytes_; }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }

 private:
  void Answer(const httplib::Request& request, httplib::Response& response) {
    while (held_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::lock_guard lock(mutex_);
    if (refusals_ > 0) {
      --refusals_;
      response.status = status_;
      response.set_content(refusal_, "application/xml");
      return;
    }
    const auto found = files_.find(request.path);
    if (request.has_param("list-type")) {
      response.set_content(Listing(request), "application/xml");
      return;
    }
    if (found == files_.end()) {
      response.status = 404;
      return;
    }
    const auto& [body, tag] = found->second;
    if (!tag.empty()) response.set_header("ETag", tag);
    if (tag.empty()) response.set_header("Last-Modified", "Sun, 22 Nov 2020 10:00:00 GMT");
    if (request.has_header("If-Match") && request.get_header_value("If-Match") != tag) {
      response.status = 412;
      return;
    }
    if (request.method == "GET") {
      for (const auto& [begin, end] : request.ranges) bytes_ += end - begin + 1;
      if (request.ranges.empty()) bytes_ += static_cast<int64_t>(body.size());
    }
    response.set_content(body, "application/octet-stream");
  }

  // Keys of the bucket below the prefix, two a page; the token is the key to go on from.
  std::string Listing(const httplib::Request& request) const {
    const std::string bucket = request.path.substr(0, request.path.find('/', 1)) + "/";
    const std::string prefix = bucket + request.get_param_value("prefix");
    const std::string token = request.get_param_value("continuation-token");
    std::string xml = "<ListBucketResult>";
    int count = 0;
    for (auto it = files_.lower_bound(token.empty() ? prefix : token);
         it != files_.end() && it->first.rfind(prefix, 0) == 0; ++it) {
      if (++count > 2) {
        absl::StrAppend(&xml, "<NextContinuationToken>", it->first, "</NextContinuationToken>");
        break;
      }
      absl::StrAppend(&xml, "<Contents><Key>", it->first.substr(bucket.size()), "</Key><ETag>",
                      it->second.second, "</ETag><Size>", it->second.first.size(),
                      "</Size></Contents>");
    }
    return xml + "</ListBucketResult>";
  }

  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
  std::mutex mutex_;
  std::map<std::string, std::pair<std::string, std::string>> files_;
  int refusals_ = 0, status_ = 0;
  std::string refusal_;
  std::atomic<bool> held_ = false;
  std::atomic<int64_t> bytes_ = 0;
};

// A cache folder of this test's own, and the environment that names it.
class Fixture {
 public:
  Fixture() {
    std::string name = (fs::temp_directory_path() / "atoll_remote_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
    setenv("ATOLL_DATA_CACHE", name.c_str(), 1);
    unsetenv("ATOLL_DATA_CACHE_BYTES");
    setenv("AWS_ENDPOINT_URL", server.url().c_str(), 1);
    setenv("AWS_ACCESS_KEY_ID", "k", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
  }
  ~Fixture() { fs::remove_all(folder_); }

  // `count` tokens of 16 bits, token i is i % 50000.
  void PutTokens(const std::string& path, int64_t count, const std::string& tag) {
    std::vector<uint16_t> tokens(static_cast<size_t>(count));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i % 50000);
    server.Put(path, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2}, tag);
  }
  int64_t kept() const {
    int64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(folder_ / "blocks")) {
      bytes += static_cast<int64_t>(entry.file_size());
    }
    return bytes;
  }
  const fs::path& folder() const { return folder_; }

  Server server;

 private:
  fs::path folder_;
};

DataSpec Tokens(const std::string& path) {
  DataSpec spec;
  spec.format = DataFormat::kTokens16;
  spec.path = path;
  spec.sequence_length = 100;
  spec.validation_fraction = 0;
  return spec;
}

Dataset Opened(const DataSpec& spec) {
  auto dataset = Dataset::Open(spec, 50000);
  INFO(dataset.status().message());
  REQUIRE(dataset.ok());
  return *std::move(dataset);
}

absl::Status ReadRow(const Dataset& dataset, int64_t position, const Cancelled& cancelled = {}) {
  std::vector<int32_t> row(101);
  const absl::Status status = dataset.ReadTrain(position, row, cancelled);
  if (status.ok()) {
    const int64_t begin = dataset.Order(position) * 100;
    for (size_t i = 0; i < row.size(); ++i) {
      REQUIRE(row[i] == (begin + static_cast<int64_t>(i)) % 50000);
    }
  }
  return status;
}

TEST_CASE("a job fetches the blocks that its sequences need, once, and no others") {
  Fixture fixture;
  fixture.PutTokens("/bucket/data/a.bin", 1 << 20, "\"a1\"");
  for (const std::string& path :
       {fixture.server.url() + "/bucket/data/a.bin", std::string("s3://bucket/data/a.bin")}) {
    CAPTURE(path);
    const int64_t before = fixture.server.bytes();
    const Dataset dataset = Opened(Tokens(path));
    CHECK(fixture.server.bytes() - before <= kBlock);  // the header
    std::vector<int32_t> rows(6 * 101);
    REQUIRE(dataset.ReadTrain(0, rows).ok());
    std::set<int64_t> blocks = {0};
    for (int64_t p = 0; p < 6; ++p) {
      blocks.insert(dataset.Order(p) * 200 / kBlock);
      blocks.insert((dataset.Order(p) * 200 + 201) / kBlock);
    }
    const int64_t fetched = fixture.server.bytes() - before;
    CHECK(fetched == static_cast<int64_t>(blocks.size()) * kBlock);
    const Dataset again = Opened(Tokens(path));  // another process would do the same
    for (int64_t p = 0; p < 6; ++p) REQUIRE(ReadRow(again, p).ok());
    CHECK(fixture.server.bytes() - before == fetched);
    CHECK(again.digest() == dataset.digest());
  }
}

TEST_CASE("objects that stand for folders are no data, and folders that match are named") {
  Fixture fixture;
  for (const char* name : {"p/", "p/a.txt", "p/sub/", "p/sub/b.txt", "p/sub/c.txt", "q/d.txt"}) {
    fixture.server.Put(absl::StrCat("/bucket/", name), "text", "\"t\"");
  }
  LeftOut left_out;
  CHECK(*ExpandRemoteGlob("s3://bucket/p/*", {}, &left_out) ==
        std::vector<std::string>{"s3://bucket/p/a.txt"});
  CHECK(ExpandRemoteGlob("s3://bucket/p/**", {}, &left_out)->size() == 3);
  CHECK(left_out.Text() == "leaves out 1: s3://bucket/p/sub/ (a folder)");
}

TEST_CASE("a folder of images in a bucket is listed page by page and reads as it does from disk") {
  Fixture fixture;
  const fs::path here = fixture.folder() / "images";
  int side = 5;
  for (const std::string name : {"cat/1.png", "cat/2.png", "cat/notes.txt", "dog/1.PNG",
                                 "dog/deeper/x.png", "dog/.hidden.png", "dog/2.png", "top.png"}) {
    ++side;
    const std::string bytes = EncodePng(side, 2 * side, 3);
    fixture.server.Put("/bucket/set/" + name, bytes, absl::StrCat("\"", side, "\""));
    fs::create_directories((here / name).parent_path());
    std::ofstream(here / name, std::ios::binary) << bytes;
  }
  fixture.server.Put("/bucket/settings/owl/1.png", EncodePng(4, 4, 3), "\"o\"");
  DataSpec spec;
  spec.format = DataFormat::kImageFolder;
  spec.image_size = 6;
  spec.sequence_length = 1;
  spec.validation_fraction = 0.5;
  spec.path = "s3://bucket/set";
  const auto remote = ListImageFolder(spec.path);
  INFO(remote.status().message());
  REQUIRE(remote.ok());
  CHECK(remote->classes == std::vector<std::string>{"cat", "dog"});
  CHECK(remote->files.size() == 4);
  CHECK_THAT(remote->left_out.Text(), Contains("leaves out 3: s3://bucket/set/cat/notes.txt") &&
                                          Contains("/dog/deeper/x.png") && Contains("/top.png"));
  const Dataset bucket = Opened(spec);
  spec.path = here.string();
  const Dataset disk = Opened(spec);
  CHECK(bucket.train_sequences() == 2);
  std::vector<int32_t> rows(2 * static_cast<size_t>(bucket.row())), others(rows.size());
  REQUIRE(bucket.ReadTrain(0, rows).ok());
  REQUIRE(disk.ReadTrain(0, others).ok());
  CHECK(rows == others);
}

// A bucket of `count` images of 9 x 9 pixels in one class, and the job that reads it.
DataSpec ImagesInBucket(Fixture& fixture, int count) {
  for (int i = 0; i < count; ++i) {
    fixture.server.Put(absl::StrCat("/bucket/set/cat/", 1000 + i, ".png"), EncodePng(9, 9, 3),
                       absl::StrCat("\"", i, "\""));
  }
  DataSpec spec;
  spec.format = DataFormat::kImageFolder;
  spec.path = "s3://bucket/set";
  spec.image_size = 8;
  spec.sequence_length = 1;
  spec.validation_fraction = 0.1;
  return spec;
}

TEST_CASE("images_in_a_bucket_are_fetched_once_for_the_reads_that_come_and_no_others") {
  Fixture fixture;
  const DataSpec spec = ImagesInBucket(fixture, 100);
  const auto each = std::ssize(EncodePng(9, 9, 3));
  const Dataset data = Opened(spec);
  CHECK(fixture.server.bytes() == 0);  // the listing's entity tags are the digest
  std::vector<int32_t> rows(4 * static_cast<size_t>(data.row()));
  constexpr int64_t kReads = 5;
  for (int64_t read = 0; read < kReads; ++read) REQUIRE(data.ReadTrain(4 * read, rows).ok());
  CHECK(fixture.server.bytes() >= 4 * kReads * each);
  CHECK(fixture.server.bytes() <= 4 * (kReads + ReadPattern::kReadsAhead) * each);
  const int64_t before = fixture.server.bytes();
  REQUIRE(data.ReadTrain(0, rows).ok());  // it is held
  CHECK(fixture.server.bytes() - before <= 4 * ReadPattern::kReadsAhead * each);
}

TEST_CASE("an_image_in_a_bucket_that_changes_or_is_damaged_is_an_error_that_names_it") {
  Fixture fixture;
  const DataSpec spec = ImagesInBucket(fixture, 20);
  const Dataset data = Opened(spec);
  fixture.server.Put("/bucket/set/cat/1004.png", EncodePng(9, 9, 3), "\"another\"");
  std::vector<int32_t> rows(static_cast<size_t>(data.train_sequences() * data.row()));
  const absl::Status changed = data.ReadTrain(0, rows);
  CHECK(absl::IsDataLoss(changed));
  CHECK_THAT(std::string(changed.message()), Contains("s3://bucket/set/cat/1004.png"));
  // The same job again, as after a restart: the digest says that the data are others.
  fixture.server.Put("/bucket/set/cat/1004.png", "no image", "\"damaged\"");
  const Dataset again = Opened(spec);
  CHECK(again.digest() != data.digest());
  const absl::Status damaged = again.ReadTrain(0, rows);
  CHECK(absl::IsInvalidArgument(damaged));
  CHECK_THAT(std::string(damaged.message()), Contains("s3://bucket/set/cat/1004.png"));
}

TEST_CASE("reading_images_in_a_bucket_ends_when_it_is_cancelled") {
  Fixture fixture;
  const Dataset data = Opened(ImagesInBucket(fixture, 20));
  fixture.server.Hold();
  std::vector<int32_t> row(static_cast<size_t>(data.row()));
  CHECK(absl::IsAborted(data.ReadTrain(0, row, [] { return true; })));
}

TEST_CASE("reads_are_expected_where_the_last_ones_lead") {
  ReadPattern pattern;
  const auto begins = [&](int64_t first, int64_t count) {
    std::vector<int64_t> next;
    for (const PositionRange& range : pattern.Note(first, count)) {
      CHECK(range.size() == count);
      next.push_back(range.begin);
    }
    return next;
  };
  CHECK(begins(100, 8) == std::vector<int64_t>{108, 116, 124, 132});
  CHECK(begins(108, 8) == std::vector<int64_t>{116, 124, 132, 140});
  // Rows 8 to 16 of batches of 32.
  CHECK(begins(140, 8) == std::vector<int64_t>{172, 204, 236, 268});
  CHECK(begins(172, 8) == std::vector<int64_t>{204, 236, 268, 300});
  // Another lease.
  CHECK(begins(90'000, 8) == std::vector<int64_t>{90'032, 90'064, 90'096, 90'128});
  CHECK(begins(10, 8) == std::vector<int64_t>{42, 74, 106, 138});
}

TEST_CASE("the cache keeps to its bound, and damaged blocks are fetched again") {
  Fixture fixture;
  setenv("ATOLL_DATA_CACHE_BYTES", "400KiB", 1);
  fixture.PutTokens("/b/a.bin", 1 << 20, "\"a1\"");
  const Dataset dataset = Opened(Tokens("s3://b/a.bin"));
  for (int64_t p = 0; p < 60; ++p) {
    REQUIRE(ReadRow(dataset, p).ok());
    REQUIRE(fixture.kept() <= 400 << 10);
  }
  CHECK(fixture.kept() > 200 << 10);
  for (const auto& entry : fs::directory_iterator(fixture.folder() / "blocks")) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(70);
    file << "damaged";
  }
  const Dataset again = Opened(Tokens("s3://b/a.bin"));
  for (int64_t p = 0; p < 60; ++p) REQUIRE(ReadRow(again, p).ok());
  setenv("ATOLL_DATA_CACHE_BYTES", "much", 1);
  CHECK_THAT(std::string(Dataset::Open(Tokens("s3://b/a.bin"), 50000).status().message()),
             Contains("ATOLL_DATA_CACHE_BYTES"));
}

TEST_CASE("the digest follows the strong ETag, without one every byte") {
  Fixture fixture;
  const std::string url = fixture.server.url() + "/a.bin";
  const auto digest = [&](int64_t count, const std::string& tag) {
    fixture.PutTokens("/a.bin", count, tag);
    return Opened(Tokens(url)).digest();
  };
  const uint64_t first = digest(300000, "\"one\"");
  CHECK(digest(300000, "\"two\"") != first);
  CHECK(digest(300000, "\"one\"") == first);
  const int64_t before = fixture.server.bytes();
  CHECK(digest(300000, "") == digest(300000, ""));
  CHECK(fixture.server.bytes() - before == 600000);  // the second time from the cache
  // Read whole, a file on the server is what it is here.
  std::vector<uint16_t> tokens(300000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i % 50000);
  const fs::path here = fixture.folder() / "here.bin";
  std::ofstream(here, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), 2 * 300000);
  CHECK(digest(300000, "") == Opened(Tokens(here.string())).digest());
}

TEST_CASE("a file that changes meanwhile is data loss, which names it") {
  Fixture fixture;
  fixture.PutTokens("/b/a.bin", 1 << 20, "\"one\"");
  for (const std::string& path : {fixture.server.url() + "/b/a.bin", std::string("s3://b/a.bin")}) {
    fixture.PutTokens("/b/a.bin", 1 << 20, "\"one\"");
    const Dataset dataset = Opened(Tokens(path));
    fixture.PutTokens("/b/a.bin", 1 << 20, "\"two\"");
    absl::Status status;
    for (int64_t p = 0; p < 40 && status.ok(); ++p) status = ReadRow(dataset, p);
    CHECK(absl::IsDataLoss(status));
    CHECK_THAT(std::string(status.message()), Contains(path) && Contains("changed"));
  }
}

TEST_CASE("what a store refuses is one message that names the remedy") {
  Fixture fixture;
  fixture.PutTokens("/b/a.bin", 1000, "\"one\"");
  const auto refused = [&](int status, const std::string& code) {
    // HEAD, and GET for the reason.
    fixture.server.Refuse(
        2, status, absl::StrCat("<Error><Code>", code, "</Code><Message>m</Message></Error>"));
    return Dataset::Open(Tokens("s3://b/a.bin"), 50000).status();
  };
  const absl::Status bucket = refused(404, "NoSuchBucket");
  CHECK(absl::IsFailedPrecondition(bucket));
  CHECK_THAT(std::string(bucket.message()), Contains("\"b\"") && Contains("s3://b/a.bin"));
  const absl::Status clock = refused(403, "RequestTimeTooSkewed");
  CHECK(absl::IsFailedPrecondition(clock));
  CHECK_THAT(std::string(clock.message()), Contains("clock"));
  CHECK(absl::IsPermissionDenied(refused(403, "SignatureDoesNotMatch")));
  CHECK(absl::IsNotFound(refused(404, "NoSuchKey")));
  unsetenv("AWS_ACCESS_KEY_ID");
  setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere", 1);
  const absl::Status key = Dataset::Open(Tokens("s3://b/a.bin"), 50000).status();
  CHECK(absl::IsUnauthenticated(key));
  CHECK_THAT(std::string(key.message()), Contains("AWS_ACCESS_KEY_ID"));
}

TEST_CASE(
    "a request to a busy server is repeated; one that is not there is an error within the tries") {
  Fixture fixture;
  fixture.PutTokens("/b/a.bin", 1 << 20, "\"one\"");
  fixture.server.Refuse(2, 503, "");
  const Dataset dataset = Opened(Tokens("s3://b/a.bin"));
  fixture.server.Stop();
  absl::Status status;
  for (int64_t p = 0; p < 40 && status.ok(); ++p) status = ReadRow(dataset, p);
  CHECK(absl::IsUnavailable(status));
  CHECK_THAT(std::string(status.message()), Contains("127.0.0.1"));
}

TEST_CASE("a read that waits for a silent server ends when it is cancelled") {
  Fixture fixture;
  fixture.PutTokens("/b/a.bin", 1 << 20, "\"one\"");
  const Dataset dataset = Opened(Tokens("s3://b/a.bin"));
  fixture.server.Hold();
  std::vector<std::string> said;
  std::atomic<bool> named = false;
  WatchWaits([&](const std::string& what) {
    said.push_back(what);
    named = true;
  });
  const auto unwatched = absl::MakeCleanup([] { WatchWaits(nullptr); });
  std::vector<int32_t> rows(20 * 101);
  const absl::Status status = dataset.ReadTrain(0, rows, [&] { return named.load(); });
  CHECK(absl::IsAborted(status));
  REQUIRE(said.size() >= 2);
  CHECK_THAT(said[0], Contains("waiting for http://") && Contains("/b/a.bin: no answer"));
  CHECK(said.back().empty());
  DataOptions options;
  options.watch.cancelled = [] { return true; };
  CHECK(absl::IsAborted(Dataset::Open(Tokens("s3://b/b.bin"), 50000, options).status()));
}

TEST_CASE("JSONL on a server is tokenized once, and shards on a server are read as they are") {
  Fixture fixture;
  std::string lines;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&lines, "{\"text\": \"line ", i, "\"}\n");
  fixture.server.Put("/b/t.jsonl", lines, "\"one\"");
  DataSpec spec = Tokens("s3://b/t.jsonl");
  spec.format = DataFormat::kJsonl;
  const Dataset dataset = Opened(spec);
  const auto listed = [&](const char* prefix) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(fixture.folder())) {
      if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
    }
    return found;
  };
  REQUIRE(listed("tokens-").size() == 1);
  CHECK(listed("making-").empty());
  for (const auto& entry : fs::directory_iterator(listed("tokens-")[0])) {
    std::ifstream file(entry.path(), std::ios::binary);
    fixture.server.Put("/b/shards/" + entry.path().filename().string(),
                       {std::istreambuf_iterator<char>(file), {}},
                       "\"" + entry.path().filename().string() + "\"");
  }
  spec.format = DataFormat::kShards;
  spec.path = "s3://b/shards";
  const Dataset shards = Opened(spec);
  REQUIRE(shards.train_sequences() == dataset.train_sequences());
  std::vector<int32_t> one(101), other(101);
  REQUIRE(dataset.ReadTrain(3, one).ok());
  REQUIRE(shards.ReadTrain(3, other).ok());
  CHECK(one == other);
}

}  // namespace
}  // namespace atl
