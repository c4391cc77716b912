#include "worker/state/tier_store.h"

#include <xxhash.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "tests/faults/io_faults.h"
#include "worker/state/saved_jobs.h"

namespace atl::worker {
namespace {

namespace fs = std::filesystem;

struct Fixture {
  Fixture() {
    folder = (fs::temp_directory_path() / "tiers-XXXXXX").string();
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    store = Open();
  }
  ~Fixture() { fs::remove_all(folder); }
  std::unique_ptr<TierStore> Open() {
    return std::make_unique<TierStore>(*OpenObjectStore(folder), "job-1", Tier::kRemote);
  }
  std::string FindFilePath(const std::string& part) const {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file() && entry.path().string().find(part) != std::string::npos) {
        return entry.path().string();
      }
    }
    FAIL("no file " << part);
    return "";
  }
  // And makes its checksum anew.
  void ReplaceInManifest(const std::string& from, const std::string& to) const {
    const std::string path = FindFilePath("manifest");
    std::ifstream file(path, std::ios::binary);
    std::string line;
    REQUIRE(std::getline(file, line));
    const size_t at = line.find(from);
    REQUIRE(at != std::string::npos);
    line = line.replace(at, from.size(), to) + "\n";
    std::ofstream(path, std::ios::binary) << line << XXH3_64bits(line.data(), line.size()) << "\n";
  }
  size_t files() const {
    size_t count = 0;
    for (const fs::directory_entry& e : fs::recursive_directory_iterator(folder)) {
      count += e.is_regular_file();
    }
    return count;
  }
  std::string folder;
  std::unique_ptr<TierStore> store;
};

StoredUnit MakeUnit(int32_t layer, Range elements, float first) {
  const auto parts = std::make_shared<OwnedParts>(elements.size(), kAllParts);
  for (const auto& [part, values] : ToPartMap(parts->parts())) {
    std::iota(values.begin(), values.end(), first + 1000.0f * static_cast<float>(part));
  }
  return {{{layer, 0, {1}}, elements}, 2'000'000, parts};
}

const Range kLarge{100, 1'500'100};  // two chunks

TEST_CASE("units come back by ranges, from another process too") {
  Fixture f;
  REQUIRE(
      f.store->Write("w1", 7, 40, {MakeUnit(0, kLarge, 1), MakeUnit(1, {0, 10}, 2)}, {}, nullptr)
          .ok());
  REQUIRE(f.store->Write("w2", 7, 40, {MakeUnit(2, {0, 10}, 3)}, {}, nullptr).ok());
  const auto other = f.Open();
  std::vector<std::string> problems;
  const auto saves = other->List(4, &problems, nullptr);
  REQUIRE(saves.status().message() == "");
  REQUIRE(problems.empty());
  REQUIRE(saves->size() == 1);
  REQUIRE(saves->at(0).optimizer_step == 40);
  REQUIRE(saves->at(0).units.size() == 3);
  const Range wanted{1'048'000, 1'049'500};  // over a chunk's end
  const OwnedParts parts(wanted.size(), kAllParts);
  REQUIRE(other->Read(7, {0, 0, {1}}, wanted, parts.parts(), nullptr).message() == "");
  for (const auto& [part, values] : ToPartMap(parts.parts())) {
    const float first = 1 + 1000.0f * static_cast<float>(part);
    REQUIRE(values.front() == first + static_cast<float>(wanted.begin - kLarge.begin));
    REQUIRE(values.back() == first + static_cast<float>(wanted.end - 1 - kLarge.begin));
  }
  REQUIRE(other->Has(7, {0, 0, {1}}, wanted));
  REQUIRE(!other->Has(7, {0, 0, {1}}, {0, 200}));
  REQUIRE(absl::IsNotFound(other->Read(8, {0, 0, {1}}, wanted, parts.parts(), nullptr)));
}

