#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "common/testing/files_simulated.h"
#include "worker/data/dataset.h"
#include "worker/data/permutation.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;

// ---- vocabulary of these tests ----

class Folder {
 public:
  Folder() {
    path_ = std::filesystem::temp_directory_path() / "atoll_data_test_XXXXXX";
    std::string name = path_.string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string Counting(int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(i));
  return text;
}

std::string LlmcFile(int32_t version, int32_t said, const std::vector<uint16_t>& tokens) {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = version;
  header[2] = said;
  return Raw(header) + Raw(tokens);
}

std::string MegatronIndexFile(uint8_t code, const std::vector<int32_t>& sizes,
                              const std::vector<int64_t>& pointers, uint64_t said_sequences) {
  const std::vector<int64_t> documents = {0, static_cast<int64_t>(sizes.size())};
  return std::string("MMIDIDX\0\0", 9) + Raw<uint64_t>({1}) + static_cast<char>(code) +
         Raw<uint64_t>({said_sequences, documents.size()}) + Raw(sizes) + Raw(pointers) +
         Raw(documents);
}

std::vector<int32_t> ReadAllTokens(const TokenFile& file, int64_t vocabulary = 65536) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.tokens()));
  const absl::Status status = file.Read(0, vocabulary, tokens);
  INFO(status.message());
  REQUIRE(status.ok());
  return tokens;
}

std::string WhyNot(DataFormat format, const std::string& path) {
  const auto file = TokenFile::Open(format, path);
  REQUIRE_FALSE(file.ok());
  return std::string(file.status().message());
}

DataSpec Text(const std::string& path, int64_t sequence_length, double validation_fraction) {
  DataSpec spec;
  spec.path = path;
  spec.sequence_length = sequence_length;
  spec.validation_fraction = validation_fraction;
  return spec;
}

Dataset Opened(const DataSpec& spec) {
  auto dataset = Dataset::Open(spec, 256);
  INFO(dataset.status().message());
  REQUIRE(dataset.ok());
  return *std::move(dataset);
}

// ---- formats ----

TEST_CASE("text is read as bytes, also the upper half") {
  Folder folder;
  const auto file = TokenFile::Open(DataFormat::kText, folder.Write("a.txt", "A\xff\n"));
  REQUIRE(ReadAllTokens(*file) == std::vector<int32_t>{65, 255, 10});
}

TEST_CASE("nanoGPT's bin has no header, llm.c's has one") {
  Folder folder;
  const std::vector<uint16_t> tokens = {1, 50256, 65535};
  const std::vector<int32_t> expected = {1, 50256, 65535};
  REQUIRE(ReadAllTokens(*TokenFile::Open(DataFormat::kTokens16,
                                         folder.Write("nano.bin", Raw(tokens)))) == expected);
  REQUIRE(ReadAllTokens(*TokenFile::Open(DataFormat::kTokens16,
                                         folder.Write("llmc.bin", LlmcFile(1, 3, tokens)))) ==
          expected);
}

TEST_CASE("an llm.c header that lies is refused") {
  Folder folder;
  REQUIRE_THAT(WhyNot(DataFormat::kTokens16, folder.Write("a.bin", LlmcFile(1, 4, {1, 2, 3}))),
               Contains("a.bin: its header says 4 tokens") && Contains("says 3"));
  REQUIRE_THAT(WhyNot(DataFormat::kTokens16, folder.Write("b.bin", LlmcFile(1, -1, {1}))),
               Contains("-1 tokens"));
  REQUIRE_THAT(WhyNot(DataFormat::kTokens16, folder.Write("c.bin", LlmcFile(7, 5, {1}))),
               Contains("version 7"));
  REQUIRE_THAT(WhyNot(DataFormat::kTokens16, folder.Write("d.bin", "odd")),
               Contains("not whole tokens of 2 bytes"));
}

TEST_CASE("Megatron pairs are found by either name and read at every width") {
  Folder folder;
  folder.Write("m.bin", Raw<int32_t>({5, 70000, 7}));
  const std::string index = folder.Write("m.idx", MegatronIndexFile(4, {2, 1}, {0, 8}, 2));
  const std::string stem = index.substr(0, index.size() - 4);
  for (const std::string& path : {stem, stem + ".bin", stem + ".idx"}) {
    REQUIRE(ReadAllTokens(*TokenFile::Open(DataFormat::kMegatron, path), 1 << 20) ==
            std::vector<int32_t>{5, 70000, 7});
  }
  folder.Write("w.bin", Raw<int64_t>({3, 4}));
  REQUIRE(ReadAllTokens(*TokenFile::Open(
              DataFormat::kMegatron, folder.Write("w.idx", MegatronIndexFile(5, {2}, {0}, 1)))) ==
          std::vector<int32_t>{3, 4});
  folder.Write("u.bin", Raw<uint16_t>({65535}));
  REQUIRE(ReadAllTokens(*TokenFile::Open(
              DataFormat::kMegatron, folder.Write("u.idx", MegatronIndexFile(8, {1}, {0}, 1)))) ==
          std::vector<int32_t>{65535});
}

