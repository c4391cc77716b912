#include "coordinator/etcd/store_etcd.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/event_loop.h"
#include "common/logging.h"
#include "common/status.h"
#include "coordinator/etcd/journal.h"
#include "coordinator/etcd/leadership.h"
#include "coordinator/etcd/log_lines.h"
#include "coordinator/etcd/registry_value.h"
#include "coordinator/etcd/stored.h"
#include "coordinator/store_backup.h"
#include "coordinator/wire.h"

namespace atl {
namespace {

constexpr Duration kReadPatience = std::chrono::seconds(60);
constexpr auto kBetweenLooks = std::chrono::milliseconds(20);
constexpr int64_t kLinesBetweenTrims = 1024;
constexpr size_t kMaxGroupBytes = size_t{16} << 20;  // of one value of the log

constexpr char kRemedy[] =
    "; nothing was changed. Restore an `atoll backup` to an empty /PREFIX with atoll-coordinator "
    "--store URL --restore FILE, or a snapshot of etcd";

class EtcdStore : public Store {
 public:
  EtcdStore(std::string name, std::string prefix, std::unique_ptr<EtcdClient> client,
            std::unique_ptr<Leadership> leadership)
      : name_(std::move(name)),
        prefix_(std::move(prefix)),
        client_(std::move(client)),
        leadership_(std::move(leadership)),
        journal_(client_.get(), leadership_.get(), prefix_),
        registry_(client_.get(), leadership_.get(), prefix_) {}

  // Reads everything.
  absl::Status Open() {
    ATOLL_ASSIGN_OR_RETURN(totals_, journal_.Recover());
    StoreTotals found;
    found.sequence = totals_.sequence;
    int64_t revision = 0;
    ATOLL_RETURN_IF_ERROR(ReadValues(client_.get(), RecordsFolder(), Patience(), &revision,
                                     [&](const EtcdValue& value) {
                                       ATOLL_RETURN_IF_ERROR(CheckWhole(value));
                                       ++found.records;
                                       found.digest += value.checksum;
                                       records_[value.key] = {value.checksum, value.parts};
                                       return absl::OkStatus();
                                     }));
    if (found != totals_) {
      return absl::DataLossError(absl::StrCat(name_, ": is damaged: it has ", found.records,
                                              " records where ", totals_.records,
                                              " were written, or older ones", kRemedy));
    }
    int64_t damaged = 0;
    ATOLL_RETURN_IF_ERROR(
        ReadLines(revision, &damaged, [&](std::vector<LogEntry> lines) { log_.Add(lines); }));
    if (damaged > 0) {
      LogWarning("store", name_, ": ", damaged, " lines of the log are damaged");
    }
    return absl::OkStatus();
  }

  int64_t sequence() const override { return totals_.sequence; }
  const std::string& name() const override { return name_; }

  absl::StatusOr<std::vector<StoreRecord>> ReadAll() override { return ReadRecords(0); }

  absl::Status Apply(const std::vector<StoreWrite>& writes, int64_t unix_time_ms) override {
    if (writes.empty()) return absl::OkStatus();
    EtcdOperations operations;
    std::vector<LogEntry> lines;
    std::map<std::string, const StoreWrite*> newest;  // etcd wants each key once
    for (const StoreWrite& write : writes) {
      if (const auto* event = std::get_if<EventRecord>(&write.record)) {
        if (!write.erase) lines.push_back({*event, unix_time_ms});  // the log forgets by itself
      } else {
        newest[MakeRecordKey(write.record)] = &write;
      }
    }
    for (const auto& [key, write] : newest) {
      ATOLL_RETURN_IF_ERROR(Write(key, *write, &operations));
    }
    return Commit(std::move(lines), std::move(operations));
  }

  absl::Status Fill(const StoreContents& contents) override {
    if (totals_.records > 0) {
      return absl::FailedPreconditionError(absl::StrCat(name_, ": holds records already"));
    }
    EtcdOperations operations;
    for (const StoreRecord& record : contents.records) {
      ATOLL_RETURN_IF_ERROR(Write(MakeRecordKey(record), {record}, &operations));
    }
    return Commit(contents.lines, std::move(operations));
  }

  absl::StatusOr<std::vector<LogEntry>> ReadLog(const LogQuery& query, int64_t limit) override {
    return log_.Find(query, limit);
  }
  absl::StatusOr<int64_t> FindLogTail(const LogQuery& query, int64_t count) override {
    return log_.Tail(query, count);
  }

  absl::StatusOr<int64_t> BackUp(const std::string& to) const override {
    const EtcdClient::GoOn go_on = Patience();
    auto snapshot = Journal::Look(client_.get(), prefix_, go_on);
    while (snapshot.ok() && !snapshot->whole && go_on()) {
      std::this_thread::sleep_for(kBetweenLooks);
      snapshot = Journal::Look(client_.get(), prefix_, go_on);
    }
    ATOLL_RETURN_IF_ERROR(snapshot.status());
    if (!snapshot->whole) return absl::UnavailableError(absl::StrCat(name_, ": is being changed"));
    StoreContents contents;
    ATOLL_ASSIGN_OR_RETURN(contents.records, ReadRecords(snapshot->revision));
    int64_t damaged = 0;
    ATOLL_RETURN_IF_ERROR(
        ReadLines(snapshot->revision, &damaged, [&](const std::vector<LogEntry>& lines) {
          contents.lines.insert(contents.lines.end(), lines.begin(), lines.end());
        }));
    ATOLL_RETURN_IF_ERROR(MakeBackup(contents, to));
    return snapshot->totals.sequence;
  }

