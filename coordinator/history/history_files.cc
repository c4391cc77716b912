#include "coordinator/history/history_files.h"

#include <xxhash.h>

#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/logging.h"
#include "proto/coordinator.pb.h"

namespace atl {
namespace {

constexpr Duration kInterval = std::chrono::seconds(60);
constexpr char kPart[] = "history";
constexpr size_t kChecksumBytes = 8;

// XXH3, lowest byte first.
std::string Checksum(const void* bytes, size_t size) {
  const uint64_t value = XXH3_64bits(bytes, size);
  std::string text;
  for (size_t i = 0; i < kChecksumBytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

// A file is the message and its checksum.
bool Parse(const std::vector<std::byte>& file, v1::JobHistory* message) {
  if (file.size() < kChecksumBytes) return false;
  const size_t size = file.size() - kChecksumBytes;
  return Checksum(file.data(), size) ==
             absl::string_view(reinterpret_cast<const char*>(&file[size]), kChecksumBytes) &&
         message->ParseFromArray(file.data(), static_cast<int>(size));
}

}  // namespace

HistoryFiles::HistoryFiles(Files* files, std::string folder)
    : files_(files), folder_(std::move(folder)), thread_([this] { Run(); }) {}

HistoryFiles::~HistoryFiles() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    filled_.notify_all();
  }
  thread_.join();
}

void HistoryFiles::Load(History* history) {
  if (const absl::Status made = files_->MakeFolder(folder_); !made.ok()) {
    LogWarning(kPart, made.message(), "; curves are not kept");
  }
  const auto names = files_->List(folder_);
  if (!names.ok()) return LogWarning(kPart, names.status().message(), "; no curves are loaded");
  for (const std::string& name : *names) {
    if (absl::StrContains(name, ".")) continue;  // a write that was cut off
    const auto bytes = files_->Read(folder_ + "/" + name, kHistoryBytesMax);
    v1::JobHistory message;
    if (!bytes.ok() || !Parse(*bytes, &message) || message.job() != name) {
      // Put aside: what the job adds from now on replaces the file.
      const std::string aside = folder_ + "/" + name + ".damaged";
      const absl::Status kept = files_->Rename(folder_ + "/" + name, aside);
      LogWarning(kPart, folder_, "/", name, ": ",
                 bytes.ok() ? "is damaged" : bytes.status().message(),
                 "; the job's curves begin anew, ",
                 kept.ok() ? absl::StrCat("and the file is kept as ", aside)
                           : std::string(kept.message()));
      continue;
    }
    history->Restore(name, JobHistory::Decode(message));
  }
}

void HistoryFiles::Queue(const History& history, const JobId& job) {
  Write write{GetJobFilePath(job), ""};
  if (const JobHistory* found = history.Find(job)) {
    v1::JobHistory message;
    message.set_job(job);
    found->Encode(kRoundCurvePoints, std::numeric_limits<size_t>::max(), &message);
    write.bytes = message.SerializeAsString();
    write.bytes += Checksum(write.bytes.data(), write.bytes.size());
  }
  const std::lock_guard lock(mutex_);
  queue_[write.path] = std::move(write);
  filled_.notify_all();
}

Instant HistoryFiles::Save(Instant now, History* history) {
  History::Changes changes = history->TakeChanges();
  for (const JobId& job : changes.erased) {
    waiting_.erase(job);
    Queue(*history, job);
  }
  for (const JobId& job : changes.now) {
    waiting_.erase(job);
    Queue(*history, job);
  }
  for (const JobId& job : changes.later) waiting_.insert(job);
  if (waiting_.empty()) return kNever;
  if (next_ <= now) {
    for (const JobId& job : std::exchange(waiting_, {})) Queue(*history, job);
    next_ = now + kInterval;
    return kNever;
  }
  return next_;
}

void HistoryFiles::SaveAll(History* history) {
  next_ = Instant{};
  Save(Instant{}, history);
}

void HistoryFiles::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    filled_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Write write = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    lock.unlock();
    const absl::Status status =
        write.bytes.empty() ? files_->Remove(write.path)
                            : WriteFileAtomically(*files_, write.path, {{AsBytes(write.bytes)}});
    if (!status.ok() && !absl::IsNotFound(status)) LogWarning(kPart, status.message());
    lock.lock();
  }
}

}  // namespace atl