TEST_CASE("a hostile Megatron index is refused before its numbers are believed") {
  Folder folder;
  folder.Write("m.bin", Raw<uint16_t>({1, 2, 3}));
  const auto why = [&](const std::string& index) {
    return WhyNot(DataFormat::kMegatron, folder.Write("m.idx", index));
  };
  REQUIRE_THAT(why(MegatronIndexFile(8, {3}, {0}, uint64_t{1} << 62)), Contains("do not fit"));
  REQUIRE_THAT(why(MegatronIndexFile(8, {3}, {0}, 2)), Contains("header says"));
  REQUIRE_THAT(why(MegatronIndexFile(8, {INT32_MAX}, {0}, 1)), Contains("sequence 0 has size"));
  REQUIRE_THAT(why(MegatronIndexFile(8, {-1}, {0}, 1)), Contains("sequence 0 has size -1"));
  REQUIRE_THAT(why(MegatronIndexFile(8, {1, 2}, {0, 400}, 2)), Contains("at byte 400"));
  REQUIRE_THAT(why(MegatronIndexFile(8, {2}, {0}, 1)), Contains("6 bytes, but its index says 4"));
  REQUIRE_THAT(why(MegatronIndexFile(6, {3}, {0}, 1)), Contains("dtype code 6"));
  REQUIRE_THAT(why("MMIDIDX"), Contains("too short"));
  REQUIRE_THAT(why(std::string(40, 'x')), Contains("does not start with"));
  const std::string whole = MegatronIndexFile(8, {3}, {0}, 1);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) why(whole.substr(0, bytes));
}

TEST_CASE("a missing file and a token outside the vocabulary are named with the place") {
  Folder folder;
  REQUIRE_THAT(WhyNot(DataFormat::kText, "/nowhere/text"), Contains("/nowhere/text: cannot open"));
  const auto file =
      TokenFile::Open(DataFormat::kTokens16, folder.Write("t.bin", Raw<uint16_t>({1, 9, 100})));
  std::vector<int32_t> out(2);
  const absl::Status status = file->Read(1, 100, out);
  REQUIRE_THAT(std::string(status.message()),
               Contains("t.bin: token 2 is outside the model's vocabulary of 100"));
}

// ---- sequences ----

TEST_CASE("every training sequence is visited once an epoch, each epoch in another order") {
  Folder folder;
  const Dataset dataset = Opened(Text(folder.Write("t", Counting(201)), 4, 0.2));
  REQUIRE(dataset.train_sequences() == 40);      // 161 tokens
  REQUIRE(dataset.validation_sequences() == 9);  // 40 tokens
  std::vector<std::vector<int32_t>> epochs(2);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::set<int32_t> starts;
    for (int64_t p = 0; p < 40; ++p) {
      std::vector<int32_t> row(5);
      REQUIRE(dataset.ReadTrain(epoch * 40 + p, row).ok());
      for (int i = 1; i < 5; ++i) REQUIRE(row[i] == row[0] + i);
      starts.insert(row[0]);
      epochs[epoch].push_back(row[0]);
    }
    REQUIRE(starts.size() == 40);
    REQUIRE(*starts.rbegin() + 4 == 160);
  }
  REQUIRE(epochs[0] != epochs[1]);
}

TEST_CASE("several rows at once are the single rows, and validation is the end of the file") {
  Folder folder;
  const Dataset dataset = Opened(Text(folder.Write("t", Counting(100)), 10, 0.3));
  std::vector<int32_t> both(22), one(11);
  REQUIRE(dataset.ReadTrain(4, both).ok());  // across the end of an epoch of 6
  REQUIRE(dataset.train_sequences() == 6);
  for (int r = 0; r < 2; ++r) {
    REQUIRE(dataset.ReadTrain(4 + r, one).ok());
    REQUIRE(std::equal(one.begin(), one.end(), both.begin() + r * 11));
  }
  REQUIRE(dataset.ReadValidation(1, one).ok());
  REQUIRE(one[0] == 80);
  REQUIRE(one[10] == 90);
}

TEST_CASE("validation may have its own file") {
  Folder folder;
  DataSpec spec = Text(folder.Write("t", Counting(50)), 7, 0.5);
  spec.validation_path = folder.Write("v", "validation text");
  const Dataset dataset = Opened(spec);
  REQUIRE(dataset.train_sequences() == 7);
  REQUIRE(dataset.validation_sequences() == 2);
  std::vector<int32_t> row(8);
  REQUIRE(dataset.ReadValidation(0, row).ok());
  REQUIRE(row[0] == 'v');
}

TEST_CASE("data that cannot make one sequence, and a vocabulary too small for bytes, are refused") {
  Folder folder;
  const std::string path = folder.Write("t", Counting(100));
  REQUIRE_THAT(std::string(Dataset::Open(Text(path, 90, 0.2), 256).status().message()),
               Contains("training part has 80 tokens; one sequence needs 91"));
  REQUIRE_THAT(std::string(Dataset::Open(Text(path, 50, 0.2), 256).status().message()),
               Contains("validation part has 20 tokens"));
  REQUIRE_THAT(std::string(Dataset::Open(Text(path, 10, 0.2), 255).status().message()),
               Contains("vocabulary is 255; it must be at least 256"));
  REQUIRE(Dataset::Open(Text(path, 99, 0), 256).ok());
}

