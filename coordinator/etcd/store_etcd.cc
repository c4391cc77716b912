#include "coordinator/etcd/store_etcd.h"

#include <chrono>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "common/event_loop.h"
#include "common/status.h"
#include "coordinator/etcd/leadership.h"
#include "coordinator/etcd/step_log.h"
#include "coordinator/store_backup.h"
#include "coordinator/store_sqlite.h"
#include "coordinator/trust/shared_value.h"
#include "coordinator/wire.h"

namespace atl {
namespace {

constexpr Duration kReadPatience = std::chrono::seconds(60);

constexpr char kRemedy[] =
    "; nothing was changed. Restore an `atoll backup` to an empty /PREFIX with atoll-coordinator "
    "--store URL --restore FILE, or a snapshot of etcd";

// A log of its own, so it is written by other threads than the records.
class RegistryLog : public SharedValue {
 public:
  RegistryLog(EtcdClient* client, Leadership* leadership, const std::string& prefix)
      : leadership_(leadership),
        folder_(absl::StrCat(prefix, "/trust")),
        log_(client, leadership, folder_) {}

  absl::StatusOr<std::optional<std::string>> Read() override {
    absl::Status read = log_.Open([this] { return leadership_->Check().ok(); });
    const auto found = log_.state().values().find(kKey);
    if (read.ok() && log_.state().sequence() == 0) return std::nullopt;
    if (read.ok() && found != log_.state().values().end()) return found->second;
    if (read.ok()) read = absl::DataLossError("it holds no registry");
    if (!absl::IsDataLoss(read)) return read;
    return absl::DataLossError(absl::StrCat(
        folder_, ": is damaged: ", read.message(),
        "; restore a snapshot of etcd, or delete its keys: tokens, revocations and the list of "
        "CURVE keys are then lost"));
  }
  absl::Status Write(const std::string& bytes) override {
    etcd::Step step;
    step.add_writes()->set_key(kKey);
    step.mutable_writes(0)->set_value(bytes);
    return log_.Commit(step);
  }

 private:
  static constexpr char kKey[] = "registry";
  Leadership* const leadership_;
  const std::string folder_;
  StepLog log_;
};

class EtcdStore : public Store {
 public:
  EtcdStore(std::string name, std::string prefix, std::unique_ptr<EtcdClient> client,
            std::unique_ptr<Leadership> leadership, std::unique_ptr<Store> lines)
      : name_(std::move(name)),
        prefix_(std::move(prefix)),
        client_(std::move(client)),
        leadership_(std::move(leadership)),
        lines_(std::move(lines)),
        log_(client_.get(), leadership_.get(), prefix_),
        registry_(client_.get(), leadership_.get(), prefix_) {}

  absl::Status Open() {
    ATOLL_RETURN_IF_ERROR(Name(log_.Open(Patience())));
    return Decode(log_.state()).status();
  }

  int64_t sequence() const override { return log_.state().sequence(); }
  const std::string& name() const override { return name_; }

  absl::StatusOr<std::vector<StoreRecord>> ReadAll() override { return Decode(log_.state()); }

  absl::Status Apply(const std::vector<StoreWrite>& writes, int64_t unix_time_ms) override {
    if (writes.empty()) return absl::OkStatus();
    std::vector<StoreWrite> lines;
    etcd::Step step;
    for (const StoreWrite& write : writes) {
      if (std::holds_alternative<EventRecord>(write.record)) {
        lines.push_back(write);
        continue;
      }
      etcd::Write* one = step.add_writes();
      one->set_key(MakeRecordKey(write.record));
      one->set_erase(write.erase);
      if (write.erase) continue;
      ATOLL_ASSIGN_OR_RETURN(*one->mutable_value(), EncodeRecord(write.record));
    }
    {
      const std::lock_guard lock(lines_mutex_);
      ATOLL_RETURN_IF_ERROR(lines_->Apply(lines, unix_time_ms));
    }
    return Annotate(log_.Commit(step), name_);
  }

