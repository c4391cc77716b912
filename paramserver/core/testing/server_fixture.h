// Fixture for tests of the core: one server, a coordinator's and workers' side of the conversation,
// and a disk that forgets what was not synced.

#ifndef ATOLL_PARAMSERVER_CORE_TESTING_SERVER_FIXTURE_H_
#define ATOLL_PARAMSERVER_CORE_TESTING_SERVER_FIXTURE_H_

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/rng.h"
#include "kernels/deltas.h"
#include "paramserver/core/core.h"

namespace atl::ps {

inline const JobId kJob = "job-1";

inline SharedBytes ToSharedBytes(const std::vector<float>& values) {
  auto copy = std::make_shared<std::vector<float>>(values);
  return {copy, std::as_bytes(std::span(*copy))};
}

// A snapshot on a disk: it leases no tensor of the server.
inline std::shared_ptr<const Snapshot> Copy(const Snapshot& snapshot) {
  const auto copy = std::make_shared<Snapshot>(snapshot);
  const auto replace = [](std::shared_ptr<const TensorLease>& lease) {
    if (lease == nullptr) return;
    const auto tensor = std::make_shared<SharedTensor>(lease->tensor()->elements());
    std::memcpy(tensor->writable().data(), lease->values().data(), lease->values().size_bytes());
    lease = std::make_shared<const TensorLease>(tensor);
  };
  for (ShardSnapshot& shard : copy->shards) {
    replace(shard.theta);
    for (auto& slot : shard.slots) replace(slot);
  }
  return copy;
}

inline SharedBytes Quantized(Encoding encoding, const std::vector<float>& values) {
  ThreadPool pool(1);
  const auto size = static_cast<int64_t>(values.size());
  auto bytes = std::make_shared<std::vector<std::byte>>(EncodedBytes(encoding, size));
  EncodeDelta(encoding, values, {}, *bytes, pool);
  return {bytes, *bytes};
}

inline const ContributionId kInitial{0, 1, 1, kNoVersion};  // that version 0 is

class ServerFixture {
 public:
  explicit ServerFixture(int64_t memory_bytes = 1 << 20) : memory_bytes_(memory_bytes) { Start(); }

  // -- messages from the coordinator
  void DeliverMessage(ToServerMessage message) {
    Do(FromCoordinator{{"ps-1", incarnation_, epoch, std::move(message), cluster, sequence}});
  }
  void Assign(std::vector<OwnedShard> shards = {{0, 0, 4}, {1, 0, 2}, {2, 1, 3}},
              int64_t snapshot_every = 0) {
    AssignShards assign{kJob, std::move(shards), 0.5, 0.9, snapshot_every};
    assign.definition.spec.outer = outer;
    assign.definition.spec.inner.ema = ema;
    assign.definition.spec.model.initial_job = initial_job;
    assign.forwards = copies;
    DeliverMessage(std::move(assign));
  }
  void Commit(Version version, std::vector<RoundTerm> terms,
              std::vector<ContributionId> dropped = {}) {
    CommitRound commit{kJob, version, std::move(terms), std::move(dropped)};
    commit.step.average_keep = average_keep;
    DeliverMessage(std::move(commit));
  }

  // A round of what is pushed, applied when all of it is durable.
  void Apply(Version version, std::vector<RoundTerm> terms) {
    Sync();
    Commit(version, std::move(terms));
    Sync();
  }
  // Brings the server to version 0, of which `sent` has nothing.
  void Begin(int64_t snapshot_every = 0) {
    Assign({{0, 0, 4}, {1, 0, 2}, {2, 1, 3}}, snapshot_every);
    PushAll(kInitial, 1);
    Apply(0, {{kInitial, 1.0}});
    sent.clear();
    ATOLL_CHECK(version() == 0);
  }
  // Round `version` of islands 0 and 1, with weights 3/4 and 1/4.
  void Round(Version version) {
    const ContributionId a = By(0, version - 1), b = By(1, version - 1);
    PushAll(a, 10 + static_cast<uint64_t>(version));
    PushAll(b, 90 + static_cast<uint64_t>(version));
    Apply(version, {{a, 0.75}, {b, 0.25}});
    ATOLL_CHECK(this->version() == version);
  }

