// A parameter server's shell in virtual time: the real core, its disk, and the answers that its
// clients wait for. The disk forgets what was not synced and survives the process; connections,
// delays and faults are the host's.

#ifndef ATOLL_REHEARSAL_WORLD_SERVER_PROCESS_H_
#define ATOLL_REHEARSAL_WORLD_SERVER_PROCESS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "paramserver/core/core.h"
#include "rehearsal/world/timeline.h"

namespace atl::rehearsal {

class ServerProcess {
 public:
  struct JobDisk {
    std::map<ps::LogSequence, ps::LogRecord> log;
    ps::LogSequence synced = 0;
    std::vector<std::shared_ptr<const ps::Snapshot>> snapshots;  // newest last, at most two
  };
  using Disk = std::map<JobId, JobDisk>;

  // The machine that the process runs on. Times are of the process's present run: what was
  // scheduled before its end does not happen.
  class Host {
   public:
    virtual ~Host() = default;
    virtual Instant Now() const = 0;
    virtual void After(Duration delay, Timeline::Action action) = 0;
    virtual void Arm(Instant deadline, Timeline::Action tick) = 0;
    virtual void SendUp(ServerMessage message) = 0;
    // Ends in a PartFetched or a PushForwarded.
    virtual void Fetch(const ps::FetchPart& fetch) = 0;
    virtual void Forward(const ps::ForwardPush& push) = 0;
    virtual void Note(const std::string& text) = 0;
    // The server has broken a guarantee.
    virtual void Fail(const std::string& what) = 0;
    virtual Duration SyncDelay() = 0;
    virtual Duration SnapshotDelay() = 0;
    virtual Duration EraseDelay() = 0;
    // Arithmetic takes its time: no deadline is nearer.
    virtual Duration WorkDelay() = 0;

    // Faults and checks; by default there are none.
    virtual void SpoilDisk(Disk&) {}  // before it is read
    virtual bool LogIsFull() { return false; }
    virtual bool SnapshotFails() { return false; }
    virtual void Appending(const ps::AppendLog&) {}
    virtual void Saying(const ServerMessage&) {}
    virtual void Erasing(const JobId&) {}
  };

  // From a worker or another server. `answer` runs here when the core answers.
  using PushAnswer = std::function<void(PushStatus, std::string)>;
  using PullAnswer = std::function<void(const ps::ReplyPull*, const ps::RefusePull*)>;

  // Both outlive it.
  ServerProcess(Host* host, ThreadPool* pool) : host_(*host), pool_(*pool) {}

  // Recovers what is on the disk; `options.mark` is set here.
  void Start(ps::ServerOptions options);
  void End() { core_.reset(); }
  void Deliver(const ps::Event& event);
  void Push(ps::PushArrived event, PushAnswer answer);
  void Pull(ps::PullArrived event, PullAnswer answer);

  // Null while it is down.
  ps::ServerCore* core() { return core_ ? &*core_ : nullptr; }
  Disk& disk() { return disk_; }
  ClusterMark& mark() { return mark_; }  // on its disk
  const ClusterMark& mark() const { return mark_; }

 private:
  std::vector<ps::RecoveredJob> Recover();
  void Carry(ps::Actions actions);
  void CarryDisk(ps::Actions& actions);
  void Append(ps::AppendLog append);
  void SyncLater(const JobId& job, Duration delay);
  void WriteSnapshot(std::shared_ptr<const ps::Snapshot> snapshot);
  void Erase(const JobId& job);

  Host& host_;
  ThreadPool& pool_;
  Disk disk_;
  ClusterMark mark_;
  std::optional<ps::ServerCore> core_;
  ps::PushGate gate_;
  std::set<JobId> syncing_;
  std::map<ps::Token, PushAnswer> push_answers_;
  std::map<ps::Token, PullAnswer> pull_answers_;
  ps::Token next_token_ = 1;
};

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_WORLD_SERVER_PROCESS_H_
