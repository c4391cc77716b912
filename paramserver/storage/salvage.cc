#include "paramserver/storage/salvage.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "paramserver/core/job_replay.h"
#include "paramserver/storage/log.h"
#include "paramserver/storage/snapshot.h"

namespace atl::ps {
namespace {

constexpr Version kNewest = std::numeric_limits<Version>::max();

// Reads, and pretends to write.
class ReadOnlyFiles : public Files {
 public:
  explicit ReadOnlyFiles(Files& files) : files_(files) {}

  absl::StatusOr<std::unique_ptr<AppendFile>> OpenAppend(const std::string&) override {
    return std::make_unique<Nothing>();
  }
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& path, int64_t max) override {
    return files_.Read(path, max);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return files_.List(folder);
  }
  absl::Status MakeFolder(const std::string&) override { return absl::OkStatus(); }
  absl::Status Rename(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::Status Remove(const std::string&) override { return absl::OkStatus(); }
  absl::Status SyncFolder(const std::string&) override { return absl::OkStatus(); }

 private:
  class Nothing : public AppendFile {
   public:
    absl::Status Append(std::span<const ByteSpan>) override { return absl::OkStatus(); }
    absl::Status Sync() override { return absl::OkStatus(); }
    absl::Status Truncate(int64_t) override { return absl::OkStatus(); }
    int64_t size() const override { return 0; }
  };

  Files& files_;
};

class Salvager {
 public:
  Salvager(Files& files, const JobId& job, ThreadPool* pool)
      : files_(files), job_(job), pool_(pool) {}

  absl::StatusOr<SalvagedJob> Run(const std::vector<std::string>& folders) {
    for (const std::string& folder : folders) {
      ATOLL_ASSIGN_OR_RETURN(auto state, StateUpTo(folder, kNewest));
      if (state != nullptr && state->assigned()) states_[folder] = std::move(state);
    }
    if (states_.empty()) {
      return absl::NotFoundError(absl::StrCat("none of these folders holds job ", job_));
    }
    ATOLL_RETURN_IF_ERROR(Meet());
    return Assemble();
  }

 private:
  std::string JobFolder(const std::string& folder) const {
    return absl::StrCat(folder, "/jobs/", job_);
  }

  absl::StatusOr<std::shared_ptr<const Snapshot>> SnapshotUpTo(const std::string& folder,
                                                               Version limit) {
    ATOLL_ASSIGN_OR_RETURN(const auto paths, ListSnapshots(files_, JobFolder(folder)));
    for (const std::string& path : paths) {
      auto snapshot = ReadSnapshotFile(files_, path);
      if (snapshot.ok() && (*snapshot)->version <= limit && (*snapshot)->job == job_) {
        return *std::move(snapshot);
      }
      if (snapshot.ok()) continue;
      if (!absl::IsDataLoss(snapshot.status())) return snapshot.status();
      Note(std::string(snapshot.status().message()));
    }
    return nullptr;
  }

  // Reads the state as far as the folder goes, at most to that version. Null: nothing can be read
  // of the job.
  absl::StatusOr<std::unique_ptr<JobState>> StateUpTo(const std::string& folder, Version limit) {
    ATOLL_ASSIGN_OR_RETURN(const auto snapshot, SnapshotUpTo(folder, limit));
    JobReplay replay(job_, snapshot, pool_, limit);
    const LogSequence from = snapshot == nullptr ? 1 : snapshot->replay_from;
    const LogSequence covered = snapshot == nullptr ? 0 : snapshot->last_sequence;
    const auto end = ReadLog(files_, JobFolder(folder), from, covered, LogOptions(),
                             [&](LogSequence sequence, const LogRecord& record) {
                               const absl::Status status = replay.Add(sequence, record);
                               return status.ok() ? status : absl::DataLossError(status.message());
                             });
    if (!end.ok() && !absl::IsDataLoss(end.status())) return end.status();
    const std::string& said = end.ok() ? (end->cut.empty() ? end->skipped : end->cut)
                                       : std::string(end.status().message());
    if (!said.empty()) Note(said);
    return std::move(replay).State();
  }

  // Brings all folders to one version, the newest that all reach.
  absl::Status Meet() {
    Version newest = kNoVersion;
    const JobState* first = nullptr;
    for (const auto& [folder, state] : states_) {
      if (state->version() <= newest) continue;
      newest = state->version();
      first = state.get();
    }
    if (first == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", job_, " has no committed version in these folders"));
    }
    const CommittedRecord round = first->newest();
    bool together = true;
    for (auto& [folder, state] : states_) {
      if (state->version() == newest) continue;
      const absl::Status status = state->Check(LogRecord(round));
      if (status.ok()) {
        state->Apply(0, LogRecord(round));
        continue;
      }
      together = false;
      Note(absl::StrCat(folder, " does not reach version ", newest, ": ", status.message()));
    }
    return together ? absl::OkStatus() : GoBack();
  }

