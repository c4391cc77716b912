#include "worker/data/image_folder.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "worker/data/dataset.h"
#include "worker/data/inspection.h"
#include "worker/data/testing/image_encoders.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "atoll_image_folder_test") {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string Write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }
  std::string path() const { return path_; }

 private:
  const std::filesystem::path path_;
};

DataSpec Spec(const std::string& path, int64_t side) {
  DataSpec spec;
  spec.format = DataFormat::kImageFolder;
  spec.path = path;
  spec.image_size = side;
  spec.sequence_length = 1;
  return spec;
}

// Two classes; the second comes first by when it was written.
void WriteClasses(const Folder& folder, const std::string& below = "") {
  folder.Write(below + "dog/a.PNG", EncodePng(6, 4, 3));
  folder.Write(below + "dog/b.jpeg", EncodeJpeg(4, 6, 1));
  folder.Write(below + "cat/z.jpg", EncodeJpeg(9, 9, 3, true));
  folder.Write(below + "cat/notes.txt", "no image");
  folder.Write(below + "dog/more/x.png", "in no class's folder itself");
  folder.Write(below + "cat/.hidden.png", "no image");
  folder.Write(below + ".cache/x.png", "no image");
  folder.Write(below + "README", "no class");
}

RgbImage Decoded(const std::string& bytes) {
  const auto image = DecodeImage(bytes);
  REQUIRE(image.status().message() == "");
  return *image;
}

std::string Refused(const std::string& bytes) {
  const absl::Status status = DecodeImage(bytes).status();
  CHECK(absl::IsInvalidArgument(status));
  return std::string(status.message());
}

TEST_CASE("png_is_read_as_it_was_written_and_transparency_lies_on_black") {
  const int channels = GENERATE(1, 2, 3, 4);
  const RgbImage image = Decoded(EncodePng(5, 3, channels));
  REQUIRE(image.width == 5);
  REQUIRE(image.height == 3);
  REQUIRE(image.pixels.size() == 45);
  const bool grey = channels <= 2;
  for (int y = 0; y < 3; ++y) {
    for (int x = 0; x < 5; ++x) {
      for (int c = 0; c < 3; ++c) {
        const int sample = TestSample(x, y, grey ? 0 : c);
        const int alpha = channels % 2 == 0 ? TestSample(x, y, channels - 1) : 255;
        CHECK(image.pixels[static_cast<size_t>((y * 5 + x) * 3 + c)] ==
              (sample * alpha + 127) / 255);
      }
    }
  }
}

TEST_CASE("jpeg_is_read_as_it_was_written_but_for_its_losses") {
  const int channels = GENERATE(1, 3);
  const RgbImage image = Decoded(EncodeJpeg(9, 7, channels, GENERATE(false, true)));
  REQUIRE(image.width == 9);
  REQUIRE(image.height == 7);
  for (int y = 0; y < 7; ++y) {
    for (int x = 0; x < 9; ++x) {
      const int c = channels == 1 ? 0 : 1;
      const int got = image.pixels[static_cast<size_t>((y * 9 + x) * 3 + c)];
      CHECK(std::abs(got - TestSample(x, y, c)) <= 12);
    }
  }
}

TEST_CASE("an_image_of_the_wanted_size_stays_and_a_larger_one_keeps_its_middle_and_its_mean") {
  RgbImage image{8, 4, std::vector<uint8_t>(8 * 4 * 3, 200)};
  for (int y = 0; y < 4; ++y) {  // columns 2 to 5 are the middle
    for (int x = 2; x < 6; ++x) {
      for (int c = 0; c < 3; ++c)
        image.pixels[static_cast<size_t>((y * 8 + x) * 3 + c)] = static_cast<uint8_t>(10 * x + y);
    }
  }
  std::vector<uint8_t> same(4 * 4 * 3);
  ResizeToSquare(image, 4, same);
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 4; ++x)
      CHECK(same[static_cast<size_t>((y * 4 + x) * 3)] == 10 * (x + 2) + y);
  }
  std::vector<uint8_t> one(3);
  ResizeToSquare(image, 1, one);
  CHECK(std::abs(one[0] - 36) <= 1);  // the mean is 35 and 1.5
  std::vector<uint8_t> grown(7 * 7 * 3);
  ResizeToSquare(image, 7, grown);
  CHECK(std::is_sorted(grown.begin(), grown.begin() + 21));  // along a row it rises
}

