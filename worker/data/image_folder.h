// A folder of JPEG and PNG files, in a folder for each class: PATH/CLASS/NAME.jpg.
//
// A class's number is its position among the names of the classes, sorted. Files with other endings
// than .jpg, .jpeg, .jpe, .jfif and .png (in lower or upper case) are left out and named; those of
// images that are not read are refused. Names that begin with a dot are no part of the folder.

#ifndef ATOLL_WORKER_DATA_IMAGE_FOLDER_H_
#define ATOLL_WORKER_DATA_IMAGE_FOLDER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/path_pattern.h"
#include "worker/data/data_file.h"
#include "worker/data/image_codec.h"

namespace atl {

struct ImageFolder {
  struct File {
    std::string path;
    int32_t label = 0;
    // Set for a file in an object store, as it was listed.
    std::shared_ptr<const RemoteFolder> folder = {};
    ObjectInfo object = {};
  };

  std::vector<std::string> classes;  // sorted
  std::vector<File> files;           // of each class by name, and classes evenly mixed
  LeftOut left_out = {};             // what is no image of a class
};

// `path`: a folder, or s3://BUCKET/NAME. NOT_FOUND or INVALID_ARGUMENT: there is no such folder, it
// has no folders, a class has no image, or images of a kind that is not read (.webp).
absl::StatusOr<ImageFolder> ListImageFolder(const std::string& path,
                                            const Cancelled& cancelled = {});

// The file's image as a square of `side` pixels. REQUIRES: out has room for it.
absl::Status ReadImageFile(const ImageFolder::File& file, int64_t side, const Cancelled& cancelled,
                           std::span<uint8_t> out);

// The files' images as squares of `side` pixels, one behind the other, made by several threads. An
// error names the first file, in their order, that is none. REQUIRES: out has room for them.
absl::Status ReadImageFiles(std::span<const ImageFolder::File> files, int64_t side,
                            const Cancelled& cancelled, std::span<uint8_t> out);

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_IMAGE_FOLDER_H_