  // -- messages from workers; the last answer to each token is kept
  static ContributionId By(IslandId island, Version base) { return {island, 1, 1, base}; }
  static PushId Id(IslandId island, Version base, ShardId shard) {
    return {kJob, island, 1, 1, base, shard};
  }
  Token Push(const PushId& id, const std::vector<float>& values) {
    return Push(id, Encoding::kFloat32, static_cast<int64_t>(values.size()), ToSharedBytes(values));
  }
  Token Push(const PushId& id, Encoding encoding, int64_t elements, SharedBytes bytes) {
    Do(PushArrived{id, encoding, elements, std::move(bytes), ++token_});
    return token_;
  }
  // All shards of a contribution, each element drawn from `seed`.
  void PushAll(const ContributionId& by, uint64_t seed) {
    ATOLL_CHECK(core_ != nullptr);
    for (const OwnedShard& shard : held_) {
      Rng rng(seed, static_cast<uint64_t>(shard.shard));
      std::vector<float> values(static_cast<size_t>(shard.elements));
      for (float& value : values) value = static_cast<float>(rng.Normal());
      Push({kJob, by.island, by.generation, by.incarnation, by.base_version, shard.shard}, values);
    }
  }
  Token Pull(Version version, ShardId shard) {
    Do(PullArrived{kJob, version, shard, ++token_});
    return token_;
  }

  // -- the disk
  void Sync() {
    for (auto& [job, log] : logs_) {
      if (log.records.empty()) continue;
      log.synced = log.records.rbegin()->first;
    }
    for (auto& [job, log] : std::map(logs_)) Do(LogSynced{job, log.synced});
    FinishSnapshots();
  }
  void FinishSnapshots() {
    while (!requested_snapshots_.empty()) {
      const auto snapshot = requested_snapshots_.front();
      requested_snapshots_.erase(requested_snapshots_.begin());
      logs_[snapshot->job].snapshots.push_back(Copy(*snapshot));
      Do(SnapshotDone{snapshot->job, snapshot->version, absl::OkStatus()});
    }
  }
  // Crashes the server: what was not synced is lost, and the daemon starts again from the rest.
  void Crash() {
    for (auto& [job, log] : logs_) {
      log.records.erase(log.records.upper_bound(log.synced), log.records.end());
    }
    core_.reset();
    requested_snapshots_.clear();
    fetches.clear();
    forwards.clear();
    ++incarnation_;
    Start();
  }
  // A start from what is written now, synced or not, finds nothing wrong with it.
  void CheckRestart() {
    ServerCore second({"ps-1", incarnation_ + 1, "test", "tcp://127.0.0.1:1", memory_bytes_, ""},
                      Recover(), &pool_);
    second.Step(now_, ConnectionUp{});
  }
  template <class Do>
  void ForEachRecord(Do what) const {
    for (const auto& [job, log] : logs_) {
      for (const auto& [sequence, record] : log.records) what(record);
    }
  }
  // The newest snapshot turns out to be damaged.
  void LoseNewestSnapshot() { logs_[kJob].snapshots.pop_back(); }

  void Wait(Duration time) {
    now_ += time;
    Do(Tick{});
  }
  void Do(const Event& event) {
    Turn(event);
    while (!in_parts && deadline <= now_) Turn(Tick{});
  }
  void Turn(const Event& event) {
    Actions actions = core_->Step(now_, event);
    gate_.Apply(std::move(actions.gate), actions.room);
    for (AppendLog& append : actions.log) {
      logs_[append.job].records[append.sequence] = std::move(append.record);
    }
    for (auto& message : actions.to_coordinator) sent.push_back(std::move(message));
    for (std::string& note : actions.notes) notes.push_back(std::move(note));
    if (actions.remember) remembered = actions.remember;
    for (auto& answer : actions.pushes) pushes[answer.token] = answer;
    for (auto& reply : actions.replies) replies[reply.token] = reply;
    for (auto& refusal : actions.refusals) refusals[refusal.token] = refusal;
    for (auto& write : actions.snapshots) requested_snapshots_.push_back(write.snapshot);
    for (FetchPart& fetch : actions.fetches) fetches.push_back(std::move(fetch));
    for (ForwardPush& push : actions.forwards) forwards.push_back(std::move(push));
    for (const EraseJob& erase : actions.erasures) requested_erasures.push_back(erase.job);
    for (const TruncateLog& truncate : actions.truncations) {
      auto& records = logs_[truncate.job].records;
      records.erase(records.begin(), records.lower_bound(truncate.keep_from));
    }
    stopped = actions.stop;
    deadline = actions.next_deadline;
  }

