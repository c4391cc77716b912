// A disk in memory for tests, that can die at any operation: what was not synced is then lost, kept
// or torn, as a seed says.

#ifndef ATOLL_COMMON_TESTING_FILES_SIMULATED_H_
#define ATOLL_COMMON_TESTING_FILES_SIMULATED_H_

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/files.h"
#include "common/rng.h"
#include "common/status.h"

namespace atl {

class SimulatedFiles : public Files {
 public:
  explicit SimulatedFiles(uint64_t seed) : rng_(seed) {}

  int64_t operations = 0;                                // that changed something, so far
  int64_t die_at = std::numeric_limits<int64_t>::max();  // this operation and all later ones fail
  int64_t space_bytes = std::numeric_limits<int64_t>::max();  // beyond it: no space left
  std::string unreadable;  // reading this file fails, though nothing is wrong with its bytes

  // Power is back: every file has its synced bytes, and perhaps some of the others, perhaps torn;
  // names that were not synced are there or not.
  void Restart() {
    for (const auto& [path, file] : names_) {
      if (rng_.Chance(0.5)) durable_[path] = file;
    }
    for (auto& [path, file] : durable_) {
      std::vector<std::byte>& bytes = file->bytes;
      if (bytes.size() <= file->synced) continue;
      const size_t kept = file->synced + rng_.Below(bytes.size() - file->synced + 1);
      bytes.resize(kept);
      for (size_t i = file->synced; i < kept; ++i) {
        if (rng_.Chance(0.01)) bytes[i] = std::byte(rng_.Below(256));
      }
      file->synced = bytes.size();
    }
    names_ = durable_;
    die_at = std::numeric_limits<int64_t>::max();
  }

  std::vector<std::byte>& Bytes(const std::string& path) { return names_.at(path)->bytes; }
  std::vector<std::string> Paths() const {
    std::vector<std::string> paths;
    for (const auto& [path, file] : names_) paths.push_back(path);
    return paths;
  }

  absl::StatusOr<std::unique_ptr<AppendFile>> OpenAppend(const std::string& path) override {
    ATOLL_RETURN_IF_ERROR(Operate());
    auto& file = names_[path];
    if (file == nullptr) file = std::make_shared<File>();
    return std::make_unique<Handle>(this, file);
  }
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& path, int64_t bytes_max) override {
    const auto file = names_.find(path);
    if (file == names_.end()) return absl::NotFoundError(path);
    if (path == unreadable) return absl::UnavailableError(path + ": cannot read");
    if (static_cast<int64_t>(file->second->bytes.size()) > bytes_max) {
      return absl::OutOfRangeError(path);
    }
    return file->second->bytes;
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    std::vector<std::string> names;
    const std::string prefix = folder + "/";
    for (const auto& [path, file] : names_) {
      if (path.compare(0, prefix.size(), prefix) != 0) continue;
      const std::string name =
          path.substr(prefix.size(), path.find('/', prefix.size()) - prefix.size());
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    return names;
  }
  absl::Status MakeFolder(const std::string&) override { return Operate(); }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    ATOLL_RETURN_IF_ERROR(Operate());
    if (!names_.contains(from)) return RenameFolder(from, to);
    names_[to] = std::exchange(names_.at(from), nullptr);
    names_.erase(from);
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& path) override {
    ATOLL_RETURN_IF_ERROR(Operate());
    return names_.erase(path) > 0 ? absl::OkStatus() : absl::NotFoundError(path);
  }
  absl::Status SyncFolder(const std::string& folder) override {
    ATOLL_RETURN_IF_ERROR(Operate());
    std::erase_if(durable_,
                  [&](const auto& entry) { return GetParentFolder(entry.first) == folder; });
    for (const auto& entry : names_) {
      if (GetParentFolder(entry.first) == folder) durable_.insert(entry);
    }
    return absl::OkStatus();
  }

 private:
  struct File {
    std::vector<std::byte> bytes;
    size_t synced = 0;
  };

  // Durable at once.
  absl::Status RenameFolder(const std::string& from, const std::string& to) {
    bool found = false;
    for (auto* files : {&names_, &durable_}) {
      const auto before = *files;
      for (const auto& [path, file] : before) {
        if (path.rfind(from + "/", 0) != 0) continue;
        files->erase(path);
        (*files)[to + path.substr(from.size())] = file;
        found = true;
      }
    }
    return found ? absl::OkStatus() : absl::NotFoundError(from);
  }

  class Handle : public AppendFile {
   public:
    Handle(SimulatedFiles* disk, std::shared_ptr<File> file)
        : disk_(disk), file_(std::move(file)) {}
    absl::Status Append(std::span<const ByteSpan> buffers) override {
      for (const ByteSpan buffer : buffers) {
        const absl::Status status = disk_->Operate();
        // The operation at which the disk dies may be done in part.
        size_t count = status.ok() ? buffer.size() : disk_->rng_.Below(buffer.size() + 1);
        const bool full =
            status.ok() && disk_->Used() + static_cast<int64_t>(count) > disk_->space_bytes;
        if (full) count /= 2;
        if (status.ok() || disk_->operations == disk_->die_at) {
          file_->bytes.insert(file_->bytes.end(), buffer.begin(),
                              buffer.begin() + static_cast<long>(count));
        }
        ATOLL_RETURN_IF_ERROR(status);
        if (full) return absl::ResourceExhaustedError("no space left on device");
      }
      return absl::OkStatus();
    }
    absl::Status Sync() override {
      ATOLL_RETURN_IF_ERROR(disk_->Operate());
      file_->synced = file_->bytes.size();
      return absl::OkStatus();
    }
    absl::Status Truncate(int64_t size) override {
      ATOLL_RETURN_IF_ERROR(disk_->Operate());
      file_->bytes.resize(static_cast<size_t>(size));
      file_->synced = std::min(file_->synced, file_->bytes.size());
      return absl::OkStatus();
    }
    int64_t size() const override { return static_cast<int64_t>(file_->bytes.size()); }

   private:
    SimulatedFiles* const disk_;
    const std::shared_ptr<File> file_;
  };

  absl::Status Operate() {
    if (operations >= die_at) return absl::UnavailableError("the disk is dead");
    return ++operations == die_at ? absl::UnavailableError("the disk died") : absl::OkStatus();
  }
  int64_t Used() const {
    int64_t used = 0;
    for (const auto& [path, file] : names_) used += static_cast<int64_t>(file->bytes.size());
    return used;
  }

  Rng rng_;
  std::map<std::string, std::shared_ptr<File>> names_;    // as the running system sees them
  std::map<std::string, std::shared_ptr<File>> durable_;  // as they would be after a crash
};

}  // namespace atl

#endif  // ATOLL_COMMON_TESTING_FILES_SIMULATED_H_
