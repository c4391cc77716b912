// The islands of a job: assignments of workers, generations (which fence an island's earlier
// workers), leases and orders.

#ifndef ATOLL_COORDINATOR_CORE_ISLANDS_ISLANDS_H_
#define ATOLL_COORDINATOR_CORE_ISLANDS_ISLANDS_H_

#include <optional>
#include <string>
#include <utility>

#include "coordinator/core/state.h"

namespace atl::coord {

// Notes what an island's leader reports to be saved of its state.
void NoteSavedStates(Job& job, const IslandRecord& island, const IslandProgress& progress);
// The island, which begins a new generation, goes on from its newest saved state that is whole with
// those that are there. Returns, for the log, from which, or why not; "" if nothing is saved.
std::string ResumeSaved(State& s, Job& job, IslandRecord& island);
// For an island that begins a new generation: a worker that is unavailable, or not in the island
// yet, whose disk holds what the newest saved state lacks; empty: it lacks nothing, or what no
// worker has.
NodeId AwaitedHolder(State& s, const Job& job, const IslandRecord& island);
// Gives the worker an island: the one it had, else a vacant or new one. REQUIRES: the worker is
// attached and has none.
void AssignIsland(State& s, Job& job, Worker& worker);

// Adds the steps and bytes that the island's former leader reported. `lost`: the steps that it had
// not pushed are replayed.
void NoteSteps(const State& s, IslandRecord& island, bool lost);

// The island loses its worker. What it leased is free again, its contributions count only if
// complete.
void EvictIsland(State& s, Job& job, IslandId id, const Loss& loss);

// Same worker, new generation: it begins anew from the committed version, or from its saved state
// where there is one.
enum class StartFrom { kCommitted, kSaved };
void RenewIsland(State& s, Job& job, IslandId id, const std::string& reason,
                 StartFrom start = StartFrom::kCommitted);

// Begins a new generation; what belonged to the old one is over.
void NewGeneration(Job& job, IslandRecord& island);

// No round will use the contribution; its data is free again.
void DropContribution(State& s, Job& job, const ContributionId& id, const std::string& reason);

// The island that `worker` runs now if `island` and `generation` are its own; else null.
IslandRecord* CurrentIsland(State& s, const Worker& worker, const JobId& job, IslandId island,
                            Generation generation);

void OnHeartbeat(State& s, Worker& worker, const WorkerHeartbeat& message);
void OnLeaseRequest(State& s, Worker& worker, const LeaseRequest& message);

// Sends every island whose order has changed the new one. `again`: the worker's too if it has not.
void RefreshOrders(State& s, Job& job);
void ResendOrder(State& s, Job& job, IslandId id);
void ResendMemberOrder(State& s, Job& job, const NodeId& worker);

// Orders the worker to stop what it does of the island. `Order`: IslandOrder or MemberOrder.
template <class Order>
void SendStop(State& s, const Worker& worker, const JobId& job, IslandId island,
              Generation generation, const std::string& reason) {
  Order stop;
  stop.job = job;
  if (const Job* known = std::as_const(s).FindJob(job)) stop.spec = known->spec();
  stop.island = island;
  stop.generation = generation;
  stop.sequence = s.NextSequence();
  stop.run = RunState::kStop;
  stop.reason = reason;
  s.Send(worker, std::move(stop));
}
// The same for what it reports and has no part in, again after kRetryInterval.
template <class Order, class Progress>
void StopReported(State& s, Worker& worker, const Progress& reported, const std::string& reason) {
  Instant& again_at = worker.stop_sent.try_emplace(reported.job, s.now).first->second;
  if (s.now < again_at) return;
  again_at = s.now + kRetryInterval;
  SendStop<Order>(s, worker, reported.job, reported.island, reported.generation, reason);
  if (worker.stop_sent.size() > 64) worker.stop_sent.erase(worker.stop_sent.begin());
}
// Why it has no part in a job that has ended, or that is not known.
std::string WhyStopped(const Job* job);

// Servers learn which generations may push.
void SendFencesTo(State& s, Job& job, const NodeId& server);

// Order of all shards for the island as sender.
const std::vector<ShardId>& GetTransferOrder(Job& job, IslandId id);
// In which order the island's members push what they own, among all islands' members.
const std::vector<GrantedPush>& GetPushOrder(Job& job, IslandId id);

// Islands that a round waits for: occupied, ready, and with data to train on.
bool IsActive(const Job& job, const IslandRecord& island);
int64_t ActiveIslands(const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ISLANDS_ISLANDS_H_
