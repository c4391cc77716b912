#include "paramserver/storage/storage.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "common/status.h"
#include "paramserver/storage/snapshot.h"

namespace atl::ps {
namespace {

constexpr std::chrono::seconds kRetry(1);  // after a failed write
constexpr char kRemoved[] = "removed";

std::string JobsFolder(const std::string& state_folder) { return state_folder + "/jobs"; }

// The newest snapshot that can be read; null if there is none. Damaged ones are put aside.
absl::StatusOr<std::shared_ptr<const Snapshot>> NewestSnapshot(Files& files,
                                                               const std::string& folder,
                                                               std::vector<std::string>& notes) {
  ATOLL_ASSIGN_OR_RETURN(const auto paths, ListSnapshots(files, folder));
  for (const std::string& path : paths) {
    auto snapshot = ReadSnapshotFile(files, path);
    if (snapshot.ok()) return *std::move(snapshot);
    if (snapshot.status().code() != absl::StatusCode::kDataLoss) return snapshot.status();
    notes.push_back(absl::StrCat(snapshot.status().message(), "; kept as ", path,
                                 ".damaged, going on from the one before it"));
    ATOLL_RETURN_IF_ERROR(files.Rename(path, path + ".damaged"));
    ATOLL_RETURN_IF_ERROR(files.SyncFolder(folder));
  }
  return nullptr;
}

// Content that could be read and makes no sense is damage, whatever found it.
absl::Status AsDamage(const absl::Status& status) {
  return status.ok() ? status : absl::DataLossError(status.message());
}

// DATA_LOSS: damaged. Other errors: it cannot be read now.
absl::StatusOr<RecoveredJob> RecoverJob(Files& files, const std::string& folder, const JobId& job,
                                        const LogOptions& options, ThreadPool* pool,
                                        RecoveredState& state) {
  ATOLL_ASSIGN_OR_RETURN(const auto snapshot, NewestSnapshot(files, folder, state.notes));
  if (snapshot != nullptr && snapshot->job != job) {
    return absl::DataLossError(absl::StrCat(folder, ": its snapshot is of job ", snapshot->job));
  }
  JobReplay replay(job, snapshot, pool);
  const LogSequence from = snapshot == nullptr ? 1 : snapshot->replay_from;
  const LogSequence covered = snapshot == nullptr ? 0 : snapshot->last_sequence;
  ATOLL_ASSIGN_OR_RETURN(const LogEnd end,
                         ReadLog(files, folder, from, covered, options,
                                 [&](LogSequence sequence, const LogRecord& record) {
                                   return AsDamage(replay.Add(sequence, record));
                                 }));
  if (!end.cut.empty()) state.notes.push_back(end.cut);
  if (!end.skipped.empty()) state.notes.push_back(end.skipped);
  replay.EndsBefore(end.next_sequence);
  auto recovered = std::move(replay).Finish();
  if (!recovered.ok()) return AsDamage(Annotate(recovered.status(), folder));
  state.logs[job] = end;
  return recovered;
}

// Formats the content of the file `removed`: which job is to be deleted.
std::string FormatRemovalOrder(const JobId& job) { return absl::StrCat("job ", job, "\n"); }

// Returns whether the folder holds an order to delete it. Only a whole one counts, of this job:
// what a crash left of one, or a copied one, orders nothing.
absl::StatusOr<bool> HasRemovalOrder(Files& files, const std::string& folder, const JobId& job) {
  constexpr int64_t kOrderBytesMax = 1024;
  const auto bytes = files.Read(folder + "/" + kRemoved, kOrderBytesMax);
  if (absl::IsNotFound(bytes.status()) || absl::IsOutOfRange(bytes.status())) return false;
  ATOLL_RETURN_IF_ERROR(bytes.status());
  return absl::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()) ==
         FormatRemovalOrder(job);
}

// Deletes the job's folder, as was ordered. Whenever the machine dies, the job is there whole, or
// is to be deleted.
absl::Status EraseFolder(Files& files, const std::string& folder, const JobId& job) {
  ATOLL_ASSIGN_OR_RETURN(const auto names, files.List(folder));
  const std::string mark = folder + "/" + kRemoved;
  if (!names.empty()) {
    ATOLL_ASSIGN_OR_RETURN(const auto file, files.OpenAppend(mark));
    ATOLL_RETURN_IF_ERROR(file->Truncate(0));
    const std::string order = FormatRemovalOrder(job);
    ATOLL_RETURN_IF_ERROR(file->Append(std::array{AsBytes(order)}));
    ATOLL_RETURN_IF_ERROR(file->Sync());
    ATOLL_RETURN_IF_ERROR(files.SyncFolder(folder));
    for (const std::string& name : names) {
      if (name != kRemoved) ATOLL_RETURN_IF_ERROR(files.Remove(folder + "/" + name));
    }
    ATOLL_RETURN_IF_ERROR(files.SyncFolder(folder));
    ATOLL_RETURN_IF_ERROR(files.Remove(mark));
    ATOLL_RETURN_IF_ERROR(files.SyncFolder(folder));
  }
  (void)files.Remove(folder);  // an empty folder may stay
  return absl::OkStatus();
}

// Renames the job's folder, so that nothing of it is lost. One that is not there is no error.
absl::Status PutFolderAside(Files& files, const std::string& jobs_folder, const JobId& job) {
  const std::string folder = jobs_folder + "/" + job;
  const std::string aside = GetParentFolder(jobs_folder) + "/damaged";
  ATOLL_ASSIGN_OR_RETURN(const auto held, files.List(folder));
  if (held.empty()) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(files.MakeFolder(aside));
  std::string to;
  for (int n = 1; to.empty(); ++n) {
    const std::string name = absl::StrCat(aside, "/", job, "-", n);
    ATOLL_ASSIGN_OR_RETURN(const auto there, files.List(name));
    if (there.empty()) to = name;
  }
  ATOLL_RETURN_IF_ERROR(files.Rename(folder, to));
  ATOLL_RETURN_IF_ERROR(files.SyncFolder(aside));
  return files.SyncFolder(jobs_folder);
}

size_t CountStorageActions(const Actions& actions) {
  return actions.log.size() + actions.snapshots.size() + actions.truncations.size() +
         actions.erasures.size();
}

}  // namespace

