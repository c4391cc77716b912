// Local checkpoints: what a restarted worker goes on from.
//
// On disk, one folder per job under the store's folder:
//
//   JOB/current             name of the folder of the newest whole checkpoint
//   JOB/step-N-K/layer-L    theta, theta_base, both moments of layer L, and the residual where
//                           pushes are quantised: little endian fp32
//   JOB/step-N-K/manifest   what it is, and size and XXH3 of every layer file; written last
//
// Writing makes a new folder (every file and the folder synced), then replaces `current` by rename,
// then deletes the one before: whenever the machine dies, one whole checkpoint is named by
// `current`. Whatever else is left of an attempt, it goes before the next one. Reading believes
// nothing: sizes are checked before memory is taken, every byte is covered by a checksum, and a
// damaged checkpoint is an error that names the file.

#ifndef ATOLL_WORKER_CHECKPOINT_CHECKPOINT_H_
#define ATOLL_WORKER_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/control.h"
#include "common/status.h"

namespace atl::worker {

struct CheckpointLayer {
  // All of the layer's size; the residual may be empty instead, in all layers or none.
  std::vector<float> theta, base, first_moment, second_moment;
  std::vector<float> residual = {};
};

struct CheckpointState {
  LocalCheckpoint about;
  int64_t optimizer_steps = 0;
  std::vector<CheckpointLayer> layers;
};

// Thread-safe as far as different jobs go; one thread at a time for one job.
class CheckpointStore {
 public:
  // `folder` is made where it is missing.
  explicit CheckpointStore(std::string folder);

  // What every checkpoint holds, by its manifest; every file is there with its size. Others are
  // left out, and told in `problems`, one line each. Layers are not read: their damage is for Read.
  std::vector<LocalCheckpoint> List(std::vector<std::string>* problems) const;

  // An error (a full disk, most often) leaves the checkpoint before, and nothing of this one;
  // where only the very last sync failed, both.
  absl::Status Write(const CheckpointState& state) const;
  // Of which there is anything, of saved states (worker/state) too.
  std::vector<JobId> Jobs() const;
  // NotFound: there is none. DataLoss: damaged, and where.
  absl::StatusOr<CheckpointState> Read(const JobId& job) const;
  void Remove(const JobId& job) const;

 private:
  absl::StatusOr<LocalCheckpoint> About(const JobId& job) const;
  std::string JobFolder(const JobId& job) const { return absl::StrCat(folder_, "/", job); }

  const std::string folder_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CHECKPOINT_CHECKPOINT_H_
