#include "worker/data/images.h"

#include <xxhash.h>

#include "absl/strings/str_replace.h"
#include "common/check.h"
#include "worker/data/inputs.h"

namespace atl {
namespace {

constexpr int64_t kReadBytes = 1 << 20;
constexpr int64_t kCifarSide = 32, kCifarChannels = 3;

absl::Status BadFile(const std::string& path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("data file ", path, ": ", problem));
}

absl::StatusOr<std::string> ReadWhole(const std::string& path, const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(const auto reader,
                         TextReader::Open(path, {.cancelled = cancelled, .wanted = "images"}));
  std::string bytes;
  while (!reader->ended()) {
    if (std::ssize(bytes) > ImageSet::kMaxBytes) {
      return BadFile(path, absl::StrCat("holds more than ", ImageSet::kMaxBytes, " bytes"));
    }
    ATOLL_RETURN_IF_ERROR(reader->Read(kReadBytes, &bytes));
  }
  return bytes;
}

int64_t BigEndian(const std::string& bytes, size_t at) {
  int64_t value = 0;
  for (size_t i = at; i < at + 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// Returns the sizes of IDX bytes, of which there are `dimensions`.
absl::StatusOr<std::vector<int64_t>> IdxSizes(const std::string& path, const std::string& bytes,
                                              int64_t dimensions) {
  const auto header = static_cast<size_t>(4 + 4 * dimensions);
  if (bytes.size() < header || BigEndian(bytes, 0) != 0x0800 + dimensions) {
    return BadFile(path, absl::StrCat("does not begin as an IDX file of bytes with ", dimensions,
                                      " dimensions does"));
  }
  std::vector<int64_t> sizes;
  int64_t expected = 1;
  for (int64_t d = 0; d < dimensions; ++d) {
    sizes.push_back(BigEndian(bytes, static_cast<size_t>(4 + 4 * d)));
    if (sizes.back() < 1 || sizes.back() > ImageSet::kMaxBytes / expected) {
      return BadFile(path, absl::StrCat("has a dimension of ", sizes.back()));
    }
    expected *= sizes.back();
  }
  if (std::ssize(bytes) != static_cast<int64_t>(header) + expected) {
    return BadFile(path, absl::StrCat("has ", bytes.size() - header,
                                      " bytes behind its header, "
                                      "which announces ",
                                      expected));
  }
  return sizes;
}

std::string LabelsPath(const std::string& images) {
  const size_t name = images.find_last_of('/') + 1;  // npos + 1 is 0
  return images.substr(0, name) +
         absl::StrReplaceAll(images.substr(name), {{"images", "labels"}, {"idx3", "idx1"}});
}

}  // namespace

absl::StatusOr<ImageFolder> CheckedImageFolder(const std::string& path, int64_t side,
                                               int64_t classes, const Cancelled& cancelled) {
  if (side < 1 || side > kImageSideMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.image_size is ", side, "; expected 1 to ", kImageSideMax));
  }
  ATOLL_ASSIGN_OR_RETURN(ImageFolder folder, ListImageFolder(path, cancelled));
  if (std::ssize(folder.classes) > classes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", path, ": has ", folder.classes.size(), " classes, but the model has ",
        classes, "; set num_labels in its config.json"));
  }
  if (std::ssize(folder.files) > ImageSet::kMaxBytes / (side * side * kImageChannels)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", path, ": ", folder.files.size(), " images of ", side, " x ", side,
        " pixels are more than ", ImageSet::kMaxBytes, " bytes; use a smaller data.image_size"));
  }
  return folder;
}

absl::Status ImageSet::AddFolder(const std::string& path, int64_t side, int64_t classes,
                                 const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(ImageFolder folder, CheckedImageFolder(path, side, classes, cancelled));
  LogLeftOut(path, folder.left_out);
  shape_ = {side, side, kImageChannels};
  class_names_ = std::move(folder.classes);
  if (IsRemotePath(path)) {
    for (const ImageFolder::File& file : folder.files) labels_.push_back(file.label);
    loader_ = std::make_shared<ImageLoader>(std::move(folder.files), side);
    return absl::OkStatus();
  }
  pixels_.resize(static_cast<size_t>(shape_.pixels()) * folder.files.size());
  for (const ImageFolder::File& file : folder.files) labels_.push_back(file.label);
  return ReadImageFiles(folder.files, side, cancelled, pixels_);
}

absl::Status CheckImageShape(const ImageShape& images, const ImageShape& model) {
  if (images == model) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "data.path: its images are ", images.height, " x ", images.width, " with ", images.channels,
      " channels; the model's are ", model.height, " x ", model.width, " with ", model.channels,
      ": set image_size and num_channels in the model's config.json"));
}

