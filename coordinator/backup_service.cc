#include "coordinator/backup_service.h"

#include <grpcpp/support/server_callback.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>

#include "common/files.h"
#include "common/net/control/grpc_status.h"
#include "common/status.h"
#include "proto/backup.grpc.pb.h"

namespace atl {
namespace {

constexpr int64_t kPartBytes = 1 << 20;

// Makes the copy on a thread of its own, then sends it part by part. Deletes itself.
class BackupStream : public grpc::ServerWriteReactor<v1::BackupPart> {
 public:
  // `busy` is false again when the stream has ended.
  BackupStream(const Store* store, const std::string& copy, std::atomic<bool>* busy)
      : store_(store), copy_(copy), busy_(busy) {
    std::thread([this] { Begin(); }).detach();  // ends with what may delete this, and no sooner
  }
  ~BackupStream() override {
    XXH3_freeState(checksum_);
    *busy_ = false;
  }

  void OnWriteDone(bool ok) override {
    if (!ok || cancelled_)
      return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the stream has ended"));
    if (part_.last()) return Finish(grpc::Status::OK);
    SendNext();
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { delete this; }

 private:
  void Begin() {
    std::remove(copy_.c_str());  // of a coordinator that was killed
    const auto sequence = store_->BackUp(copy_);
    if (!sequence.ok()) return Finish(ToGrpc(sequence.status()));
    sequence_ = *sequence;
    auto file = InputFile::Open(copy_);
    std::remove(copy_.c_str());  // deleted with the call, however that ends
    if (!file.ok()) return Finish(ToGrpc(file.status()));
    file_ = *std::move(file);
    XXH3_64bits_reset(checksum_);
    SendNext();
  }

  void SendNext() {
    part_.Clear();
    const int64_t count = std::min(kPartBytes, file_->bytes() - sent_);
    if (count == 0) {
      part_.set_last(true);
      part_.set_total_bytes(sent_);
      part_.set_checksum(XXH3_64bits_digest(checksum_));
      part_.set_sequence(sequence_);
      return StartWrite(&part_);
    }
    std::string* data = part_.mutable_data();
    data->resize(static_cast<size_t>(count));
    const absl::Status read = file_->Read(sent_, data->data(), count);
    if (!read.ok()) return Finish(ToGrpc(read));
    XXH3_64bits_update(checksum_, data->data(), data->size());
    sent_ += count;
    StartWrite(&part_);
  }

  const Store* const store_;
  const std::string copy_;
  std::atomic<bool>* const busy_;
  std::atomic<bool> cancelled_ = false;
  std::optional<InputFile> file_;
  XXH3_state_t* const checksum_ = XXH3_createState();
  int64_t sequence_ = 0, sent_ = 0;
  v1::BackupPart part_;
};

// A call that is refused.
class Refusal : public grpc::ServerWriteReactor<v1::BackupPart> {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class BackupService : public v1::Backups::CallbackService {
 public:
  BackupService(const Store* store, std::string copy) : store_(store), copy_(std::move(copy)) {}

  grpc::ServerWriteReactor<v1::BackupPart>* Make(grpc::CallbackServerContext*,
                                                 const v1::BackupRequest*) override {
    if (busy_.exchange(true)) {
      return new Refusal(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                      "another backup is being made; try again when it is done"));
    }
    return new BackupStream(store_, copy_, &busy_);
  }

 private:
  const Store* const store_;
  const std::string copy_;
  std::atomic<bool> busy_ = false;
};

}  // namespace

std::unique_ptr<grpc::Service> NewBackupService(const Store* store, std::string copy) {
  return std::make_unique<BackupService>(store, std::move(copy));
}

}  // namespace atl
