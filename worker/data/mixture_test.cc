#include "worker/data/mixture.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "worker/data/dataset.h"

namespace atl {
namespace {

class Folder {
 public:
  Folder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "atoll_mixture_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  // A file of so many bytes, all this letter.
  std::string Write(char letter, int bytes) const {
    const std::string path = (path_ / std::string(1, letter)).string();
    std::ofstream(path) << std::string(static_cast<size_t>(bytes), letter);
    return path;
  }

 private:
  std::filesystem::path path_;
};

TEST_CASE("mixture_has_each_source_in_its_share_of_every_stretch_and_counts_its_positions") {
  const Mixture mixture(std::vector<double>{2, 1, 5});
  std::vector<int64_t> seen(3);
  for (int64_t position = 0; position < 3 * Mixture::kPeriod; ++position) {
    const Mixture::Location location = mixture.At(position);
    REQUIRE(location.index == seen.at(location.source)++);
    const auto count = static_cast<double>(position + 1);
    const double shares[] = {count * 2 / 8, count / 8, count * 5 / 8};
    for (size_t s = 0; s < 3; ++s) CHECK(std::abs(static_cast<double>(seen[s]) - shares[s]) < 2);
  }
  CHECK(seen == std::vector<int64_t>{750, 375, 1875});
}

TEST_CASE("mixture_gives_the_smallest_weight_a_position_and_one_source_all") {
  const Mixture unequal(std::vector<double>{1e-9, 1, 1e-9});
  std::vector<int64_t> seen(3);
  for (int64_t p = 0; p < Mixture::kPeriod; ++p) ++seen.at(unequal.At(p).source);
  CHECK(seen == std::vector<int64_t>{1, Mixture::kPeriod - 2, 1});
  const Mixture one;
  for (const int64_t p : {int64_t{0}, int64_t{999}, int64_t{1000}, int64_t{1} << 40}) {
    CHECK(one.At(p).source == 0);
    CHECK(one.At(p).index == p);
  }
}

DataSpec TwoSources(const Folder& folder) {
  DataSpec spec;
  spec.sources = {{folder.Write('a', 801), 3}, {folder.Write('b', 401), 1}};
  spec.sequence_length = 4;
  spec.validation_fraction = 0.25;
  return spec;
}

TEST_CASE("dataset_of_a_mixture_reads_sources_by_weight_each_whole_in_its_epochs") {
  const Folder folder;
  const DataSpec spec = TwoSources(folder);
  const auto data = Dataset::Open(spec, 256);
  INFO(data.status().message());
  REQUIRE(data.ok());
  const int64_t of_a = 150, of_b = 75;  // three quarters of 801 and of 401 bytes
  REQUIRE(data->train_sequences() == of_a + of_b);
  std::map<int64_t, int> orders;
  std::map<char, int> letters;
  std::vector<int32_t> row(5);
  for (int64_t position = 0; position < 4 * of_b; ++position) {
    ++orders[data->Order(position)];
    REQUIRE(data->ReadTrain(position, row).ok());
    REQUIRE(std::set<int32_t>(row.begin(), row.end()).size() == 1);
    const char letter = static_cast<char>(row[0]);
    REQUIRE(letter == (data->Order(position) < of_a ? 'a' : 'b'));
    ++letters[letter];
  }
  CHECK(letters['a'] == 225);
  CHECK(letters['b'] == of_b);
  // One epoch of b, one and a half of a.
  for (const auto& [order, times] : orders) CHECK((order < of_a ? times >= 1 : times == 1));
  CHECK(std::ssize(orders) == of_a + of_b);
}

TEST_CASE("several_rows_of_a_mixture_are_those_of_their_positions_and_of_every_axis") {
  const Folder folder;
  const auto data = Dataset::Open(TwoSources(folder), 256);
  REQUIRE(data.ok());
  std::vector<int32_t> rows(20 * 5), row(5), there(20 * 5);
  REQUIRE(data->ReadTrain(990, rows).ok());
  REQUIRE(data->ReadTrain(3 * kAxisPositions + 990, there).ok());
  CHECK(rows == there);
  for (int64_t r = 0; r < 20; ++r) {
    REQUIRE(data->ReadTrain(990 + r, row).ok());
    CHECK(std::equal(row.begin(), row.end(), rows.begin() + r * 5));
  }
}

TEST_CASE("weights_and_order_of_sources_are_part_of_the_digest") {
  const Folder folder;
  DataSpec spec = TwoSources(folder);
  const uint64_t digest = Dataset::Open(spec, 256)->digest();
  CHECK(Dataset::Open(spec, 256)->digest() == digest);
  spec.sources[0].weight = 2;
  CHECK(Dataset::Open(spec, 256)->digest() != digest);
  spec.sources[0].weight = 3;
  std::swap(spec.sources[0], spec.sources[1]);
  CHECK(Dataset::Open(spec, 256)->digest() != digest);
}

// The letters of the sequences at a set's positions, by how many.
std::map<char, int> CountLetters(const Dataset& data, int set, int64_t wanted) {
  std::map<char, int> letters;
  const PositionRange positions = data.SelectValidationPositions(set, wanted);
  std::vector<int32_t> row(5);
  for (int64_t location = positions.begin; location < positions.end; ++location) {
    REQUIRE(data.ReadValidation(location, row).ok());
    ++letters[static_cast<char>(row[0])];
  }
  return letters;
}

TEST_CASE("held_out_part_of_a_mixture_is_that_of_all_sources_and_named_sets_follow_it") {
  const Folder folder;
  DataSpec spec = TwoSources(folder);
  spec.validation = {{"c", folder.Write('c', 41)}, {"d", folder.Write('d', 81)}};
  const auto data = Dataset::Open(spec, 256);
  INFO(data.status().message());
  REQUIRE(data.ok());
  CHECK(CountLetters(*data, 0, 0) == std::map<char, int>{{'a', 49}, {'b', 24}});
  CHECK(CountLetters(*data, 1, 0) == std::map<char, int>{{'c', 10}});
  CHECK(CountLetters(*data, 2, 0) == std::map<char, int>{{'d', 20}});
  CHECK(CountLetters(*data, 2, 7) == std::map<char, int>{{'d', 7}});
  CHECK(data->validation_sequences() == 73 + 10 + 20);
  // Any first ones of the held-out part have both.
  CHECK(CountLetters(*data, 0, 12).size() == 2);
}

TEST_CASE("a_validation_set_or_source_without_a_sequence_is_refused_by_its_path") {
  const Folder folder;
  DataSpec spec = TwoSources(folder);
  spec.validation = {{"c", folder.Write('c', 4)}};
  const auto set = Dataset::Open(spec, 256).status();
  CHECK(absl::IsInvalidArgument(set));
  CHECK(set.message().find(spec.validation[0].path) != std::string::npos);
  spec.validation.clear();
  spec.sources[1].path = folder.Write('e', 4);
  const auto source = Dataset::Open(spec, 256).status();
  CHECK(absl::IsInvalidArgument(source));
  CHECK(source.message().find(spec.sources[1].path) != std::string::npos);
  spec.sources.clear();
  CHECK(absl::IsInvalidArgument(Dataset::Open(spec, 256).status()));
}

}  // namespace
}  // namespace atl