TEST_CASE("other saves of an owner are removed when it says so, the newest is listed first") {
  Fixture f;
  for (const int64_t save : {5, 6, 7}) {
    for (const NodeId worker : {"w1", "w2"}) {
      const int32_t layer = worker == "w1" ? 0 : 1;
      REQUIRE(f.store->Write(worker, save, save, {MakeUnit(layer, {0, 10}, 1)}, {}, nullptr).ok());
    }
  }
  REQUIRE(f.store->RemoveAllBut("w1", 7, nullptr).ok());
  std::vector<std::string> problems;
  const auto saves = *f.store->List(2, &problems, nullptr);
  REQUIRE(saves.size() == 2);
  REQUIRE(saves[0].save == 7);
  REQUIRE(saves[0].units.size() == 2);
  REQUIRE(saves[1].save == 6);
  REQUIRE(saves[1].units.size() == 1);
  REQUIRE(f.files() == 8);
}

TEST_CASE("residuals_come_back_by_ranges_of_any_cut") {
  Fixture f;
  const auto residual = [](int32_t layer, ElementRange range) {
    auto values = std::make_shared<std::vector<float>>(range.size());
    std::iota(values->begin(), values->end(), static_cast<float>(range.begin));
    return StoredResidual{layer, range, values};
  };
  constexpr int64_t kMany = (int64_t{1} << 20) + 5;  // two chunks
  REQUIRE(f.store->Write("w1", 7, 40, {MakeUnit(0, {0, 10}, 1)}, {residual(0, {0, kMany})}, nullptr)
              .ok());
  REQUIRE(f.store
              ->Write("w2", 7, 40, {MakeUnit(1, {0, 10}, 1)},
                      {residual(0, {kMany, kMany + 7}), residual(1, {0, 3})}, nullptr)
              .ok());
  const std::unique_ptr<TierStore> other = f.Open();
  std::vector<std::string> problems;
  REQUIRE(other->List(4, &problems, nullptr).ok());
  const ElementRange wanted{kMany - 9, kMany + 9};
  std::vector<float> values(18, -1.0f);
  ElementRanges found;
  REQUIRE(other->ReadResidual(7, 0, wanted, values, &found, nullptr).ok());
  CHECK(found.Missing(wanted) == std::vector<ElementRange>{{kMany + 7, kMany + 9}});
  for (int64_t i = 0; i < 16; ++i) {
    REQUIRE(values[static_cast<size_t>(i)] == static_cast<float>(wanted.begin + i));
  }
  CHECK(values[16] == -1);
  ElementRanges none;
  REQUIRE(other->ReadResidual(8, 0, wanted, values, &none, nullptr).ok());
  CHECK(none.empty());
  std::ofstream(f.FindFilePath("residual-1-0-3"), std::ios::binary) << "twelve bytes";
  CHECK(absl::IsDataLoss(
      other->ReadResidual(7, 1, {0, 3}, std::span(values).first(3), &none, nullptr)));
}

