#include "worker/data/image_folder.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/machine/limits.h"
#include "common/paths.h"
#include "common/plural.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr int64_t kFileBytesMax = 64 << 20;
constexpr size_t kFilesMax = 1 << 24;
constexpr int kThreadsMax = 8;  // each may hold an image as it is in its file

bool IsHidden(const std::string& name) { return name.empty() || name[0] == '.'; }

bool HasEnding(const std::string& name, std::span<const absl::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](absl::string_view ending) {
    return absl::EndsWithIgnoreCase(name, ending);
  });
}

constexpr absl::string_view kRead[] = {".jpg", ".jpeg", ".jpe", ".jfif", ".png"};
constexpr absl::string_view kNotRead[] = {
    ".webp", ".tif", ".tiff", ".bmp", ".gif", ".avif", ".heic", ".heif", ".jxl",
    ".jp2",  ".j2k", ".ppm",  ".pgm", ".pbm", ".pnm",  ".tga",  ".svg",  ".ico",
    ".psd",  ".dng", ".cr2",  ".nef", ".arw", ".exr",  ".hdr",  ".dcm",  ".nii"};

// A folder's content, as it is found.
class Listing {
 public:
  explicit Listing(std::string path) : path_(absl::StripSuffix(path, "/")) {}

  void AddClass(const std::string& name) { files_[name]; }
  // `name`: of a file of the class, or of what else its folder has.
  void Add(const std::string& class_name, const std::string& name, ImageFolder::File file) {
    if (IsHidden(name)) return;
    file.path = absl::StrCat(path_, "/", class_name, "/", name);
    if (HasEnding(name, kRead)) {
      files_[class_name].push_back(std::move(file));
    } else if (HasEnding(name, kNotRead)) {
      if (not_read_++ == 0) first_not_read_ = file.path;
    } else {
      left_out_.Add(file.path, "no image by its name");
    }
  }
  void LeaveOut(const std::string& name, const char* why) {
    if (!IsHidden(name)) left_out_.Add(absl::StrCat(path_, "/", name), why);
  }

  absl::StatusOr<ImageFolder> Finish();

 private:
  const std::string path_;
  std::map<std::string, std::vector<ImageFolder::File>> files_;  // of each class, by name
  LeftOut left_out_;
  int64_t not_read_ = 0;
  std::string first_not_read_;
};

absl::Status TooMany(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat("data path ", path, ": holds more than ", kFilesMax, " files"));
}

absl::Status ListLocal(const std::string& path, const Cancelled& cancelled, Listing* listing) {
  const auto failed = [&](absl::StatusCode code, absl::string_view why) {
    return absl::Status(code, absl::StrCat("data path ", path, ": ", why,
                                           "; expected a folder with a folder for each class"));
  };
  const auto is_folder = [](const std::string& at) -> absl::StatusOr<bool> {
    ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(at));
    return found && found->is_folder;
  };
  const auto top = FindPath(path);
  if (!top.ok()) return failed(top.status().code(), top.status().message());
  if (!*top) return failed(absl::StatusCode::kNotFound, "there is none");
  if (!(*top)->is_folder) return failed(absl::StatusCode::kInvalidArgument, "is no folder");
  size_t seen = 0;
  ATOLL_ASSIGN_OR_RETURN(const auto names, RealFiles().List(path));
  for (const std::string& name : names) {
    const std::string folder = absl::StrCat(path, "/", name);
    if (IsHidden(name)) continue;
    // A link that leads to nothing is no class; what cannot be looked at may be one.
    ATOLL_ASSIGN_OR_RETURN(const bool is_class, is_folder(folder));
    if (!is_class) listing->LeaveOut(name, "in no class's folder");
    if (!is_class) continue;
    listing->AddClass(name);
    ATOLL_ASSIGN_OR_RETURN(const auto held, RealFiles().List(folder));
    for (const std::string& file : held) {
      if (cancelled && cancelled()) return absl::AbortedError("reading is interrupted");
      if (++seen > kFilesMax) return TooMany(path);
      listing->Add(name, file, {});
    }
  }
  return absl::OkStatus();
}

absl::Status ListRemote(const std::string& path, const Cancelled& cancelled, Listing* listing) {
  ATOLL_ASSIGN_OR_RETURN(const auto folder, RemoteFolder::Open(path));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, folder->List(kFilesMax, cancelled));
  for (const ObjectInfo& object : objects) {  // sorted
    const std::string& name = object.name;
    const size_t slash = name.find('/');
    if (IsHidden(name) || name.back() == '/') continue;  // consoles make folders of the latter
    if (slash == std::string::npos || name.find('/', slash + 1) != std::string::npos) {
      listing->LeaveOut(name, slash == std::string::npos ? "in no class's folder"
                                                         : "in a folder of a class's folder");
      continue;
    }
    listing->Add(name.substr(0, slash), name.substr(slash + 1), {"", 0, folder, object});
  }
  return absl::OkStatus();
}