absl::StatusOr<RecoveredState> RecoverState(Files& files, const std::string& state_folder,
                                            const LogOptions& options, ThreadPool* pool) {
  RecoveredState state;
  ATOLL_ASSIGN_OR_RETURN(const auto names, files.List(JobsFolder(state_folder)));
  for (const std::string& job : names) {
    const std::string folder = JobsFolder(state_folder) + "/" + job;
    const auto removed = HasRemovalOrder(files, folder, job);
    if (removed.ok() && *removed) {
      const absl::Status erased = EraseFolder(files, folder, job);
      if (!erased.ok()) state.erasing.push_back(job);
      state.notes.push_back(absl::StrCat(folder, erased.ok() ? ": deleted" : ": to be deleted",
                                         ", the job was removed"));
      continue;
    }
    auto recovered = removed.ok() ? RecoverJob(files, folder, job, options, pool, state)
                                  : absl::StatusOr<RecoveredJob>(removed.status());
    if (!recovered.ok() && !absl::IsDataLoss(recovered.status())) {
      return absl::Status(
          recovered.status().code(),
          absl::StrCat(recovered.status().message(), "; start again when it can be read, or move ",
                       folder, " away to discard what this server holds of the job"));
    }
    if (!recovered.ok()) {
      state.notes.push_back(std::string(recovered.status().message()));
      RecoveredJob& damaged = state.jobs.emplace_back();
      damaged.job = job;
      damaged.damage = std::string(recovered.status().message());
    } else if (recovered->state->assigned()) {
      state.jobs.push_back(*std::move(recovered));
    }
  }
  return state;
}

Storage::Storage(Files* files, std::string state_folder, const RecoveredState& recovered,
                 LogOptions options)
    : files_(files), jobs_folder_(JobsFolder(state_folder)), options_(options) {
  for (const auto& [job, end] : recovered.logs) {
    jobs_[job].log = std::make_unique<LogWriter>(files_, GetJobFolder(job), end, options_);
  }
  for (const JobId& job : recovered.erasing) jobs_[job].erase = true;
}

Storage::JobDisk& Storage::GetJobDisk(const JobId& job) {
  JobDisk& disk = jobs_[job];
  if (disk.log == nullptr) {
    disk.log = std::make_unique<LogWriter>(files_, GetJobFolder(job), LogEnd{}, options_);
  }
  return disk;
}

void Storage::Add(AppendLog append) {
  GetJobDisk(append.job).unsynced.push_back(std::move(append));
}

void Storage::Add(WriteSnapshot write) {
  GetJobDisk(write.snapshot->job).snapshot = std::move(write.snapshot);
}

void Storage::Add(TruncateLog truncate) { GetJobDisk(truncate.job).keep_from = truncate.keep_from; }

void Storage::Add(const EraseJob& erase) {
  jobs_[erase.job] = JobDisk();
  jobs_[erase.job].erase = true;
  jobs_[erase.job].put_aside = erase.put_aside;
}

absl::Status Storage::WriteLog(JobDisk& disk) {
  if (disk.needs_rollback) ATOLL_RETURN_IF_ERROR(disk.log->Rollback());
  disk.needs_rollback = true;
  for (const AppendLog& append : disk.unsynced) {
    ATOLL_RETURN_IF_ERROR(disk.log->Append(append.sequence, append.record));
  }
  ATOLL_RETURN_IF_ERROR(disk.log->Sync());
  disk.needs_rollback = false;
  disk.unsynced.clear();
  return absl::OkStatus();
}

void Storage::EraseSome(std::vector<Event>& events) {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    auto& [job, disk] = *it;
    if (disk.erase && writing_.contains(job)) {
      ++it;
      continue;
    }
    const absl::Status erased = !disk.erase      ? absl::OkStatus()
                                : disk.put_aside ? PutFolderAside(*files_, jobs_folder_, job)
                                                 : EraseFolder(*files_, GetJobFolder(job), job);
    if (disk.erase && erased.ok()) {
      events.push_back(JobErased{job});
      it = jobs_.erase(it);
      continue;
    }
    if (!erased.ok() && disk.erase_trouble != erased.message()) {
      disk.erase_trouble = std::string(erased.message());
      events.push_back(EraseFailed{job, disk.erase_trouble});
    }
    ++it;
  }
}