  SharedValue* registry() override { return &registry_; }

  void WatchOwnership(std::function<void(const absl::Status&)> on_lost) override {
    leadership_->WatchLoss(std::move(on_lost));
  }

 private:
  struct Known {
    uint64_t checksum = 0;
    int parts = 0;
  };

  std::string RecordsFolder() const { return absl::StrCat(prefix_, "/record/"); }
  std::string LogFolder() const { return absl::StrCat(prefix_, "/log/"); }

  EtcdClient::GoOn Patience() const {
    return [this, until = SteadyNow() + kReadPatience] {
      return SteadyNow() < until && leadership_->Check().ok();
    };
  }

  absl::Status CheckWhole(const EtcdValue& value) const {
    if (value.whole) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(name_, ": is damaged: the record \"", value.key,
                                            "\" fails its checksum", kRemedy));
  }

  // Reads the records as of `revision`; 0: now.
  absl::StatusOr<std::vector<StoreRecord>> ReadRecords(int64_t revision) const {
    std::vector<StoreRecord> records;
    ATOLL_RETURN_IF_ERROR(ReadValues(
        client_.get(), RecordsFolder(), Patience(), &revision, [&](const EtcdValue& value) {
          ATOLL_RETURN_IF_ERROR(CheckWhole(value));
          auto record = DecodeRecord(value.bytes);
          if (!record.ok() || MakeRecordKey(*record) != value.key) {
            return absl::DataLossError(absl::StrCat(
                name_, ": record \"", value.key, "\" is damaged: ",
                record.ok() ? "it belongs under another key" : record.status().message(), kRemedy));
          }
          records.push_back(*std::move(record));
          return absl::OkStatus();
        }));
    return records;
  }

  template <class OnLines>
  absl::Status ReadLines(int64_t revision, int64_t* damaged, const OnLines& on_lines) const {
    return ReadValues(client_.get(), LogFolder(), Patience(), &revision,
                      [&](const EtcdValue& value) {
                        if (value.whole) on_lines(DecodeLines(value.bytes, damaged));
                        if (!value.whole) ++*damaged;
                        return absl::OkStatus();
                      });
  }

  absl::Status Write(const std::string& key, const StoreWrite& write, EtcdOperations* operations) {
    const auto known = records_.find(key);
    const int parts_before = known == records_.end() ? 0 : known->second.parts;
    if (known != records_.end()) {
      --totals_.records;
      totals_.digest -= known->second.checksum;
      records_.erase(known);
    }
    if (write.erase) {
      if (parts_before > 0) EraseValue(RecordsFolder(), key, operations);
      return absl::OkStatus();
    }
    ATOLL_ASSIGN_OR_RETURN(const std::string value, EncodeRecord(write.record));
    const uint64_t checksum = ComputeRecordChecksum(key, value);
    const int parts = PutValue(RecordsFolder(), key, value, parts_before, operations);
    records_[key] = {checksum, parts};
    ++totals_.records;
    totals_.digest += checksum;
    return absl::OkStatus();
  }

  absl::Status Commit(std::vector<LogEntry> lines, EtcdOperations operations) {
    ATOLL_RETURN_IF_ERROR(failure_);
    std::sort(lines.begin(), lines.end(), [](const LogEntry& a, const LogEntry& b) {
      return a.event.sequence < b.event.sequence;
    });
    WriteLines(lines, &operations);
    ++totals_.sequence;
    failure_ = Annotate(journal_.Commit(std::move(operations), totals_), name_);
    return failure_;
  }

  void WriteLines(const std::vector<LogEntry>& lines, EtcdOperations* operations) {
    std::vector<LogEntry> group;
    size_t bytes = 0;
    const auto write = [&] {
      if (group.empty()) return;
      log_.Add(group);
      const std::string key = absl::StrFormat("%019d", group[0].event.sequence);
      PutValue(LogFolder(), key, EncodeLines(group), 0, operations);
      group.clear();
      bytes = 0;
    };
    for (const LogEntry& line : lines) {
      if (bytes + line.event.text.size() > kMaxGroupBytes) write();
      bytes += line.event.text.size();
      group.push_back(line);
    }
    write();
    if (log_.size() < kLogLinesKept + kLinesBetweenTrims) return;
    if (const auto first = log_.Trim(kLogLinesKept)) {
      auto* erase = operations->emplace_back().mutable_request_delete_range();
      erase->set_key(LogFolder());
      erase->set_range_end(LogFolder() + absl::StrFormat("%019d", *first));
    }
  }

  const std::string name_, prefix_;
  const std::unique_ptr<EtcdClient> client_;
  const std::unique_ptr<Leadership> leadership_;
  Journal journal_;
  RegistryValue registry_;
  absl::Status failure_;  // of an Apply: what is known here is ahead of what is stored
  StoreTotals totals_;
  std::map<std::string, Known> records_;
  LogLines log_;
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
  auto store = std::make_unique<EtcdStore>(options.url, address.prefix, std::move(client),
                                           std::move(leadership));
  ATOLL_RETURN_IF_ERROR(store->Open());
  return store;
}

}  // namespace atl
