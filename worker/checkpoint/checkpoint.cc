#include "worker/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"

namespace atl::worker {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kManifestBytesMax = int64_t{64} << 20;
constexpr int kArrays = 4;  // theta, base, first and second moment

absl::Status Errno(absl::string_view what, const std::string& path) {
  const int error = errno;
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(error)));
}

class File {
 public:
  File(const std::string& path, int flags) : path_(path), fd_(open(path.c_str(), flags, 0600)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  absl::Status opened() const { return fd_ >= 0 ? absl::OkStatus() : Errno("open", path_); }

  absl::Status Write(const void* data, int64_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t done = write(fd_, at, static_cast<size_t>(bytes));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return Errno("write", path_);
      at += done;
      bytes -= done;
    }
    return absl::OkStatus();
  }
  absl::Status Read(void* data, int64_t bytes) {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t done = read(fd_, at, static_cast<size_t>(bytes));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return Errno("read", path_);
      if (done == 0) return absl::DataLossError(absl::StrCat(path_, " is cut short"));
      at += done;
      bytes -= done;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Size() {
    struct stat info;
    if (fstat(fd_, &info) != 0) return Errno("look at", path_);
    return static_cast<int64_t>(info.st_size);
  }
  absl::Status Sync() { return fsync(fd_) == 0 ? absl::OkStatus() : Errno("sync", path_); }

 private:
  const std::string path_;
  const int fd_;
};

absl::Status SyncFolder(const std::string& path) {
  File folder(path, O_RDONLY | O_DIRECTORY);
  ATOLL_RETURN_IF_ERROR(folder.opened());
  return folder.Sync();
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  ATOLL_RETURN_IF_ERROR(file.opened());
  ATOLL_RETURN_IF_ERROR(file.Write(text.data(), static_cast<int64_t>(text.size())));
  return file.Sync();
}

absl::StatusOr<std::string> ReadText(const std::string& path, int64_t bytes_max) {
  File file(path, O_RDONLY);
  ATOLL_RETURN_IF_ERROR(file.opened());
  ATOLL_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  if (size > bytes_max) return absl::DataLossError(absl::StrCat(path, " is too long"));
  std::string text(static_cast<size_t>(size), '\0');
  ATOLL_RETURN_IF_ERROR(file.Read(text.data(), size));
  return text;
}

// The name becomes part of a path and comes from the network.
absl::Status CheckJob(const JobId& job) {
  const bool fits =
      !job.empty() && job.size() <= 128 && std::all_of(job.begin(), job.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
      });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError("the job's name must be of a-z, 0-9 and '-'");
}

std::array<std::vector<float>*, kArrays> Arrays(CheckpointLayer& l) {
  return {&l.theta, &l.base, &l.first_moment, &l.second_moment};
}
std::array<const std::vector<float>*, kArrays> Arrays(const CheckpointLayer& l) {
  return {&l.theta, &l.base, &l.first_moment, &l.second_moment};
}

uint64_t Checksum(const CheckpointLayer& layer) {
  uint64_t sum = 0;
  for (const std::vector<float>* array : Arrays(layer)) {
    sum = XXH3_64bits_withSeed(array->data(), array->size() * sizeof(float), sum);
  }
  return sum;
}

std::string LayerFile(const std::string& folder, size_t layer) {
  return absl::StrCat(folder, "/layer-", layer);
}

absl::Status WriteLayer(const std::string& path, const CheckpointLayer& layer) {
  File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  ATOLL_RETURN_IF_ERROR(file.opened());
  for (const std::vector<float>* array : Arrays(layer)) {
    ATOLL_RETURN_IF_ERROR(
        file.Write(array->data(), static_cast<int64_t>(array->size() * sizeof(float))));
  }
  return file.Sync();
}

absl::StatusOr<CheckpointLayer> ReadLayer(const std::string& path, int64_t elements,
                                          uint64_t checksum) {
  File file(path, O_RDONLY);
  ATOLL_RETURN_IF_ERROR(file.opened());
  ATOLL_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  if (elements < 0 || size % (kArrays * sizeof(float)) != 0 ||
      size / static_cast<int64_t>(kArrays * sizeof(float)) != elements) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", size, " bytes, not those of ", elements, " elements"));
  }
  CheckpointLayer layer;
  for (std::vector<float>* array : Arrays(layer)) {
    array->resize(static_cast<size_t>(elements));
    ATOLL_RETURN_IF_ERROR(file.Read(array->data(), elements * static_cast<int64_t>(sizeof(float))));
  }
  if (Checksum(layer) != checksum) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: its checksum differs"));
  }
  return layer;
}

std::string FormatManifest(const CheckpointState& state) {
  json consumed = json::array();
  for (const PositionRange& range : state.about.consumed) {
    consumed.push_back({range.begin, range.end});
  }
  json layers = json::array();
  for (const CheckpointLayer& layer : state.layers) {
    layers.push_back({{"elements", layer.theta.size()}, {"xxh3", Checksum(layer)}});
  }
  const json manifest = {{"job", state.about.job},
                         {"island", state.about.island},
                         {"base_version", state.about.base_version},
                         {"inner_step", state.about.inner_step},
                         {"optimizer_steps", state.optimizer_steps},
                         {"consumed", consumed},
                         {"layers", layers}};
  const std::string text = manifest.dump() + "\n";
  return absl::StrCat(text, XXH3_64bits(text.data(), text.size()), "\n");
}