TEST_CASE("files_that_are_no_images_are_refused_by_what_is_wrong") {
  CHECK_THAT(Refused(""), Contains("neither"));
  CHECK_THAT(Refused("GIF89a"), Contains("neither"));
  CHECK_THAT(Refused(EncodeJpeg(8, 8, 4)), Contains("CMYK"));
  const std::string jpeg = EncodeJpeg(64, 64, 3), png = EncodePng(64, 64, 3);
  CHECK_THAT(Refused(jpeg.substr(0, jpeg.size() / 2)), Contains("JPEG"));
  CHECK_THAT(Refused(jpeg.substr(0, 20)), Contains("JPEG"));
  CHECK_THAT(Refused(png.substr(0, png.size() / 2)), Contains("PNG"));
  CHECK_THAT(Refused(png.substr(0, 20)), Contains("PNG"));
}

TEST_CASE("sizes_that_a_head_only_announces_take_no_memory") {
  std::string jpeg = EncodeJpeg(8, 8, 3);
  const size_t frame = jpeg.find("\xff\xc0");
  REQUIRE(frame != std::string::npos);
  jpeg.replace(frame + 5, 4, "\xff\xdc\xff\xdc");  // height and width
  CHECK_THAT(Refused(jpeg), Contains("65500 x 65500"));
  // A PNG's head has a checksum, so this one is written: a row of many pixels is small.
  CHECK_THAT(Refused(EncodePng(static_cast<int>(kImageSourceSideMax) + 1, 1, 1)),
             Contains("32769 x 1"));
}

TEST_CASE("classes_are_numbered_by_name_and_each_file_is_a_sample") {
  const Folder folder;
  WriteClasses(folder);
  const auto listed = ListImageFolder(folder.path());
  REQUIRE(listed.status().message() == "");
  CHECK(listed->classes == std::vector<std::string>{"cat", "dog"});
  REQUIRE(listed->files.size() == 3);
  // dog/a.PNG, cat/z.jpg, dog/b.jpeg: classes are mixed.
  CHECK(listed->files[1].path == folder.path() + "/cat/z.jpg");
  CHECK(listed->files[2].label == 1);
  const std::string left_out = listed->left_out.Text();
  CHECK_THAT(left_out, Contains("leaves out 3: ") && Contains(folder.path() + "/README"));
  CHECK_THAT(left_out, Contains("/dog/more (") && Contains("/cat/notes.txt ("));

  const auto set = ImageSet::Open(Spec(folder.path(), 4), folder.path(), 2);
  REQUIRE(set.status().message() == "");
  CHECK(set->shape() == ImageShape{4, 4, 3});
  REQUIRE(set->images() == 3);
  std::vector<int32_t> row(4 * 4 * 3 + 1);
  set->Read(0, {}, Rng(0), row);  // dog/a.PNG: its middle four columns
  CHECK(row.back() == 1);
  CHECK(row[0] == TestSample(1, 0, 0));
  CHECK(row[47] == TestSample(4, 3, 2));
}

TEST_CASE("every_stretch_of_a_folder_has_all_classes_in_their_proportions") {
  const Folder folder;
  const std::map<std::string, int> classes = {{"ant", 40}, {"bee", 20}, {"cow", 10}};
  for (const auto& [name, count] : classes) {
    for (int i = 0; i < count; ++i) {
      folder.Write(absl::StrCat(name, "/", 100 + i, ".png"), EncodePng(1, 1, 3));
    }
  }
  const auto listed = ListImageFolder(folder.path());
  REQUIRE(listed.status().message() == "");
  REQUIRE(listed->files.size() == 70);
  for (size_t begin = 0; begin < 70; begin += 14) {  // as the last fifth, held out
    std::vector<int> seen(3);
    for (size_t i = begin; i < begin + 14; ++i) ++seen[static_cast<size_t>(listed->files[i].label)];
    CHECK(seen == std::vector<int>{8, 4, 2});
  }
}

