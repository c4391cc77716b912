#include "coordinator/trust/audit_log.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/proto_json.h"
#include "common/wall_clock.h"

namespace atl {
namespace {

constexpr int kFullFiles = 3;
constexpr double kRefusalsBurst = 100;
constexpr double kRefusalsPerMs = 10.0 / 1000;
constexpr size_t kTextMax = 500;  // of what callers choose

void Shorten(std::string* text) {
  if (text->size() > kTextMax) text->resize(kTextMax);
}

}  // namespace

AuditLog::AuditLog(Files* files, std::string folder, int64_t file_bytes_max)
    : files_(files),
      folder_(std::move(folder)),
      file_bytes_max_(file_bytes_max),
      commits_(
          [this](const std::vector<v1::AuditEntry*>& entries) { return WriteActions(entries); }),
      refusals_allowed_(kRefusalsBurst) {}

std::string AuditLog::GetChainFilePath(const Chain& chain, int number) const {
  const std::string path = absl::StrCat(folder_, "/", chain.name);
  return number == 0 ? path : absl::StrCat(path, ".", number);
}

absl::Status AuditLog::Rotate(Chain* chain) {
  ATOLL_RETURN_IF_ERROR(chain->file->Sync());  // of a group that goes on in the next file
  chain->file.reset();
  for (int number = kFullFiles; number > 0; --number) {
    const absl::Status moved =
        files_->Rename(GetChainFilePath(*chain, number - 1), GetChainFilePath(*chain, number));
    if (!moved.ok() && !absl::IsNotFound(moved)) return moved;
  }
  return absl::OkStatus();
}

bool AuditLog::MayWriteRefusal(int64_t now_ms) {
  const double passed_ms = static_cast<double>(std::max<int64_t>(0, now_ms - last_refusal_ms_));
  refusals_allowed_ = std::min(kRefusalsBurst, refusals_allowed_ + passed_ms * kRefusalsPerMs);
  last_refusal_ms_ = now_ms;
  if (refusals_allowed_ < 1) return false;
  refusals_allowed_ -= 1;
  return true;
}

absl::Status AuditLog::Add(v1::AuditEntry entry) {
  entry.set_unix_ms(UnixTimeMs());
  Shorten(entry.mutable_who());
  Shorten(entry.mutable_call());
  Shorten(entry.mutable_target());
  Shorten(entry.mutable_reason());
  if (entry.denial() != v1::TRUST_DENIAL_UNSPECIFIED) return AddRefusal(std::move(entry));
  return commits_.Do(std::move(entry));
}

absl::Status AuditLog::WriteActions(const std::vector<v1::AuditEntry*>& entries) {
  const std::lock_guard lock(actions_.mutex);
  for (const v1::AuditEntry* entry : entries) ATOLL_RETURN_IF_ERROR(Append(&actions_, *entry));
  return actions_.file->Sync();
}

absl::Status AuditLog::AddRefusal(v1::AuditEntry entry) {
  const std::lock_guard lock(mutex_);
  ++denials_[entry.denial()];
  if (!MayWriteRefusal(entry.unix_ms())) {
    ++left_out_;
    return absl::OkStatus();
  }
  entry.set_left_out(std::exchange(left_out_, 0));
  const std::lock_guard files(refusals_.mutex);
  return Append(&refusals_, entry);
}

// REQUIRES: the chain's mutex is held.
absl::Status AuditLog::Append(Chain* chain, const v1::AuditEntry& entry) {
  std::unique_ptr<AppendFile>& file = chain->file;
  if (file != nullptr && file->size() >= file_bytes_max_) ATOLL_RETURN_IF_ERROR(Rotate(chain));
  if (file == nullptr) {
    ATOLL_RETURN_IF_ERROR(files_->MakeFolder(folder_));
    ATOLL_ASSIGN_OR_RETURN(file, files_->OpenAppend(GetChainFilePath(*chain, 0)));
    ATOLL_RETURN_IF_ERROR(files_->SyncFolder(folder_));
  }
  // An entry begins its line, also after one that a crash cut.
  const std::string line = absl::StrCat(file->size() > 0 ? "\n" : "", CompactJson(entry));
  return file->Append(std::array{AsBytes(line)});
}

absl::Status AuditLog::ReadChain(const Chain& chain, std::vector<v1::AuditEntry>* entries) const {
  for (int number = kFullFiles; number >= 0; --number) {
    const auto bytes =
        files_->Read(GetChainFilePath(chain, number), 2 * file_bytes_max_ + (1 << 20));
    if (absl::IsNotFound(bytes.status())) continue;
    ATOLL_RETURN_IF_ERROR(bytes.status());
    const absl::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      v1::AuditEntry entry;
      if (google::protobuf::util::JsonStringToMessage(std::string(line), &entry).ok()) {
        entries->push_back(std::move(entry));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::AuditEntry>> AuditLog::Read(int64_t tail) const {
  std::vector<v1::AuditEntry> entries;
  for (const Chain* chain : {&actions_, &refusals_}) {
    const std::lock_guard lock(chain->mutex);
    std::vector<v1::AuditEntry> kept;
    ATOLL_RETURN_IF_ERROR(ReadChain(*chain, &kept));
    const int64_t skipped = tail > 0 ? std::max<int64_t>(0, std::ssize(kept) - tail) : 0;
    entries.insert(entries.end(), kept.begin() + skipped, kept.end());
  }
  std::stable_sort(
      entries.begin(), entries.end(),
      [](const v1::AuditEntry& a, const v1::AuditEntry& b) { return a.unix_ms() < b.unix_ms(); });
  return entries;
}

std::map<v1::TrustDenial, int64_t> AuditLog::denials() const {
  const std::lock_guard lock(mutex_);
  return denials_;
}

}  // namespace atl