// Image k of a class of n comes at (k + 1/2) / n of the way, so every stretch of them, as the end
// that is held out for validation, has all classes in their proportions.
void MixClasses(ImageFolder& folder) {
  std::vector<int64_t> sizes(folder.classes.size());
  for (const ImageFolder::File& file : folder.files) ++sizes[static_cast<size_t>(file.label)];
  struct Position {
    int64_t twice_k_and_1 = 0, of = 1;
    size_t file = 0;
  };
  std::vector<Position> positions;
  std::vector<int64_t> seen(sizes.size());
  for (const ImageFolder::File& file : folder.files) {
    const auto label = static_cast<size_t>(file.label);
    positions.push_back({2 * seen[label]++ + 1, sizes[label], positions.size()});
  }
  std::stable_sort(positions.begin(), positions.end(), [](const Position& a, const Position& b) {
    return a.twice_k_and_1 * b.of < b.twice_k_and_1 * a.of;
  });
  std::vector<ImageFolder::File> files;
  for (const Position& position : positions)
    files.push_back(std::move(folder.files[position.file]));
  folder.files = std::move(files);
}

absl::StatusOr<ImageFolder> Listing::Finish() {
  const std::string what = absl::StrCat("data path ", path_);
  if (not_read_ > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": ", CountText(not_read_, "file"), " of images that are not read, the first is ",
        first_not_read_, ": convert them to PNG or JPEG (mogrify -format png), or move them away"));
  }
  if (files_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": there is no folder of a class in it; put images at CLASS/NAME.jpg"));
  }
  ImageFolder folder;
  folder.left_out = left_out_;
  for (auto& [name, files] : files_) {
    if (files.empty()) {
      const std::string others = left_out_.Text();
      return absl::InvalidArgumentError(absl::StrCat(
          what, "/", name, ": there is no .jpg, .jpeg or .png file in this class's folder",
          others.empty() ? "" : "; ", others));
    }
    const auto label = static_cast<int32_t>(folder.classes.size());
    folder.classes.push_back(name);
    for (ImageFolder::File& file : files) {
      folder.files.push_back(std::move(file));
      folder.files.back().label = label;
    }
  }
  MixClasses(folder);
  return folder;
}

}  // namespace

absl::StatusOr<ImageFolder> ListImageFolder(const std::string& path, const Cancelled& cancelled) {
  Listing listing(path);
  ATOLL_RETURN_IF_ERROR(IsRemotePath(path) ? ListRemote(path, cancelled, &listing)
                                           : ListLocal(path, cancelled, &listing));
  return listing.Finish();
}

absl::Status ReadImageFile(const ImageFolder::File& image_file, int64_t side,
                           const Cancelled& cancelled, std::span<uint8_t> out) {
  std::unique_ptr<DataFile> file;
  if (image_file.folder != nullptr) {
    file = image_file.folder->OpenListed(image_file.object);
  } else {
    ATOLL_ASSIGN_OR_RETURN(file, OpenDataFile(image_file.path, cancelled));
  }
  const auto refused = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", image_file.path, ": ", problem));
  };
  if (file->bytes() > kFileBytesMax) {
    return refused(
        absl::StrCat("has ", file->bytes(), " bytes; an image has at most ", kFileBytesMax));
  }
  std::string bytes(static_cast<size_t>(file->bytes()), '\0');
  ATOLL_RETURN_IF_ERROR(file->Read(0, bytes.data(), std::ssize(bytes), cancelled));
  const auto image = DecodeImage(bytes);
  if (!image.ok()) return refused(image.status().message());
  ResizeToSquare(*image, side, out);
  return absl::OkStatus();
}

absl::Status ReadImageFiles(std::span<const ImageFolder::File> files, int64_t side,
                            const Cancelled& cancelled, std::span<uint8_t> out) {
  const auto each = static_cast<size_t>(side * side * kImageChannels);
  ATOLL_CHECK(out.size() == files.size() * each);
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t failed = files.size();  // the first that did; held with the next by `mutex`
  absl::Status status;
  const auto work = [&] {
    for (size_t i = next++; i < files.size(); i = next++) {
      const absl::Status read =
          ReadImageFile(files[i], side, cancelled, out.subspan(i * each, each));
      if (read.ok()) continue;
      next = files.size();  // threads with an earlier file finish it
      const std::lock_guard lock(mutex);
      if (i < failed) {
        failed = i;
        status = read;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const int count = CoresUpTo(kThreadsMax);
    for (int t = 1; t < count; ++t) threads.emplace_back(work);
    work();
  }
  return status;
}

}  // namespace atl