TEST_CASE("folders_that_are_not_what_they_should_be_are_refused_by_name") {
  const Folder folder;
  WriteClasses(folder, "train/");
  const std::string train = folder.path() + "/train";
  const auto message = [&](const DataSpec& spec, int64_t classes) {
    const absl::Status status = Dataset::Open(spec, classes).status();
    CHECK_FALSE(status.ok());
    const auto found = InspectData(spec, classes);  // what is not here may be elsewhere
    CHECK(found.ok() == absl::IsNotFound(status));
    if (found.ok()) CHECK(found->unread == std::vector<std::string>{spec.path});
    return std::string(status.message());
  };
  CHECK_THAT(message(Spec(train, 4), 1), Contains("num_labels"));
  CHECK_THAT(message(Spec(train, 0), 2), Contains("data.image_size"));
  CHECK_THAT(message(Spec(folder.path() + "/nowhere", 4), 2), Contains("nowhere"));
  CHECK_THAT(message(Spec(train + "/cat", 4), 2), Contains("CLASS/NAME.jpg"));
  CHECK_THAT(message(Spec(train + "/README", 4), 2), Contains("README"));
  const std::string bad = folder.Write("train/cat/y.jpg", EncodeJpeg(30, 30, 3).substr(0, 300));
  folder.Write("train/dog/bad.png", "no image");
  CHECK_THAT(message(Spec(train, 4), 2), Contains(bad));
  std::filesystem::create_directory(train + "/empty");
  CHECK_THAT(message(Spec(train, 4), 3), Contains("/empty"));
}

TEST_CASE("images_of_kinds_that_are_not_read_are_refused_with_the_first_of_them") {
  for (const char* ending : {".webp", ".tif", ".TIFF", ".bmp", ".gif", ".avif", ".heic"}) {
    const Folder folder;
    WriteClasses(folder);
    const std::string first = folder.Write(absl::StrCat("dog/c", ending), "an image");
    folder.Write(absl::StrCat("dog/d", ending), "an image");
    const std::string refusal(ListImageFolder(folder.path()).status().message());
    CHECK_THAT(refusal, Contains("2 files") && Contains(first) && Contains("PNG"));
  }
}

TEST_CASE("other_endings_of_jpeg_files_are_read") {
  const Folder folder;
  WriteClasses(folder);
  folder.Write("dog/c.jfif", EncodeJpeg(4, 4, 3));
  folder.Write("dog/d.JPE", EncodeJpeg(4, 4, 3));
  CHECK(ImageSet::Open(Spec(folder.path(), 4), folder.path(), 2)->images() == 5);
}

TEST_CASE("validation_folders_have_the_classes_of_training") {
  const Folder folder;
  WriteClasses(folder, "train/");
  WriteClasses(folder, "val/");
  DataSpec spec = Spec(folder.path() + "/train", 5);
  spec.validation_path = folder.path() + "/val";
  const auto data = Dataset::Open(spec, 2);
  REQUIRE(data.status().message() == "");
  CHECK(data->train_sequences() == 3);
  CHECK(data->validation_sequences() == 3);
  CHECK(data->row() == 5 * 5 * 3 + 1);
  CHECK_THAT(InspectData(spec, 2)->text, Contains("3 images of 2 classes"));
  folder.Write("val/cow/a.png", EncodePng(5, 5, 3));
  CHECK(absl::IsInvalidArgument(Dataset::Open(spec, 3).status()));
}

TEST_CASE("mixture_of_folders_reads_each_by_weight_with_the_same_classes") {
  const Folder folder;
  for (int k = 0; k < 8; ++k) {
    for (const std::string name : {"cat", "dog"}) {
      const std::string file = absl::StrCat(name, "/", k, ".png");
      folder.Write("small/" + file, EncodePng(4, 4, 3));
      folder.Write("large/" + file, EncodePng(12, 12, 1));
    }
  }
  WriteClasses(folder, "set/");
  DataSpec spec = Spec("", 4);
  spec.sources = {{folder.path() + "/small", 1}, {folder.path() + "/large", 3}};
  spec.validation_fraction = 0.25;
  spec.validation = {{"set", folder.path() + "/set"}};
  const auto data = Dataset::Open(spec, 2);
  REQUIRE(data.status().message() == "");
  CHECK(data->train_sequences() == 24);
  CHECK(data->SelectValidationPositions(0, 0).size() == 8);
  CHECK(data->SelectValidationPositions(1, 0).size() == 3);
  int large = 0;
  std::vector<int32_t> rows(40 * static_cast<size_t>(data->row()));
  REQUIRE(data->ReadTrain(0, rows).ok());
  for (int64_t position = 0; position < 40; ++position) large += data->Order(position) >= 12;
  CHECK(large == 30);
  // The images of another class than the first source's.
  folder.Write("large/cow/a.png", EncodePng(4, 4, 3));
  const absl::Status other = Dataset::Open(spec, 3).status();
  CHECK(absl::IsInvalidArgument(other));
  CHECK_THAT(std::string(other.message()), Contains(folder.path() + "/large: has not the classes"));
}

}  // namespace
}  // namespace atl
