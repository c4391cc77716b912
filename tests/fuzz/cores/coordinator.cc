#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/protocol/wire.h"
#include "coordinator/core/testing/world.h"
#include "coordinator/wire.h"
#include "proto/control.pb.h"
#include "tests/fuzz/cores/cores.h"
#include "tests/fuzz/cores/extremes.h"

namespace atl::fuzz {
namespace {

using testing::World;

constexpr int64_t kMessagesOfWorld = 250;

// Checks that what is stored can be read again, as it was.
void CheckRecords(const World& w) {
  for (const StoreRecord& record : w.stored()) {
    const absl::StatusOr<std::string> bytes = EncodeRecord(record);
    ATOLL_CHECK(bytes.ok(), bytes.status().message());
    const absl::StatusOr<StoreRecord> read = DecodeRecord(*bytes);
    ATOLL_CHECK(read.ok(), MakeRecordKey(record), ": ", read.status().message());
    ATOLL_CHECK(*read == record, MakeRecordKey(record), " is read as another one");
  }
}

// Messages as they went, to be changed.
struct Received {
  std::vector<v1::FromWorker> workers;
  std::vector<v1::FromServer> servers;

  void Note(const CoordinatorEvent& event, Extremes& extremes) {
    if (const auto* worker = std::get_if<FromWorker>(&event)) {
      v1::FromWorker wire;
      if (Encode(*worker, &wire).ok()) Keep(workers, std::move(wire), extremes);
    } else if (const auto* server = std::get_if<FromServer>(&event)) {
      v1::FromServer wire;
      if (Encode(*server, &wire).ok()) Keep(servers, std::move(wire), extremes);
    }
  }
  template <class M>
  static void Keep(std::vector<M>& list, M message, Extremes& extremes) {
    constexpr size_t kMost = 512;
    extremes.Learn(message);
    if (list.size() < kMost) return list.push_back(std::move(message));
    list[extremes.rng().Below(kMost)] = std::move(message);
  }
};

// Every kind of message, also those that a World's members do not send.
void AddOthers(Received& received) {
  v1::FromWorker worker;
  worker.set_worker("a");
  worker.set_incarnation(1);
  worker.mutable_leaving()->set_reason("it ends");
  received.workers.push_back(worker);
  worker.mutable_log()->set_job("lm-1");
  received.workers.push_back(worker);
  worker.mutable_job_refused()->set_job("lm-1");
  received.workers.push_back(worker);
  worker.mutable_links_measured()->set_job("lm-1");
  received.workers.push_back(worker);
  worker.mutable_step_traced()->set_job("lm-1");
  received.workers.push_back(worker);
  worker.mutable_lease_request()->set_job("lm-1");
  received.workers.push_back(worker);
  worker.mutable_validation_result()->set_job("lm-1");
  received.workers.push_back(worker);
  v1::FromServer server;
  server.set_server("ps-0");
  server.set_incarnation(1);
  server.mutable_fault()->set_job("lm-1");
  received.servers.push_back(server);
  server.mutable_job_removed()->set_job("lm-1");
  received.servers.push_back(server);
  server.mutable_shards_received()->set_job("lm-1");
  received.servers.push_back(server);
  server.mutable_base_fetched()->set_job("lm-1");
  received.servers.push_back(server);
  auto* described = server.mutable_job_described();
  described->mutable_held()->set_job("lm-1");
  described->mutable_assignment()
      ->mutable_definition()
      ->mutable_facts()
      ->add_layers()
      ->set_elements(8);
  received.servers.push_back(server);
}

void Begin(World& w, Rng& rng) {
  switch (rng.Below(6)) {
    case 0:
      return w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "validate=1 tokens=100000");
    case 1:
      return w.StartJob({"ps-0", "ps-1", "ps-2"}, {"a", "b"}, "copies=2 tokens=100000");
    case 2:
      return w.StartJob({"ps-0"}, {"a", "b", "c"}, "fragments=2 grace=1 tokens=100000");
    case 3:
      return w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches",
                        "submit min=1 batch=2 tokens=4000 island=all per-island=2",
                        "worker a prepared", "worker b prepared", "servers answer",
                        "worker b follows", "worker a sets-up", "worker a pushes",
                        "worker a stages", "servers answer", "worker a ready"});
    case 4:
      return w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches", "submit",
                        "submit name=other number=2"});
    default:
      w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "tokens=80");
      w.DoLines(
          {"worker a leases wanted=4", "worker a pushes", "worker a stages", "servers answer"});
  }
}

void GoOn(World& w, Rng& rng) {
  static const std::vector<std::string> kLines = {"wait 1",
                                                  "wait 7",
                                                  "servers answer",
                                                  "servers answer",
                                                  "servers snapshot",
                                                  "worker a attaches",
                                                  "worker b attaches",
                                                  "server ps-0 attaches",
                                                  "server ps-1 attaches",
                                                  "worker a prepared",
                                                  "worker b prepared",
                                                  "worker a ready",
                                                  "worker b ready",
                                                  "worker a leases wanted=4",
                                                  "worker b leases wanted=4",
                                                  "worker a beats",
                                                  "pause lm-1",
                                                  "resume lm-1",
                                                  "adopt lm-1",
                                                  "refill lm-1 server=ps-0",
                                                  "drain worker/a",
                                                  "drain worker/a undo",
                                                  "drain paramserver/ps-0",
                                                  "drain paramserver/ps-0 undo",
                                                  "coordinator restarts",
                                                  "coordinator is-held-up 2",
                                                  "submit name=third number=3",
                                                  "cancel third-3",
                                                  "remove third-3"};
  w.Do(kLines[rng.Below(kLines.size())]);
}

template <class Wire>
bool Send(World& w, Wire wire, Extremes& extremes) {
  extremes.Change(&wire);
  auto message = Decode(&wire);
  if (!message.ok()) return false;
  w.HandleEvent(*message);
  return true;
}

}  // namespace

Tried TryCoordinator(uint64_t seed, int64_t messages) {
  Tried tried;
  Extremes extremes(seed);
  while (tried.messages < messages) {
    World w;
    Received received;
    AddOthers(received);
    w.on_event = [&](const CoordinatorEvent& event) { received.Note(event, extremes); };
    Begin(w, extremes.rng());
    w.on_event = nullptr;
    const int64_t most = std::min(messages, tried.messages + kMessagesOfWorld);
    while (tried.messages < most) {
      ++tried.messages;
      const size_t workers = received.workers.size();
      const size_t at = extremes.rng().Below(workers + received.servers.size());
      const bool taken = at < workers ? Send(w, received.workers[at], extremes)
                                      : Send(w, received.servers[at - workers], extremes);
      if (!taken) continue;
      ++tried.taken;
      CheckRecords(w);
      if (extremes.rng().Chance(0.2)) GoOn(w, extremes.rng());
    }
  }
  return tried;
}

}  // namespace atl::fuzz
