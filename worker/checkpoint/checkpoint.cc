#include "worker/checkpoint/checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "common/files.h"

namespace atl::worker {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kManifestBytesMax = int64_t{64} << 20;
constexpr int64_t kElementsMax = int64_t{1} << 40;
constexpr int kArrays = 5;  // theta, base, first and second moment, residual

absl::Status WriteText(const std::string& path, const std::string& text) {
  return WriteFileAtomically(RealFiles(), path, std::array{AsBytes(text)});
}

absl::StatusOr<std::string> ReadText(const std::string& path, int64_t bytes_max) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, RealFiles().Read(path, bytes_max));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
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
  return {&l.theta, &l.base, &l.first_moment, &l.second_moment, &l.residual};
}
std::array<const std::vector<float>*, kArrays> Arrays(const CheckpointLayer& l) {
  return {&l.theta, &l.base, &l.first_moment, &l.second_moment, &l.residual};
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
  std::vector<ByteSpan> pieces;
  for (const std::vector<float>* array : Arrays(layer)) {
    pieces.push_back(std::as_bytes(std::span(*array)));
  }
  return WriteFileAtomically(RealFiles(), path, pieces);
}

// What a manifest says.
struct Manifest {
  struct Layer {
    int64_t elements = 0;
    uint64_t checksum = 0;
  };
  CheckpointState state;  // all but the layers
  bool has_residual = false;
  std::vector<Layer> layers;

  int64_t array_bytes(size_t layer) const {
    return layers[layer].elements * static_cast<int64_t>(sizeof(float));
  }
  int64_t file_bytes(size_t layer) const {
    return array_bytes(layer) * (has_residual ? kArrays : kArrays - 1);
  }
};

// REQUIRES: `manifest` is of ReadFolderManifest.
absl::StatusOr<CheckpointLayer> ReadLayer(const std::string& path, const Manifest& manifest,
                                          size_t index) {
  const int64_t file_bytes = manifest.file_bytes(index);
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, RealFiles().Read(path, file_bytes));
  if (static_cast<int64_t>(bytes.size()) != file_bytes) {
    return absl::DataLossError(absl::StrCat(path, " shrank while it was read"));
  }
  const int64_t array_bytes = manifest.array_bytes(index);
  CheckpointLayer layer;
  const std::byte* from = bytes.data();
  for (std::vector<float>* array : Arrays(layer)) {
    if (array == &layer.residual && !manifest.has_residual) continue;
    array->resize(static_cast<size_t>(manifest.layers[index].elements));
    if (array_bytes > 0) std::memcpy(array->data(), from, static_cast<size_t>(array_bytes));
    from += array_bytes;
  }
  if (Checksum(layer) != manifest.layers[index].checksum) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: its checksum differs"));
  }
  return layer;
}

void RemoveAllBut(const std::string& job_folder, const std::string& kept) {
  const absl::StatusOr<std::vector<std::string>> names = RealFiles().List(job_folder);
  if (!names.ok()) return;
  std::error_code ignored;
  for (const std::string& name : *names) {
    if (absl::StartsWith(name, "step-") && name != kept) {
      fs::remove_all(absl::StrCat(job_folder, "/", name), ignored);
    }
  }
}

bool HasResidual(const CheckpointState& state) {
  return !state.layers.empty() && !state.layers.front().residual.empty();
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
                         {"loss_times_tokens", state.about.loss_times_tokens},
                         {"residual", HasResidual(state)},
                         {"consumed", consumed},
                         {"layers", layers}};
  const std::string text = manifest.dump() + "\n";
  return absl::StrCat(text, XXH3_64bits(text.data(), text.size()), "\n");
}

// The manifest's JSON, if its last line is the checksum of what comes before.
absl::StatusOr<json> ReadManifestFile(const std::string& path) {
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

absl::StatusOr<Manifest> ParseManifest(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const json read, ReadManifestFile(path));
  Manifest manifest;
  CheckpointState& state = manifest.state;
  try {  // the JSON library reports missing fields and wrong types by throwing
    state.about.job = read.at("job").get<std::string>();
    state.about.island = read.at("island").get<IslandId>();
    state.about.base_version = read.at("base_version").get<int64_t>();
    state.about.inner_step = read.at("inner_step").get<int64_t>();
    state.optimizer_steps = read.at("optimizer_steps").get<int64_t>();
    state.about.loss_times_tokens = read.value("loss_times_tokens", 0.0);
    manifest.has_residual = read.value("residual", false);
    for (const json& range : read.at("consumed")) {
      state.about.consumed.push_back({range.at(0).get<int64_t>(), range.at(1).get<int64_t>()});
    }
    for (const json& layer : read.at("layers")) {
      manifest.layers.push_back(
          {layer.at("elements").get<int64_t>(), layer.at("xxh3").get<uint64_t>()});
    }
  } catch (const json::exception& error) {
    return absl::DataLossError(absl::StrCat(path, ": ", error.what()));
  }
  return manifest;
}