absl::StatusOr<ImageSet> ImageSet::Open(const DataSpec& spec, const std::string& path,
                                        int64_t classes, const Cancelled& cancelled) {
  const DataFormat format = spec.format;
  ImageSet set;
  set.path_ = path;
  if (format == DataFormat::kImageFolder) {
    ATOLL_RETURN_IF_ERROR(set.AddFolder(path, spec.image_size, classes, cancelled));
    return set;
  }
  LeftOut left_out;
  ATOLL_ASSIGN_OR_RETURN(const auto files, ExpandGlob(path, cancelled, &left_out));
  LogLeftOut(path, left_out);
  for (const std::string& file : files) {
    ATOLL_ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(file, cancelled));
    const size_t before = set.labels_.size();
    if (format == DataFormat::kIdx) {
      const std::string labels_path = LabelsPath(file);
      if (labels_path == file) {
        return BadFile(file,
                       "has no \"images\" in its name, where that of its labels has "
                       "\"labels\"");
      }
      ATOLL_ASSIGN_OR_RETURN(const std::string labels, ReadWhole(labels_path, cancelled));
      ATOLL_RETURN_IF_ERROR(set.AddIdx(file, bytes, labels));
    } else {
      ATOLL_RETURN_IF_ERROR(set.AddCifar(file, bytes, format == DataFormat::kCifar100 ? 2 : 1));
    }
    for (size_t i = before; i < set.labels_.size(); ++i) {
      if (set.labels_[i] < classes) continue;
      return BadFile(file, absl::StrCat("image ", i - before, " has label ", set.labels_[i],
                                        ", but the model has ", classes,
                                        " classes; set num_labels in its config.json"));
    }
  }
  return set;
}

absl::Status ImageSet::SetShape(const std::string& path, const ImageShape& shape) {
  if (labels_.empty()) shape_ = shape;
  if (shape_ == shape) return absl::OkStatus();
  return BadFile(path, absl::StrCat("has images of ", shape.height, " x ", shape.width,
                                    ", the files before it ", shape_.height, " x ", shape_.width));
}

absl::Status ImageSet::AddCifar(const std::string& path, const std::string& bytes, int64_t labels) {
  ATOLL_RETURN_IF_ERROR(SetShape(path, {kCifarSide, kCifarSide, kCifarChannels}));
  constexpr int64_t kPlane = kCifarSide * kCifarSide;
  const int64_t record = labels + kPlane * kCifarChannels;
  if (bytes.empty() || std::ssize(bytes) % record != 0) {
    return BadFile(path,
                   absl::StrCat("has ", bytes.size(), " bytes, which are no records of ", record,
                                ": not CIFAR-", labels == 1 ? "10" : "100", "'s binary format"));
  }
  if (std::ssize(pixels_) + std::ssize(bytes) > kMaxBytes) return BadFile(path, "is too much");
  for (int64_t at = 0; at < std::ssize(bytes); at += record) {
    const char* const planes = bytes.data() + at + labels;
    labels_.push_back(static_cast<uint8_t>(planes[-1]));
    for (int64_t pixel = 0; pixel < kPlane; ++pixel) {
      for (int64_t c = 0; c < kCifarChannels; ++c) {
        pixels_.push_back(static_cast<uint8_t>(planes[c * kPlane + pixel]));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ImageSet::AddIdx(const std::string& path, const std::string& bytes,
                              const std::string& labels) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, IdxSizes(path, bytes, 3));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, IdxSizes(LabelsPath(path), labels, 1));
  if (sizes[0] != counts[0]) {
    return BadFile(path, absl::StrCat("has ", sizes[0], " images, but ", LabelsPath(path), " ",
                                      counts[0], " labels"));
  }
  ATOLL_RETURN_IF_ERROR(SetShape(path, {sizes[1], sizes[2], 1}));
  if (std::ssize(pixels_) + std::ssize(bytes) > kMaxBytes) return BadFile(path, "is too much");
  pixels_.insert(pixels_.end(), bytes.begin() + 16, bytes.end());
  for (size_t i = 8; i < labels.size(); ++i) labels_.push_back(static_cast<uint8_t>(labels[i]));
  return absl::OkStatus();
}

uint64_t ImageSet::Digest() const {
  if (loader_ != nullptr) return loader_->Digest();
  const uint64_t parts[] = {XXH3_64bits(pixels_.data(), pixels_.size()),
                            XXH3_64bits(labels_.data(), labels_.size() * sizeof(int32_t)),
                            static_cast<uint64_t>(shape_.height),
                            static_cast<uint64_t>(shape_.width),
                            static_cast<uint64_t>(shape_.channels)};
  return XXH3_64bits(parts, sizeof parts);
}

absl::Status ImageSet::Load(std::span<const int64_t> images, std::span<const int64_t> next,
                            const Cancelled& cancelled) const {
  if (loader_ == nullptr) return absl::OkStatus();
  return loader_->Load(images, next, cancelled);
}

void ImageSet::Read(int64_t index, const ImageChange& change, Rng rng,
                    std::span<int32_t> out) const {
  ATOLL_CHECK(index >= 0 && index < images() && std::ssize(out) == shape_.pixels() + 1);
  const auto moves = static_cast<uint64_t>(2 * change.crop_padding + 1);
  const int64_t down = static_cast<int64_t>(rng.Below(moves)) - change.crop_padding;
  const int64_t right = static_cast<int64_t>(rng.Below(moves)) - change.crop_padding;
  const bool mirrored = change.flip && rng.Below(2) == 1;
  const uint8_t* const from =
      loader_ != nullptr ? loader_->pixels(index) : pixels_.data() + index * shape_.pixels();
  size_t at = 0;
  for (int64_t y = 0; y < shape_.height; ++y) {
    for (int64_t x = 0; x < shape_.width; ++x) {
      const int64_t row = y + down;
      const int64_t col = (mirrored ? shape_.width - 1 - x : x) + right;
      const bool inside = row >= 0 && row < shape_.height && col >= 0 && col < shape_.width;
      for (int64_t c = 0; c < shape_.channels; ++c) {
        out[at++] = inside ? from[(row * shape_.width + col) * shape_.channels + c] : 0;
      }
    }
  }
  out[at] = labels_[static_cast<size_t>(index)];
}

}  // namespace atl
