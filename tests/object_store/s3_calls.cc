// All calls of an object store against a real S3 server: where AWS_ENDPOINT_URL says, in the bucket
// that S3_BUCKET names. `run_with_server` starts the server.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "common/object_store/object_store.h"
#include "common/object_store/s3_store.h"
#include "common/rng.h"
#include "tests/catch/skip.h"
#include "worker/data/dataset.h"

namespace atl {
namespace {

// False: the case is skipped.
bool HaveServer() {
  if (std::getenv("S3_BUCKET") != nullptr) return true;
  testing::SkipCase("there is no S3 server: run ./dev test --all");
  return false;
}

std::string Bucket() { return std::getenv("S3_BUCKET"); }

std::unique_ptr<ObjectStore> Opened(const std::string& url) {
  auto store = OpenObjectStore(url);
  INFO(store.status().message());
  REQUIRE(store.ok());
  return *std::move(store);
}

std::vector<std::byte> Noise(size_t bytes) {
  Rng rng(bytes);
  std::vector<std::byte> noise(bytes);
  for (std::byte& b : noise) b = static_cast<std::byte>(rng.Below(256));
  return noise;
}

void Check(const absl::Status& status) {
  INFO(status.message());
  REQUIRE(status.ok());
}

TEST_CASE("small objects: written, looked for, read by ranges, listed, removed") {
  if (!HaveServer()) return;
  const auto store = Opened("s3://" + Bucket() + "/a b/run+1");
  CHECK(store->url() == "s3://" + Bucket() + "/a b/run+1");
  const auto noise = Noise(1000);
  for (const char* name : {"x/1", "x/\xc3\xa4 &<=~", "y"}) {
    const ByteSpan buffers[] = {ByteSpan(noise).first(400), ByteSpan(noise).subspan(400)};
    Check(store->Write(name, buffers));
    const auto info = store->Stat(name, {});
    Check(info.status());
    CHECK(info->bytes == 1000);
    CHECK_FALSE(info->tag.empty());
    std::vector<std::byte> part(100);
    Check(store->Read(name, 350, part, {}));
    CHECK(std::equal(part.begin(), part.end(), noise.begin() + 350));
    CHECK(absl::IsOutOfRange(store->Read(name, 950, part, {})));
  }
  Check(store->Write("empty", {}));
  CHECK(store->Stat("empty", {})->bytes == 0);
  const auto listed = store->List("x/", 10, {});
  Check(listed.status());
  REQUIRE(listed->size() == 2);
  CHECK((*listed)[0].name == "x/1");
  CHECK((*listed)[1].name == "x/\xc3\xa4 &<=~");
  CHECK(store->List("", 2, {})->size() == 2);
  for (const char* name : {"x/1", "x/\xc3\xa4 &<=~", "y", "empty", "none"}) {
    Check(store->Remove(name));
  }
  CHECK(absl::IsNotFound(store->Stat("x/1", {}).status()));
  std::vector<std::byte> part(1);
  CHECK(absl::IsNotFound(store->Read("x/1", 0, part, {})));
  CHECK(store->List("", 10, {})->empty());
}

TEST_CASE("a large object goes up in parts and comes back the same") {
  if (!HaveServer()) return;
  const auto store = Opened("s3://" + Bucket());
  const auto noise = Noise((size_t{33} << 20) + 5);  // three parts
  const ByteSpan buffers[] = {ByteSpan(noise).first(7), ByteSpan(noise).subspan(7)};
  Check(store->Write("large", buffers));
  CHECK(store->Stat("large", {})->bytes == static_cast<int64_t>(noise.size()));
  std::vector<std::byte> back(noise.size());
  Check(store->Read("large", 0, back, {}));
  CHECK(back == noise);
  Check(store->Remove("large"));
}

TEST_CASE("more objects than a page of the listing are all listed") {
  if (!HaveServer()) return;
  const auto store = Opened("s3://" + Bucket() + "/many");
  const std::byte byte{1};
  const ByteSpan buffer(&byte, 1);
  for (int i = 0; i < 1005; ++i) Check(store->Write(std::to_string(10000 + i), {&buffer, 1}));
  const auto listed = store->List("1", 2000, {});
  Check(listed.status());
  CHECK(listed->size() == 1005);
  CHECK(listed->back().name == "11004");
}

TEST_CASE("a job reads shards by a pattern, and notices that one has changed") {
  if (!HaveServer()) return;
  std::string cache = "/tmp/atoll_s3_calls_XXXXXX";
  REQUIRE(mkdtemp(cache.data()) != nullptr);
  setenv("ATOLL_DATA_CACHE", cache.c_str(), 1);
  const auto kept = [&] {
    return std::distance(std::filesystem::directory_iterator(cache + "/blocks"),
                         std::filesystem::directory_iterator());
  };
  std::vector<uint16_t> tokens(1 << 20);  // 2 MB: 32 blocks
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i % 50000);
  const auto store = Opened("s3://" + Bucket() + "/data");
  const ByteSpan buffer = std::as_bytes(std::span(tokens));
  Check(store->Write("a.bin", {&buffer, 1}));
  Check(store->Write("b.bin", {&buffer, 1}));
  DataSpec spec;
  spec.format = DataFormat::kTokens16;
  spec.path = "s3://" + Bucket() + "/data/?.bin";
  spec.sequence_length = 100;
  spec.validation_fraction = 0;
  const auto dataset = Dataset::Open(spec, 50000);
  Check(dataset.status());
  CHECK(dataset->train_sequences() == ((2 << 20) - 1) / 100);
  CHECK(Dataset::Open(spec, 50000)->digest() == dataset->digest());
  std::vector<int32_t> row(101);
  for (int64_t p = 0; p < 10; ++p) {
    Check(dataset->ReadTrain(p, row));
    const int64_t begin = dataset->Order(p) * 100;
    for (int64_t i = 0; i <= 100; ++i) {
      REQUIRE(row[static_cast<size_t>(i)] == (begin + i) % (1 << 20) % 50000);
    }
  }
  CHECK(kept() <= 2 + 2 * 10);  // with the first bytes, which identify the format
  tokens[5] = 7;
  Check(store->Write("a.bin", {&buffer, 1}));
  Check(store->Write("b.bin", {&buffer, 1}));
  CHECK(Dataset::Open(spec, 50000)->digest() != dataset->digest());
  absl::Status status;
  for (int64_t p = 10; p < 100 && status.ok(); ++p) status = dataset->ReadTrain(p, row);
  CHECK(absl::IsDataLoss(status));
  std::filesystem::remove_all(cache);
}

TEST_CASE("a bucket that is not there, and a server that is not there, are named") {
  if (!HaveServer()) return;
  const auto missing = Opened("s3://no-such-bucket");
  const std::byte byte{1};
  const ByteSpan buffer(&byte, 1);
  const absl::Status status = missing->Write("x", {&buffer, 1});
  CHECK(absl::IsFailedPrecondition(status));
  CHECK(absl::IsFailedPrecondition(missing->Stat("x", {}).status()));
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("no-such-bucket"));

  S3Options options;
  options.bucket = "b";
  options.access = {.key_id = "k", .secret = "s", .endpoint = "http://127.0.0.1:1"};
  std::vector<int64_t> pauses;
  options.retry.sleep = [&](int64_t ms) { pauses.push_back(ms); };
  CHECK(absl::IsUnavailable(NewS3Store(options)->Stat("x", {}).status()));
  REQUIRE(pauses.size() == 4);  // five tries
  CHECK(pauses[3] >= 1600);
}

}  // namespace
}  // namespace atl