// What the folder holds, if every file has its size.
absl::StatusOr<Manifest> ReadFolderManifest(const std::string& folder) {
  ATOLL_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(folder + "/manifest"));
  for (size_t layer = 0; layer < manifest.layers.size(); ++layer) {
    const std::string path = LayerFile(folder, layer);
    const int64_t elements = manifest.layers[layer].elements;
    if (elements < 0 || elements > kElementsMax) {
      return absl::DataLossError(absl::StrCat(path, " cannot have ", elements, " elements"));
    }
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    if (error) return absl::DataLossError(absl::StrCat(path, ": ", error.message()));
    if (bytes != static_cast<uintmax_t>(manifest.file_bytes(layer))) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", bytes, " bytes, not those of ", elements, " elements"));
    }
  }
  return manifest;
}

// The folder that `current` names. NotFound: there is none.
absl::StatusOr<std::string> CurrentFolder(const std::string& job_folder) {
  const std::string current = job_folder + "/current";
  ATOLL_ASSIGN_OR_RETURN(const std::string name, ReadText(current, 256));
  if (!absl::StartsWith(name, "step-") || absl::StrContains(name, '/')) {
    return absl::DataLossError(absl::StrCat(current, " does not name a checkpoint"));
  }
  std::string folder = absl::StrCat(job_folder, "/", name);
  if (std::error_code error; !fs::is_directory(folder, error)) {
    return absl::DataLossError(
        absl::StrCat(current, ": is damaged: it names ", name, ", which is not there"));
  }
  return folder;
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder, const JobId& job) {
  absl::StatusOr<Manifest> manifest = ReadFolderManifest(folder);
  // A file that `current` promises is missing: not the same as no checkpoint.
  if (!manifest.ok()) return absl::DataLossError(manifest.status().message());
  if (manifest->state.about.job != job) {
    return absl::DataLossError(absl::StrCat(folder, " is of the job ", manifest->state.about.job));
  }
  return manifest;
}

absl::Status WriteFolder(const std::string& folder, const CheckpointState& state) {
  ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(folder));
  for (size_t layer = 0; layer < state.layers.size(); ++layer) {
    ATOLL_RETURN_IF_ERROR(WriteLayer(LayerFile(folder, layer), state.layers[layer]));
  }
  return WriteText(folder + "/manifest", FormatManifest(state));
}

}  // namespace

CheckpointStore::CheckpointStore(std::string folder) : folder_(std::move(folder)) {}

absl::Status CheckpointStore::Write(const CheckpointState& state) const {
  ATOLL_RETURN_IF_ERROR(CheckJob(state.about.job));
  const std::string job = JobFolder(state.about.job);
  ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(job));
  const absl::StatusOr<std::string> previous = ReadText(job + "/current", 256);
  // Which one it names is not known now: none may be removed.
  if (absl::IsUnavailable(previous.status())) return previous.status();
  const std::string kept = previous.ok() ? *previous : "";
  RemoveAllBut(job, kept);
  // The same step may be written twice: by a restarted process that came as far again.
  std::string name = absl::StrCat("step-", state.about.inner_step, "-0");
  if (kept == name) name.back() = '1';
  if (const absl::Status written = WriteFolder(absl::StrCat(job, "/", name), state);
      !written.ok()) {
    RemoveAllBut(job, kept);
    return written;
  }
  if (const absl::Status named = WriteText(job + "/current", name); !named.ok()) {
    // It was renamed, perhaps, and only not synced: then either may be what a crash leaves.
    const absl::StatusOr<std::string> current = ReadText(job + "/current", 256);
    if (current.ok() ? *current == kept : absl::IsNotFound(current.status())) {
      RemoveAllBut(job, kept);
    }
    return named;
  }
  RemoveAllBut(job, name);
  return absl::OkStatus();
}

absl::StatusOr<CheckpointState> CheckpointStore::Read(const JobId& job) const {
  ATOLL_RETURN_IF_ERROR(CheckJob(job));
  ATOLL_ASSIGN_OR_RETURN(const std::string folder, CurrentFolder(JobFolder(job)));
  ATOLL_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder, job));
  for (size_t layer = 0; layer < manifest.layers.size(); ++layer) {
    absl::StatusOr<CheckpointLayer> read = ReadLayer(LayerFile(folder, layer), manifest, layer);
    if (!read.ok()) return absl::DataLossError(read.status().message());
    manifest.state.layers.push_back(*std::move(read));
  }
  return std::move(manifest.state);
}

absl::StatusOr<LocalCheckpoint> CheckpointStore::About(const JobId& job) const {
  ATOLL_RETURN_IF_ERROR(CheckJob(job));
  ATOLL_ASSIGN_OR_RETURN(const std::string folder, CurrentFolder(JobFolder(job)));
  ATOLL_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder, job));
  return std::move(manifest.state.about);
}

std::vector<JobId> CheckpointStore::Jobs() const {
  std::vector<JobId> jobs;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored)) {
    if (entry.is_directory(ignored)) jobs.push_back(entry.path().filename().string());
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

std::vector<LocalCheckpoint> CheckpointStore::List(std::vector<std::string>* problems) const {
  std::vector<LocalCheckpoint> found;
  for (const JobId& job : Jobs()) {
    absl::StatusOr<LocalCheckpoint> about = About(job);
    if (about.ok()) {
      found.push_back(*std::move(about));
    } else if (!absl::IsNotFound(about.status())) {
      problems->push_back(std::string(about.status().message()));
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
