// Makes durable what the core requests, and finds it again after a restart.
//
//   STATE/jobs/<job>/log-*, snapshot-*
//   STATE/jobs/<job>/removed              names the job: the rest is to be deleted, or is already
//   STATE/damaged/<job>-1                 what was damaged, when its shards were filled anew
//
// `Storage` works when called, on the caller's thread; StorageThread runs it in parallel to the
// event loop. A job whose disk is full or failing is retried later; others continue.

#ifndef ATOLL_PARAMSERVER_STORAGE_STORAGE_H_
#define ATOLL_PARAMSERVER_STORAGE_STORAGE_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/files.h"
#include "paramserver/core/core.h"
#include "paramserver/storage/log.h"

namespace atl::ps {

// The content of the state folder.
struct RecoveredState {
  std::vector<RecoveredJob> jobs;
  std::vector<std::string> notes;  // what was cut off, what was damaged and how it was mended
  std::map<JobId, LogEnd> logs;
  std::vector<JobId> erasing;  // removed, but cannot be deleted yet
};

// Damage of a job is in its RecoveredJob. What cannot be read or mended now (a failing disk,
// rights, too many open files) is not damage but an error, whichever job's it is: a server that
// said it does not hold that job would end it. Changes the folder where it must: torn tails are
// cut, damaged snapshots are put aside (*.damaged).
absl::StatusOr<RecoveredState> RecoverState(Files& files, const std::string& state_folder,
                                            const LogOptions& options, ThreadPool* pool);

// One thread.
class Storage {
 public:
  Storage(Files* files, std::string state_folder, const RecoveredState& recovered,
          LogOptions options);

  void Add(AppendLog append);
  void Add(WriteSnapshot write);
  void Add(TruncateLog truncate);
  void Add(const EraseJob& erase);

  // A snapshot that may be written: it is not ahead of the log.
  struct ReadySnapshot {
    std::string folder;
    std::shared_ptr<const Snapshot> snapshot;
  };

  // Does what was added, with one sync a job; what fails stays for the next call. Returns events
  // for the core. Snapshots are made ready for TakeReady.
  std::vector<Event> Work();
  // Returns snapshots, which are to be written (WriteReady, any thread) and then handed to Written:
  // until then its job is not erased.
  std::vector<ReadySnapshot> TakeReady();
  static SnapshotDone WriteReady(Files& files, const ReadySnapshot& ready);
  void Written(const JobId& job) { writing_.erase(job); }
  Files& files() const { return *files_; }
  bool idle() const;
  int64_t log_bytes() const;

 private:
  struct JobDisk {
    std::unique_ptr<LogWriter> log;
    std::deque<AppendLog> unsynced;
    bool needs_rollback = false;
    std::shared_ptr<const Snapshot> snapshot;
    LogSequence keep_from = 0;
    bool erase = false;
    bool put_aside = false;  // rather than erased
    std::string erase_trouble;
  };

  JobDisk& GetJobDisk(const JobId& job);
  std::string GetJobFolder(const JobId& job) const { return jobs_folder_ + "/" + job; }
  absl::Status WriteLog(JobDisk& disk);
  void EraseSome(std::vector<Event>& events);

  Files* const files_;
  const std::string jobs_folder_;
  const LogOptions options_;
  std::map<JobId, JobDisk> jobs_;
  std::set<JobId> writing_;  // snapshots that were taken
};

// Runs a Storage on a thread of its own, and writes snapshots on another one: pushes become durable
// meanwhile. What is added while it syncs is synced together.
class StorageThread {
 public:
  // `post` is called on the storage's thread for every event and must not wait for that thread.
  StorageThread(std::unique_ptr<Storage> storage, std::function<void(Event)> post);
  // Finishes what was added before, once; what fails then is not durable and was not acknowledged.
  ~StorageThread();
  StorageThread(const StorageThread&) = delete;
  StorageThread& operator=(const StorageThread&) = delete;

  // Takes the storage's part out of the actions. Never waits: what is queued is bounded by the
  // memory that the core grants to staged pushes. Thread-safe.
  void Add(Actions& actions);
  int64_t log_bytes() const { return log_bytes_; }

  // Counts of what waits for each of the two threads. Thread-safe.
  struct Queued {
    size_t storage = 0;
    size_t snapshots = 0;
  };
  Queued queued() const;

 private:
  void Run();
  void WriteSnapshots();

  const std::unique_ptr<Storage> storage_;  // used by thread_ alone
  Files& files_;
  const std::function<void(Event)> post_;
  std::atomic<int64_t> log_bytes_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Actions added_;  // its part alone; these four are guarded by mutex_
  std::deque<Storage::ReadySnapshot> ready_;
  std::vector<JobId> written_;
  bool stop_ = false;
  std::condition_variable ready_changed_;
  std::thread snapshot_thread_;
  std::thread thread_;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_STORAGE_STORAGE_H_
