#include "worker/data/image_folder.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/machine/limits.h"
#include "common/paths.h"
#include "common/status.h"
#include "worker/data/data_file.h"

namespace atl {
namespace {

constexpr int64_t kFileBytesMax = 64 << 20;
constexpr size_t kFilesMax = 1 << 24;
constexpr int kThreadsMax = 8;  // each may hold an image as it is in its file

bool IsHidden(const std::string& name) { return name.empty() || name[0] == '.'; }

bool IsImageName(const std::string& name) {
  const std::string lower = absl::AsciiStrToLower(name);
  return !IsHidden(name) && (absl::EndsWith(lower, ".jpg") || absl::EndsWith(lower, ".jpeg") ||
                             absl::EndsWith(lower, ".png"));
}

// The image files of each class by name, without their labels; a class may have none.
using Classes = std::map<std::string, std::vector<ImageFolder::File>>;

absl::Status TooMany(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat("data path ", path, ": holds more than ", kFilesMax, " files"));
}

absl::StatusOr<Classes> ListLocal(const std::string& path, const Cancelled& cancelled) {
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
  Classes classes;
  size_t seen = 0;
  ATOLL_ASSIGN_OR_RETURN(const auto names, RealFiles().List(path));
  for (const std::string& name : names) {
    const std::string folder = absl::StrCat(path, "/", name);
    if (IsHidden(name)) continue;
    // A link that leads to nothing is no class; what cannot be looked at may be one.
    ATOLL_ASSIGN_OR_RETURN(const bool is_class, is_folder(folder));
    if (!is_class) continue;
    std::vector<ImageFolder::File>& files = classes[name];
    ATOLL_ASSIGN_OR_RETURN(const auto held, RealFiles().List(folder));
    for (const std::string& file : held) {
      if (cancelled && cancelled()) return absl::AbortedError("reading is interrupted");
      if (++seen > kFilesMax) return TooMany(path);
      if (IsImageName(file)) files.push_back({absl::StrCat(folder, "/", file)});
    }
  }
  return classes;
}

absl::StatusOr<Classes> ListRemote(const std::string& path, const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(const auto folder, RemoteFolder::Open(path));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, folder->List(kFilesMax, cancelled));
  Classes classes;
  for (const ObjectInfo& object : objects) {  // sorted
    const std::string& name = object.name;
    const size_t slash = name.find('/');
    if (slash == std::string::npos || name.find('/', slash + 1) != std::string::npos) continue;
    if (IsHidden(name) || !IsImageName(name.substr(slash + 1))) continue;
    classes[name.substr(0, slash)].push_back(
        {absl::StrCat(absl::StripSuffix(path, "/"), "/", name), 0, folder, object});
  }
  return classes;
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

}  // namespace

absl::StatusOr<ImageFolder> ListImageFolder(const std::string& path, const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(const Classes classes, IsRemotePath(path) ? ListRemote(path, cancelled)
                                                                   : ListLocal(path, cancelled));
  if (classes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", path, ": there is no folder of a class in it; put images at CLASS/NAME.jpg"));
  }
  ImageFolder folder;
  for (const auto& [name, files] : classes) {
    if (files.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data path ", absl::StripSuffix(path, "/"), "/", name,
                       ": there is no .jpg, .jpeg or .png file in this class's folder"));
    }
    const auto label = static_cast<int32_t>(folder.classes.size());
    folder.classes.push_back(name);
    for (const ImageFolder::File& file : files) {
      folder.files.push_back(file);
      folder.files.back().label = label;
    }
  }
  MixClasses(folder);
  return folder;
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