TEST_CASE("damage is found, and said where") {
  Fixture f;
  REQUIRE(f.store->Write("w1", 7, 40, {MakeUnit(0, {0, 10}, 1)}, {}, nullptr).ok());
  std::vector<std::string> problems;
  SECTION("of a unit") {
    {
      std::fstream file(f.FindFilePath("unit-0-0"),
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(45);
      file.put('x');
    }
    REQUIRE(f.store->List(1, &problems, nullptr).ok());
    const OwnedParts parts(10, kAllParts);
    const absl::Status read = f.store->Read(7, {0, 0, {1}}, {0, 10}, parts.parts(), nullptr);
    REQUIRE(absl::IsDataLoss(read));
    REQUIRE(read.message().find("unit-0-0-of-1-0-10 is damaged") != std::string::npos);
  }
  SECTION("of a manifest") {
    {
      std::fstream file(f.FindFilePath("manifest"),
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(3);
      file.put('x');
    }
    REQUIRE(f.store->List(1, &problems, nullptr)->empty());
    REQUIRE(problems.size() == 1);
  }
  SECTION("of a manifest with the right checksum, that names a shard that cannot be") {
    const auto [from, to] =
        GENERATE(std::pair{"\"rank\":0", "\"rank\":1"}, std::pair{"\"rank\":0", "\"rank\":-1"},
                 std::pair{"\"layer\":0", "\"layer\":-1"},
                 std::pair{"shares\":[1]", "shares\":[0]"}, std::pair{"step\":40", "step\":-4"});
    f.ReplaceInManifest(from, to);
    REQUIRE(f.store->List(1, &problems, nullptr)->empty());
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].find("that cannot be") != std::string::npos);
  }
  SECTION("of a manifest with the right checksum, whose numbers are no integers") {
    const auto [from, to] = GENERATE(std::pair{"step\":40", "step\":4.5"},
                                     std::pair{"xxh3\":[[", "xxh3\":[[150344821391391295848,"});
    f.ReplaceInManifest(from, to);
    REQUIRE(f.store->List(1, &problems, nullptr)->empty());
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].find("no integer") != std::string::npos);
  }
  SECTION("a unit that is cut off") {
    REQUIRE(f.store->List(1, &problems, nullptr).ok());
    fs::resize_file(f.FindFilePath("unit-0-0"), 60);
    const OwnedParts parts(10, kAllParts);
    REQUIRE(!f.store->Read(7, {0, 0, {1}}, {0, 10}, parts.parts(), nullptr).ok());
  }
}

TEST_CASE("a place that cannot be written leaves what is there") {
  Fixture f;
  REQUIRE(f.store->Write("w1", 7, 40, {MakeUnit(0, {0, 10}, 1)}, {}, nullptr).ok());
  std::ofstream(f.folder + "/job-1/save-8") << "in the way";
  const absl::Status written = f.store->Write("w1", 8, 44, {MakeUnit(0, {0, 10}, 1)}, {}, nullptr);
  REQUIRE(!written.ok());
  REQUIRE(written.message().find("save-8") != std::string::npos);
  std::vector<std::string> problems;
  REQUIRE(f.store->List(4, &problems, nullptr)->size() == 1);
}

// Holds more objects than a list may have.
class CrowdedStore : public ObjectStore {
 public:
  absl::StatusOr<ObjectInfo> Stat(const std::string& name, const CallOptions&) override {
    return absl::NotFoundError(name);
  }
  absl::Status Read(const std::string& name, int64_t, std::span<std::byte>,
                    const CallOptions&) override {
    return absl::NotFoundError(name);
  }
  absl::Status Write(const std::string&, std::span<const ByteSpan>) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<ObjectInfo>> List(const std::string& prefix, int64_t most,
                                               const CallOptions&) override {
    return std::vector<ObjectInfo>(static_cast<size_t>(std::min<int64_t>(most, 1 << 21)),
                                   ObjectInfo{prefix + "1/w1/unit"});
  }
  absl::Status Remove(const std::string&) override { return absl::OkStatus(); }
  std::string url() const override { return "crowded"; }
};

TEST_CASE("objects_beyond_what_a_list_may_have_are_not_left_out_in_silence") {
  TierStore store(std::make_shared<CrowdedStore>(), "job-1", Tier::kRemote);
  std::vector<std::string> problems;
  CHECK(absl::IsResourceExhausted(store.List(4, &problems, nullptr).status()));
  CHECK(absl::IsResourceExhausted(store.RemoveAllBut("w1", 1, nullptr)));
}

TEST_CASE("jobs_that_a_disk_holds_are_all_named_or_none") {
  Fixture f;
  for (const char* job : {"job-1", "job-2"}) fs::create_directories(f.folder + "/" + job);
  CHECK(*SavedJobs(f.folder) == std::vector<JobId>{"job-1", "job-2"});
  CHECK(SavedJobs(f.folder + "/none")->empty());
  for (const char* call : {"opendir", "readdir", "stat"}) {
    const InjectedFault fault({f.folder, call, EIO, /*at=*/call[0] == 'r' ? 3 : 1});
    CHECK_FALSE(SavedJobs(f.folder).ok());
  }
}

}  // namespace
}  // namespace atl::worker
