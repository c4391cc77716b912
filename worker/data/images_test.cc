#include "worker/data/images.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "worker/data/dataset.h"

namespace atl {
namespace {

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "atoll_images_test") {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  const std::filesystem::path path_;
};

absl::StatusOr<ImageSet> OpenSet(DataFormat format, const std::string& path, int64_t classes) {
  DataSpec spec;
  spec.format = format;
  return ImageSet::Open(spec, path, classes);
}

std::string BigEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

// Pixel p of image i is 16 i + p; its label is i.
std::string Idx(const Folder& folder, uint32_t images, uint32_t side, uint32_t labels) {
  std::string pixels = BigEndian(0x803) + BigEndian(images) + BigEndian(side) + BigEndian(side);
  for (uint32_t i = 0; i < images; ++i) {
    for (uint32_t p = 0; p < side * side; ++p) pixels += static_cast<char>(16 * i + p);
  }
  std::string classes = BigEndian(0x801) + BigEndian(labels);
  for (uint32_t i = 0; i < labels; ++i) classes += static_cast<char>(i);
  folder.Write("train-labels-idx1-ubyte", classes);
  return folder.Write("train-images-idx3-ubyte", pixels);
}

std::vector<int32_t> Row(const ImageSet& set, int64_t index, const ImageChange& change = {},
                         uint64_t seed = 0) {
  std::vector<int32_t> row(static_cast<size_t>(set.shape().pixels() + 1));
  set.Read(index, change, Rng(seed), row);
  return row;
}

TEST_CASE("idx_files_are_read_with_their_labels") {
  const Folder folder;
  const auto set = OpenSet(DataFormat::kIdx, Idx(folder, 3, 2, 3), 10);
  REQUIRE(set.status().message() == "");
  CHECK(set->shape() == ImageShape{2, 2, 1});
  CHECK(set->images() == 3);
  CHECK(Row(*set, 2) == std::vector<int32_t>{32, 33, 34, 35, 2});
}

TEST_CASE("cifar_files_become_rows_of_pixels_with_channels_side_by_side") {
  const Folder folder;
  const int labels = GENERATE(1, 2);
  std::string bytes;
  for (int image = 0; image < 2; ++image) {
    if (labels == 2) bytes += '\x13';
    bytes += static_cast<char>(image + 4);
    for (int channel = 0; channel < 3; ++channel)
      bytes += std::string(1024, static_cast<char>(channel + 10 * image));
  }
  const DataFormat format = labels == 1 ? DataFormat::kCifar10 : DataFormat::kCifar100;
  const auto set = OpenSet(format, folder.Write("data.bin", bytes), 10);
  REQUIRE(set.status().message() == "");
  REQUIRE(set->images() == 2);
  const std::vector<int32_t> row = Row(*set, 1);
  CHECK(std::vector(row.begin(), row.begin() + 6) == std::vector<int32_t>{10, 11, 12, 10, 11, 12});
  CHECK(row.back() == 5);
}

TEST_CASE("files_that_are_not_what_they_should_be_are_refused") {
  const Folder folder;
  const std::string good = Idx(folder, 3, 2, 3);
  CHECK(absl::IsInvalidArgument(OpenSet(DataFormat::kIdx, good, 2).status()));  // a label
  CHECK(absl::IsInvalidArgument(OpenSet(DataFormat::kIdx, Idx(folder, 3, 2, 2), 10).status()));
  const std::string huge =
      BigEndian(0x803) + BigEndian(0xffffffff) + BigEndian(0xffffffff) + BigEndian(0xffffffff);
  for (const std::string& bytes :
       {std::string(), std::string("abc"), BigEndian(0x801) + BigEndian(1) + "a", huge,
        BigEndian(0x803) + BigEndian(1) + BigEndian(2) + BigEndian(2) + "abc"}) {
    const std::string path = folder.Write("train-images-idx3-ubyte", bytes);
    CHECK(absl::IsInvalidArgument(OpenSet(DataFormat::kIdx, path, 10).status()));
  }
  const std::string short_file = folder.Write("x.bin", std::string(3072, 'a'));
  CHECK(absl::IsInvalidArgument(OpenSet(DataFormat::kCifar10, short_file, 10).status()));
  CHECK_FALSE(OpenSet(DataFormat::kIdx, "/nowhere/images", 10).ok());
}

TEST_CASE("crops_and_flips_follow_the_seed") {
  const Folder folder;
  const auto set = OpenSet(DataFormat::kIdx, Idx(folder, 2, 3, 2), 10);
  REQUIRE(set.ok());
  std::set<std::vector<int32_t>> crops, flips;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    crops.insert(Row(*set, 1, {.crop_padding = 1}, seed));
    flips.insert(Row(*set, 1, {.flip = true}, seed));
    CHECK(Row(*set, 1, {1, true}, seed) == Row(*set, 1, {1, true}, seed));
  }
  CHECK(crops.size() == 9);
  CHECK(crops.contains({0, 0, 0, 0, 16, 17, 0, 19, 20, 1}));
  CHECK(flips == std::set<std::vector<int32_t>>{{16, 17, 18, 19, 20, 21, 22, 23, 24, 1},
                                                {18, 17, 16, 21, 20, 19, 24, 23, 22, 1}});
}

TEST_CASE("a_data_set_of_images_has_a_sample_a_sequence") {
  const Folder folder;
  DataSpec spec;
  spec.format = DataFormat::kIdx;
  spec.path = Idx(folder, 10, 2, 10);
  spec.sequence_length = 1;
  spec.validation_fraction = 0.2;
  const auto data = Dataset::Open(spec, 10);
  REQUIRE(data.status().message() == "");
  CHECK(data->row() == 5);
  CHECK(data->train_sequences() == 8);
  CHECK(data->validation_sequences() == 2);
  std::vector<int32_t> rows(8 * 5), held_out(2 * 5);
  REQUIRE(data->ReadTrain(8, rows).ok());
  std::set<int32_t> labels;
  for (size_t r = 0; r < 8; ++r) labels.insert(rows[r * 5 + 4]);
  CHECK(labels == std::set<int32_t>{0, 1, 2, 3, 4, 5, 6, 7});
  REQUIRE(data->ReadValidation(0, held_out).ok());
  CHECK(held_out[4] + held_out[9] == 8 + 9);
  spec.flip = true;
  CHECK(Dataset::Open(spec, 10)->digest() != data->digest());
}

}  // namespace
}  // namespace atl