  absl::Status GoBack() {
    Version oldest = kNewest;
    std::string whose;
    for (const auto& [folder, state] : states_) {
      if (state->version() < oldest) whose = folder;
      oldest = std::min(oldest, state->version());
    }
    for (auto& [folder, state] : states_) {
      if (state->version() == oldest) continue;
      ATOLL_ASSIGN_OR_RETURN(state, StateUpTo(folder, oldest));
      if (state != nullptr && state->version() == oldest) continue;
      return absl::DataLossError(absl::StrCat("no version is whole: ", whose, " reaches version ",
                                              oldest, " and not more, ", folder,
                                              " keeps nothing as old as that"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SalvagedJob> Assemble() {
    SalvagedJob result;
    result.job = job_;
    for (const auto& [folder, state] : states_) {
      result.version = state->version();
      if (!state->assignment().definition.facts.layers.empty()) {
        result.definition = state->assignment().definition;
      }
    }
    const std::vector<LayerSize>& layers = result.definition.facts.layers;
    if (layers.empty()) return absl::DataLossError("no folder's log says what the job is");
    std::vector<int64_t> missing;
    for (const LayerSize& layer : layers) missing.push_back(layer.elements);
    std::set<ShardId> taken;
    std::vector<std::pair<OwnedShard, std::shared_ptr<SharedTensor>>> parts;
    for (const auto& [folder, state] : states_) {
      for (const OwnedShard& shard : state->assignment().shards) {
        if (!taken.insert(shard.shard).second) continue;  // a copy of it
        const auto theta = state->Theta(shard.shard);
        const auto layer = static_cast<size_t>(shard.layer);
        if (theta == nullptr || std::ssize(theta->values()) != shard.elements || shard.layer < 0 ||
            layer >= layers.size() || shard.begin < 0 ||
            shard.begin > layers[layer].elements - shard.elements) {
          return absl::DataLossError(absl::StrCat(folder, ": shard ", shard.shard, " of job ", job_,
                                                  " does not fit the model"));
        }
        parts.emplace_back(shard, theta);
        missing[layer] -= shard.elements;
      }
    }
    for (size_t layer = 0; layer < missing.size(); ++layer) {
      if (missing[layer] <= 0) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          missing[layer], " of the ", layers[layer].elements, " parameters of layer ", layer, " (",
          layers[layer].name, ") are in none of the folders: give those of all the job's servers"));
    }
    // The sizes are those that what was read has, whatever else the logs say.
    for (const LayerSize& layer : layers) {
      result.layers.emplace_back(static_cast<size_t>(layer.elements));
    }
    for (const auto& [shard, theta] : parts) {
      std::copy(theta->values().begin(), theta->values().end(),
                result.layers[static_cast<size_t>(shard.layer)].begin() + shard.begin);
    }
    result.notes = std::move(notes_);
    return result;
  }

  void Note(std::string text) {
    if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) {
      notes_.push_back(std::move(text));
    }
  }

  Files& files_;
  const JobId job_;
  ThreadPool* const pool_;
  std::map<std::string, std::unique_ptr<JobState>> states_;  // by folder
  std::vector<std::string> notes_;
};

}  // namespace

absl::StatusOr<SalvagedJob> Salvage(Files& files, const std::vector<std::string>& state_folders,
                                    const JobId& job, ThreadPool* pool) {
  std::set<JobId> held;
  for (const std::string& folder : state_folders) {
    ATOLL_ASSIGN_OR_RETURN(const auto names, files.List(folder + "/jobs"));
    if (names.empty()) {
      return absl::NotFoundError(
          absl::StrCat(folder, ": holds no job; give the --state-dir of a parameter server"));
    }
    held.insert(names.begin(), names.end());
  }
  if (job.empty() && held.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the folders hold several jobs (", absl::StrJoin(held, ", "), "): choose one by --job"));
  }
  const JobId& chosen = job.empty() ? *held.begin() : job;
  if (!held.contains(chosen)) {
    return absl::NotFoundError(
        absl::StrCat("the folders hold ", absl::StrJoin(held, ", "), ", and not ", chosen));
  }
  ReadOnlyFiles read_only(files);
  return Salvager(read_only, chosen, pool).Run(state_folders);
}

}  // namespace atl::ps