  absl::Status Fill(const StoreContents& contents) override {
    if (!log_.state().values().empty()) {
      return absl::FailedPreconditionError(absl::StrCat(name_, ": holds records already"));
    }
    ATOLL_RETURN_IF_ERROR(lines_->Fill({{}, contents.lines}));
    std::vector<StoreWrite> writes;
    for (const StoreRecord& record : contents.records) writes.push_back({record});
    return Apply(writes, 0);
  }

  absl::StatusOr<std::vector<LogEntry>> ReadLog(const LogQuery& query, int64_t limit) override {
    const std::lock_guard lock(lines_mutex_);
    return lines_->ReadLog(query, limit);
  }
  absl::StatusOr<int64_t> FindLogTail(const LogQuery& query, int64_t count) override {
    const std::lock_guard lock(lines_mutex_);
    return lines_->FindLogTail(query, count);
  }

  absl::StatusOr<int64_t> BackUp(const std::string& to) const override {
    const auto state = StepLog::Read(client_.get(), prefix_, Patience());
    ATOLL_RETURN_IF_ERROR(Name(state.status()));
    StoreContents contents;
    ATOLL_ASSIGN_OR_RETURN(contents.records, Decode(*state));
    {
      const std::lock_guard lock(lines_mutex_);
      ATOLL_ASSIGN_OR_RETURN(contents.lines,
                             lines_->ReadLog({}, std::numeric_limits<int64_t>::max()));
    }
    ATOLL_RETURN_IF_ERROR(MakeBackup(contents, to));
    return state->sequence();
  }

  SharedValue* registry() override { return &registry_; }

  void WatchOwnership(std::function<void(const absl::Status&)> on_lost) override {
    leadership_->WatchLoss(std::move(on_lost));
  }

 private:
  EtcdClient::GoOn Patience() const {
    return [this, until = SteadyNow() + kReadPatience] {
      return SteadyNow() < until && leadership_->Check().ok();
    };
  }

  absl::Status Name(const absl::Status& status) const {
    if (!absl::IsDataLoss(status)) return Annotate(status, name_);
    return Damaged(status.message());
  }
  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(name_, ": is damaged: ", what, kRemedy));
  }

  absl::StatusOr<std::vector<StoreRecord>> Decode(const LoggedState& state) const {
    std::vector<StoreRecord> records;
    for (const auto& [key, value] : state.values()) {
      auto record = DecodeRecord(value);
      if (!record.ok() || MakeRecordKey(*record) != key) {
        return Damaged(absl::StrCat(
            "the record \"", key,
            "\": ", record.ok() ? "it belongs under another key" : record.status().message()));
      }
      records.push_back(*std::move(record));
    }
    return records;
  }

  const std::string name_, prefix_;
  const std::unique_ptr<EtcdClient> client_;
  const std::unique_ptr<Leadership> leadership_;
  mutable std::mutex lines_mutex_;
  const std::unique_ptr<Store> lines_;  // holds lines of the log, and no records
  StepLog log_;
  RegistryLog registry_;
};

}  // namespace

absl::Status CheckEtcdOptions(const EtcdStoreOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(const EtcdAddress address, ParseEtcdAddress(options.url));
  return EtcdClient::Open(address.endpoints, options.tls).status();
}

absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(
    const EtcdStoreOptions& options, const std::function<bool()>& stop,
    const std::function<void(const etcd::Leader&)>& on_leader) {
  ATOLL_ASSIGN_OR_RETURN(const EtcdAddress address, ParseEtcdAddress(options.url));
  ATOLL_ASSIGN_OR_RETURN(auto client, EtcdClient::Open(address.endpoints, options.tls));
  ATOLL_ASSIGN_OR_RETURN(auto leadership,
                         Leadership::Campaign(client.get(), address.prefix, options.self,
                                              options.lease_s, stop, on_leader));
  ATOLL_ASSIGN_OR_RETURN(auto lines, OpenSqliteStore(options.lines_folder));
  auto store = std::make_unique<EtcdStore>(options.url, address.prefix, std::move(client),
                                           std::move(leadership), std::move(lines));
  ATOLL_RETURN_IF_ERROR(store->Open());
  return store;
}

}  // namespace atl