  // Messages of one kind sent to the coordinator since the last call.
  template <typename Message>
  std::vector<Message> TakeSent() {
    std::vector<Message> found;
    for (const ServerMessage& message : std::exchange(sent, {})) {
      if (const auto* m = std::get_if<Message>(&message)) found.push_back(*m);
    }
    return found;
  }
  bool Answered(Token token, PushStatus status) const {
    const auto answer = pushes.find(token);
    return answer != pushes.end() && answer->second.status == status;
  }
  std::vector<float> Theta(ShardId shard) const { return core_->Parameters(kJob, shard); }
  std::vector<float> AllTheta() const {
    std::vector<float> all;
    for (const OwnedShard& shard : held_) {
      for (const float value : Theta(shard.shard)) all.push_back(value);
    }
    return all;
  }
  Version version() const { return core_->version(kJob); }
  const ServerCore& core() const { return *core_; }
  const PushGate& gate() const { return gate_; }  // as published
  size_t log_records() const { return logs_.at(kJob).records.size(); }
  Incarnation incarnation() const { return incarnation_; }

  int64_t log_bytes_free = int64_t{64} << 20;   // from the next start on
  bool in_parts = false;                        // arithmetic waits for Turn(Tick{}), a part each
  OuterSpec outer = {.optimizer = "nesterov"};  // of the job that is assigned
  std::string initial_job;                      // model.initial_job of the next assignment
  double ema = 0;                               // inner.ema of it
  double average_keep = 1;                      // of the next rounds
  int64_t epoch = 1;
  ClusterId cluster;
  int64_t sequence = 0;
  std::optional<ClusterMark> remembered;
  std::vector<std::string> notes;
  std::vector<ServerMessage> sent;
  std::map<Token, AcknowledgePush> pushes;
  std::map<Token, ReplyPull> replies;
  std::map<Token, RefusePull> refusals;
  std::optional<std::string> stopped;
  Instant deadline = kNever;
  std::vector<JobId> requested_erasures;
  std::vector<FetchPart> fetches;     // not answered yet
  std::vector<ForwardPush> forwards;  // likewise
  std::vector<ForwardTo> copies;      // of shards that are assigned

 private:
  struct Log {
    std::map<LogSequence, LogRecord> records;
    LogSequence synced = 0;
    std::vector<std::shared_ptr<const Snapshot>> snapshots;
  };

  std::vector<RecoveredJob> Recover() {
    std::vector<RecoveredJob> recovered;
    for (auto& [id, log] : logs_) {
      const auto snapshot = log.snapshots.empty() ? nullptr : log.snapshots.back();
      JobReplay replay(id, snapshot, &pool_);
      const LogSequence from = snapshot == nullptr ? 1 : snapshot->replay_from;
      for (auto at = log.records.lower_bound(from); at != log.records.end(); ++at) {
        const absl::Status status = replay.Add(at->first, at->second);
        ATOLL_CHECK(status.ok(), status.ToString());
      }
      auto job = std::move(replay).Finish();
      ATOLL_CHECK(job.ok(), job.status().ToString());
      recovered.push_back(*std::move(job));
    }
    return recovered;
  }

  void Start() {
    core_ = std::make_unique<ServerCore>(
        ServerOptions{"ps-1", incarnation_, "test", "tcp://127.0.0.1:1", memory_bytes_, "",
                      remembered.value_or(ClusterMark()), /*site=*/"", /*site_only=*/false,
                      /*work_elements=*/1, log_bytes_free},
        Recover(), &pool_);
    gate_ = core_->MakeGate();
    Do(ConnectionUp{});
    DeliverMessage(Welcome{});
  }

  const int64_t memory_bytes_;
  ThreadPool pool_{1};
  std::vector<OwnedShard> held_ = {{0, 0, 4}, {1, 0, 2}, {2, 1, 3}};
  std::unique_ptr<ServerCore> core_;
  PushGate gate_;
  std::map<JobId, Log> logs_;
  std::vector<std::shared_ptr<const Snapshot>> requested_snapshots_;
  Incarnation incarnation_ = 1;
  Instant now_ = Instant(std::chrono::seconds(100));
  Token token_ = 0;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_TESTING_SERVER_FIXTURE_H_