std::vector<Event> Storage::Work() {
  std::vector<Event> events;
  EraseSome(events);
  for (auto& [job, disk] : jobs_) {
    if (disk.unsynced.empty()) continue;
    if (const absl::Status status = WriteLog(disk); !status.ok()) {
      events.push_back(LogFailed{job, std::string(status.message())});
    } else {
      events.push_back(LogSynced{job, disk.log->synced()});
    }
  }
  // A failure leaves old segments behind; the next truncation takes them too.
  for (auto& [job, disk] : jobs_) {
    if (disk.keep_from != 0) (void)disk.log->Truncate(std::exchange(disk.keep_from, 0));
  }
  return events;
}

std::vector<Storage::ReadySnapshot> Storage::TakeReady() {
  std::vector<ReadySnapshot> ready;
  for (auto& [job, disk] : jobs_) {
    if (disk.snapshot == nullptr || disk.log->synced() < disk.snapshot->last_sequence) continue;
    ready.push_back({GetJobFolder(job), std::exchange(disk.snapshot, nullptr)});
    writing_.insert(job);
  }
  return ready;
}

SnapshotDone Storage::WriteReady(Files& files, const ReadySnapshot& ready) {
  return {ready.snapshot->job, ready.snapshot->version,
          WriteSnapshotFile(files, ready.folder, *ready.snapshot)};
}

bool Storage::idle() const {
  for (const auto& [job, disk] : jobs_) {
    if (!disk.unsynced.empty() || disk.snapshot != nullptr || disk.erase) return false;
  }
  return true;
}

int64_t Storage::log_bytes() const {
  int64_t bytes = 0;
  for (const auto& [job, disk] : jobs_) {
    if (disk.log != nullptr) bytes += disk.log->bytes();
  }
  return bytes;
}

StorageThread::StorageThread(std::unique_ptr<Storage> storage, std::function<void(Event)> post)
    : storage_(std::move(storage)),
      files_(storage_->files()),
      post_(std::move(post)),
      snapshot_thread_([this] { WriteSnapshots(); }),
      thread_([this] { Run(); }) {}

StorageThread::~StorageThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
  ready_changed_.notify_one();
  snapshot_thread_.join();
}

void StorageThread::Add(Actions& actions) {
  if (CountStorageActions(actions) == 0) return;
  const auto move_to = [](auto& from, auto& to) {
    for (auto& each : from) to.push_back(std::move(each));
    from.clear();
  };
  {
    const std::lock_guard lock(mutex_);
    move_to(actions.log, added_.log);
    move_to(actions.snapshots, added_.snapshots);
    move_to(actions.truncations, added_.truncations);
    move_to(actions.erasures, added_.erasures);
  }
  changed_.notify_one();
}

StorageThread::Queued StorageThread::queued() const {
  const std::lock_guard lock(mutex_);
  return {CountStorageActions(added_), ready_.size()};
}

void StorageThread::Run() {
  for (bool stop = false; !stop;) {
    Actions added;
    {
      std::unique_lock lock(mutex_);
      const auto more = [this] {
        return stop_ || CountStorageActions(added_) > 0 || !written_.empty();
      };
      if (storage_->idle()) {
        changed_.wait(lock, more);
      } else {
        changed_.wait_for(lock, kRetry, [this] { return stop_ || !written_.empty(); });
      }
      stop = stop_;
      for (const JobId& job : written_) storage_->Written(job);
      written_.clear();
      added = std::exchange(added_, {});
    }
    for (AppendLog& append : added.log) storage_->Add(std::move(append));
    for (WriteSnapshot& write : added.snapshots) storage_->Add(std::move(write));
    for (TruncateLog& truncate : added.truncations) storage_->Add(truncate);
    for (const EraseJob& erase : added.erasures) storage_->Add(erase);
    std::vector<Event> events = storage_->Work();
    log_bytes_ = storage_->log_bytes();
    {
      const std::lock_guard lock(mutex_);
      for (Storage::ReadySnapshot& ready : storage_->TakeReady())
        ready_.push_back(std::move(ready));
    }
    ready_changed_.notify_one();
    for (Event& event : events) post_(std::move(event));
  }
}

void StorageThread::WriteSnapshots() {
  while (true) {
    Storage::ReadySnapshot ready;
    {
      std::unique_lock lock(mutex_);
      ready_changed_.wait(lock, [this] { return stop_ || !ready_.empty(); });
      if (ready_.empty()) return;
      ready = std::move(ready_.front());
      ready_.pop_front();
    }
    SnapshotDone done = Storage::WriteReady(files_, ready);
    const JobId job = done.job;
    ready = {};  // the core may now change the tensors that it held in place
    post_(std::move(done));
    {
      const std::lock_guard lock(mutex_);
      written_.push_back(job);
    }
    changed_.notify_one();
  }
}

}  // namespace atl::ps