TEST_CASE("digests of files, splits and shuffles differ, and those of copies agree") {
  Folder folder;
  const std::string text = Counting(100000);
  std::string changed = text;
  changed[0] ^= 1;
  const auto digest = [&](const std::string& bytes, uint64_t seed, double fraction) {
    DataSpec spec = Text(folder.Write("t", bytes), 16, fraction);
    spec.shuffle_seed = seed;
    return Opened(spec).digest();
  };
  const std::set<uint64_t> digests = {digest(text, 1, 0.1), digest(changed, 1, 0.1),
                                      digest(text + "x", 1, 0.1), digest(text, 2, 0.1),
                                      digest(text, 1, 0.2)};
  REQUIRE(digests.size() == 5);
  REQUIRE(digest(text, 1, 0.1) == digest(text, 1, 0.1));
}

TEST_CASE("digest_covers_every_byte_of_a_file") {
  Folder folder;
  const std::string text = Counting(3'000'000);
  const uint64_t digest = Opened(Text(folder.Write("t", text), 16, 0.1)).digest();
  for (size_t at : {size_t{100}, size_t{60'001}, size_t{1'048'576}, text.size() - 1}) {
    std::string changed = text;
    changed[at] ^= 1;
    CHECK(Opened(Text(folder.Write("t", changed), 16, 0.1)).digest() != digest);
  }
}

TEST_CASE("token_outside_the_vocabulary_is_found_when_the_file_is_opened") {
  Folder folder;
  std::vector<uint16_t> tokens(600'000, 7);
  tokens[543'210] = 300;
  DataSpec spec = Text(folder.Write("t.bin", Raw(tokens)), 16, 0.1);
  spec.format = DataFormat::kTokens16;
  REQUIRE(Dataset::Open(spec, 301).ok());
  const absl::Status status = Dataset::Open(spec, 300).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(std::string(status.message()), Contains("token 543210 is outside"));
}

TEST_CASE("fifo_folder_and_device_as_data_are_refused_without_waiting") {
  Folder folder;
  const std::string fifo = folder.Write("there", "") + ".fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0644) == 0);
  CHECK_THAT(WhyNot(DataFormat::kText, fifo), Contains("is a FIFO, not a regular file"));
  CHECK_THAT(WhyNot(DataFormat::kText, "/tmp"), Contains("is a folder"));
  CHECK_THAT(WhyNot(DataFormat::kText, "/dev/zero"), Contains("is a device"));
}

TEST_CASE("reading_a_file_whole_ends_when_it_is_cancelled") {
  Folder folder;
  DataOptions options;
  options.watch.cancelled = [] { return true; };
  const DataSpec spec = Text(folder.Write("t", Counting(1000)), 16, 0.1);
  CHECK(absl::IsAborted(Dataset::Open(spec, 256, options).status()));
}

TEST_CASE("known_file_is_not_read_again_until_it_changes") {
  Folder folder;
  SimulatedFiles disk(1);
  const std::string path = folder.Write("t", Counting(1000));
  const DataSpec spec = Text(path, 16, 0.1);
  const auto opened = [&](bool may_read) {
    DigestCache cache(disk, "digests");  // as after a restart
    DataOptions options;
    options.digests = &cache;
    options.watch.cancelled = [&] { return !may_read; };
    return Dataset::Open(spec, 256, options).ok();
  };
  // Neither path nor file is older than seconds: nothing is kept.
  REQUIRE(opened(true));
  CHECK_FALSE(opened(false));
  const auto file = TokenFile::Open(DataFormat::kText, path);
  REQUIRE(file.ok());
  FileIdentity aged = file->identity();
  aged.modified_ns -= 1'000'000'000'000;
  aged.changed_ns -= 1'000'000'000'000;
  const TokenFileContent content{1, 2, 3, 4, 5};
  DigestCache(disk, "digests").Store(file->Key(), aged, content);
  CHECK(DigestCache(disk, "digests").Find(file->Key(), aged) == content);
  CHECK_FALSE(DigestCache(disk, "digests").Find(file->Key(), file->identity()));
  disk.Bytes("digests")[20] ^= std::byte{1};
  CHECK_FALSE(DigestCache(disk, "digests").Find(file->Key(), aged));
}

TEST_CASE("a permutation reaches everything once, for every size, and the order never changes") {
  for (const int64_t size : {1, 2, 3, 4, 5, 16, 17, 1000, 4097}) {
    std::set<int64_t> seen;
    const Permutation order(size, 99);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t to = order(i);
      REQUIRE((to >= 0 && to < size));
      seen.insert(to);
    }
    REQUIRE(static_cast<int64_t>(seen.size()) == size);
  }
  const Permutation order(1000, 1);
  const std::vector<int64_t> first = {order(0), order(1), order(2), order(3)};
  const std::vector<int64_t> pinned = {139, 615, 563, 688};
  REQUIRE(first == pinned);
}

}  // namespace
}  // namespace atl
