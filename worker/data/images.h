// Labelled images of a job: CIFAR-10's and CIFAR-100's binary files, and IDX, MNIST's format;
// plain, gzip or zstd. They are held in memory as bytes, row by row and channel by channel; those
// of a folder in an object store from when they are first read (image_loader.h), others from Open
// on.
//
//   kCifar10   records of a label and 3,072 bytes, 32 x 32 of red, then green, then blue.
//   kCifar100  records of a coarse label, a fine one, which is used, and 3,072 bytes likewise.
//   kIdx       magic 0x00000803 and three big-endian sizes before the images; the labels' file,
//              magic 0x00000801, has "labels" and "idx1" in its name for "images" and "idx3".
//   kImageFolder  JPEG and PNG files in a folder for each class, made squares: image_folder.h.
//
// Files are untrusted: sizes in headers are checked against what is there.
//
// Thread safety: const methods may be called from several threads.

#ifndef ATOLL_WORKER_DATA_IMAGES_H_
#define ATOLL_WORKER_DATA_IMAGES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/object_store/http.h"
#include "common/protocol/job_spec.h"
#include "common/rng.h"
#include "common/status.h"
#include "worker/data/image_folder.h"
#include "worker/data/image_loader.h"

namespace atl {

struct ImageShape {
  int64_t height = 0, width = 0, channels = 0;

  int64_t pixels() const { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

// Checks that images of data are of the model's size. INVALID_ARGUMENT has both sizes.
absl::Status CheckImageShape(const ImageShape& images, const ImageShape& model);

// The changes of an image before it is trained on.
struct ImageChange {
  int64_t crop_padding = 0;  // it is moved by at most so many pixels, black where nothing is
  bool flip = false;         // half of them are mirrored
};

class ImageSet {
 public:
  static constexpr int64_t kMaxBytes = int64_t{8} << 30;  // of all pixels together

  // `path`, of the form that `spec` says, may be a glob, or is the folder of kImageFolder.
  // INVALID_ARGUMENT names the file, and a label that is none of `classes`.
  static absl::StatusOr<ImageSet> Open(const DataSpec& spec, const std::string& path,
                                       int64_t classes, const Cancelled& cancelled = {});

  const std::string& path() const { return path_; }  // for messages
  const ImageShape& shape() const { return shape_; }
  int64_t images() const { return std::ssize(labels_); }
  // Names of the classes of kImageFolder, in the order of their numbers; else none.
  const std::vector<std::string>& class_names() const { return class_names_; }
  // Returns a digest of all pixels and labels, or of what stands for them.
  uint64_t Digest() const;

  // Returns when these images can be read; an error names the file. `next` are those that are
  // expected then: they are fetched meanwhile.
  absl::Status Load(std::span<const int64_t> images, std::span<const int64_t> next,
                    const Cancelled& cancelled) const;

  // Image `index` and behind it its label, in pixels() + 1 numbers, changed as `rng` says.
  // REQUIRES: it was loaded.
  void Read(int64_t index, const ImageChange& change, Rng rng, std::span<int32_t> out) const;

 private:
  absl::Status AddFolder(const std::string& path, int64_t side, int64_t classes,
                         const Cancelled& cancelled);
  absl::Status AddCifar(const std::string& path, const std::string& bytes, int64_t labels);
  absl::Status AddIdx(const std::string& path, const std::string& bytes, const std::string& labels);
  absl::Status SetShape(const std::string& path, const ImageShape& shape);

  std::string path_;
  ImageShape shape_;
  std::vector<uint8_t> pixels_;
  std::shared_ptr<ImageLoader> loader_;  // instead of pixels_
  std::vector<int32_t> labels_;
  std::vector<std::string> class_names_;
};

// An image folder whose classes are at most `classes`, and whose images fit into an ImageSet.
absl::StatusOr<ImageFolder> CheckedImageFolder(const std::string& path, int64_t side,
                                               int64_t classes, const Cancelled& cancelled = {});

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_IMAGES_H_