// The manifest's JSON, if its last line is the checksum of what comes before.
absl::StatusOr<json> ReadManifest(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadText(path, kManifestBytesMax));
  const size_t line = text.find('\n');
  if (line == std::string::npos ||
      text.substr(line + 1) != absl::StrCat(XXH3_64bits(text.data(), line + 1), "\n")) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: its checksum differs"));
  }
  json manifest = json::parse(text.begin(), text.begin() + static_cast<int64_t>(line),
                              /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object()) return absl::DataLossError(absl::StrCat(path, " is not a manifest"));
  return manifest;
}

absl::StatusOr<CheckpointState> ReadFolder(const std::string& folder) {
  const std::string path = folder + "/manifest";
  ATOLL_ASSIGN_OR_RETURN(const json manifest, ReadManifest(path));
  CheckpointState state;
  try {  // the JSON library reports missing fields and wrong types by throwing
    state.about.job = manifest.at("job").get<std::string>();
    state.about.island = manifest.at("island").get<IslandId>();
    state.about.base_version = manifest.at("base_version").get<int64_t>();
    state.about.inner_step = manifest.at("inner_step").get<int64_t>();
    state.optimizer_steps = manifest.at("optimizer_steps").get<int64_t>();
    for (const json& range : manifest.at("consumed")) {
      state.about.consumed.push_back({range.at(0).get<int64_t>(), range.at(1).get<int64_t>()});
    }
    for (const json& layer : manifest.at("layers")) {
      absl::StatusOr<CheckpointLayer> read =
          ReadLayer(LayerFile(folder, state.layers.size()), layer.at("elements").get<int64_t>(),
                    layer.at("xxh3").get<uint64_t>());
      if (!read.ok()) return read.status();
      state.layers.push_back(*std::move(read));
    }
  } catch (const json::exception& error) {
    return absl::DataLossError(absl::StrCat(path, ": ", error.what()));
  }
  return state;
}

absl::Status MakeFolders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot make ", path, ": ", error.message()));
}

}  // namespace

CheckpointStore::CheckpointStore(std::string folder) : folder_(std::move(folder)) {}

absl::Status CheckpointStore::Write(const CheckpointState& state) const {
  ATOLL_RETURN_IF_ERROR(CheckJob(state.about.job));
  const std::string job = JobFolder(state.about.job);
  ATOLL_RETURN_IF_ERROR(MakeFolders(job));
  const absl::StatusOr<std::string> previous = ReadText(job + "/current", 256);
  // The same step may be written twice: by a restarted process that came as far again.
  std::string name = absl::StrCat("step-", state.about.inner_step, "-0");
  if (previous.ok() && *previous == name) name.back() = '1';
  const std::string folder = absl::StrCat(job, "/", name);
  std::error_code ignored;
  fs::remove_all(folder, ignored);  // left by a process that died while writing
  ATOLL_RETURN_IF_ERROR(MakeFolders(folder));
  for (size_t layer = 0; layer < state.layers.size(); ++layer) {
    ATOLL_RETURN_IF_ERROR(WriteLayer(LayerFile(folder, layer), state.layers[layer]));
  }
  ATOLL_RETURN_IF_ERROR(WriteText(folder + "/manifest", FormatManifest(state)));
  ATOLL_RETURN_IF_ERROR(SyncFolder(folder));
  ATOLL_RETURN_IF_ERROR(WriteText(job + "/current.new", name));
  if (rename((job + "/current.new").c_str(), (job + "/current").c_str()) != 0) {
    return Errno("rename", job + "/current.new");
  }
  ATOLL_RETURN_IF_ERROR(SyncFolder(job));
  ATOLL_RETURN_IF_ERROR(SyncFolder(folder_));
  for (const fs::directory_entry& entry : fs::directory_iterator(job, ignored)) {
    const std::string other = entry.path().filename().string();
    if (absl::StartsWith(other, "step-") && other != name) fs::remove_all(entry.path(), ignored);
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointState> CheckpointStore::Read(const JobId& job) const {
  ATOLL_RETURN_IF_ERROR(CheckJob(job));
  const std::string current = JobFolder(job) + "/current";
  if (std::error_code error; !fs::exists(current, error)) {
    return absl::NotFoundError(absl::StrCat("no checkpoint of ", job));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string name, ReadText(current, 256));
  if (!absl::StartsWith(name, "step-") || absl::StrContains(name, '/')) {
    return absl::DataLossError(absl::StrCat(current, " does not name a checkpoint"));
  }
  ATOLL_ASSIGN_OR_RETURN(CheckpointState state,
                         ReadFolder(absl::StrCat(JobFolder(job), "/", name)));
  if (state.about.job != job) {
    return absl::DataLossError(absl::StrCat(current, " is of the job ", state.about.job));
  }
  return state;
}

std::vector<LocalCheckpoint> CheckpointStore::List(std::vector<std::string>* problems) const {
  std::vector<JobId> jobs;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored)) {
    if (entry.is_directory(ignored)) jobs.push_back(entry.path().filename().string());
  }
  std::sort(jobs.begin(), jobs.end());
  std::vector<LocalCheckpoint> found;
  for (const JobId& job : jobs) {
    absl::StatusOr<CheckpointState> state = Read(job);
    if (state.ok()) {
      found.push_back(std::move(state->about));
    } else if (!absl::IsNotFound(state.status())) {
      problems->push_back(std::string(state.status().message()));
    }
  }
  return found;
}

void CheckpointStore::Remove(const JobId& job) const {
  if (!CheckJob(job).ok()) return;
  std::error_code ignored;
  fs::remove_all(JobFolder(job), ignored);
}

}  // namespace atl::worker
