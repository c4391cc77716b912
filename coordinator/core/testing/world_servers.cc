// The parameter servers of a World.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/protocol/fragments.h"
#include "common/protocol/round_limit.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {

void World::DoServer(const Command& command) {
  const NodeId& name = command.words.at(1);
  Server& server = servers_[name];
  const auto say = [&](ServerMessage message) {
    Step(FromServer{name, server.incarnation, std::move(message)});
  };
  if (command.Has("attaches")) {
    const Incarnation incarnation = command.Int("incarnation", server.incarnation + 1);
    if (server.alive && incarnation > server.incarnation) {
      Step(ConnectionLost{MemberKind::kServer, name, server.incarnation});
    }
    server.incarnation = incarnation;
    server.alive = true;
    server.silent = false;
    server.pending_messages.clear();
    last_fences_.erase(name);
    if (command.Has("empty")) server.jobs.clear();
    if (command.Has("empty")) server.mark = ClusterMark();
    ServerHello hello;
    hello.endpoint = absl::StrCat("tcp://", name, ":1");
    hello.public_key = command.Text("key");
    hello.site = command.Text("site");
    hello.relay_address = command.Text("relay");
    hello.relay_secret = "secret";
    hello.relay_own = command.Int("own", 0) != 0;
    hello.site_only = command.Has("site-only");
    hello.memory_bytes = command.Int("memory", 1'000'000);
    if (!command.Has("stranger")) {
      for (const auto& [id, job] : server.jobs) {
        HeldJob& held = hello.jobs.emplace_back(Held(id, job));
        std::erase(held.shards, command.Int("lacks", -1));
      }
      hello.mark = server.mark;
    }
    say(std::move(hello));
  } else if (command.Has("dies") || command.Has("leaves")) {
    server.alive = false;
    server.pending_messages.clear();
    Step(ConnectionLost{MemberKind::kServer, name, server.incarnation, false,
                        command.Has("leaves")});
  } else if (command.Has("goes-silent")) {
    server.silent = true;
  } else if (command.Has("fetches-nothing")) {
    server.fetches_nothing = true;
  } else if (command.Has("faults")) {
    say(ServerFault{server.jobs.begin()->first, command.Text("reason"), command.Has("passing")});
  } else {
    ATOLL_CHECK(false, "unknown server command");
  }
}

bool World::AnswerOnce() {
  bool any = false;
  for (auto& [name, server] : servers_) {
    if (!server.alive || server.silent) continue;
    for (const ToServerMessage& message : std::exchange(server.pending_messages, {})) {
      any = true;
      Answer(name, server, message);
    }
  }
  return any;
}

void World::Answer(const NodeId& name, Server& server, const ToServerMessage& message) {
  const auto say = [&](ServerMessage answer) {
    Step(FromServer{name, server.incarnation, std::move(answer)});
  };
  if (const auto* assign = std::get_if<AssignShards>(&message)) {
    server.jobs[assign->job].assignment = *assign;
    say(ShardsAssigned{assign->job, assign->definition.placement});
  } else if (const auto* collect = std::get_if<CollectStatistics>(&message)) {
    say(Gram(server, *collect));
  } else if (const auto* commit = std::get_if<CommitRound>(&message)) {
    ServerJob& job = server.jobs[commit->job];
    if (job.version + 1 == commit->version) {
      job.version = commit->version;
      job.newest = *commit;
      std::erase_if(job.staged, [&](const PushId& push) {
        const ContributionId id = ToContributionId(push);
        return std::ranges::count(commit->dropped, id) > 0 ||
               std::ranges::any_of(commit->terms,
                                   [&](const RoundTerm& term) { return term.contribution == id; });
      });
    }
    say(RoundApplied{commit->job, commit->version});
  } else if (const auto* receive = std::get_if<ReceiveShards>(&message)) {
    const auto is_fill = [](const ShardSource& source) { return source.fill; };
    if (std::ranges::none_of(receive->sources, is_fill)) return;
    ServerJob& job = server.jobs[receive->job];
    if (job.assignment.shards.empty()) {
      job.version = receive->version;
      job.newest = receive->newest;
    }
    if (job.version == receive->version) job.receiving = *receive;
  } else if (const auto* fetch = std::get_if<FetchBase>(&message)) {
    const bool there = std::ranges::all_of(fetch->sources, [&](const ShardSource& source) {
      const auto from = FindAt(source.endpoint);
      return from != servers_.end() && from->second.alive &&
             from->second.jobs[fetch->from_job].version == fetch->version;
    });
    if (there && !server.fetches_nothing) say(BaseFetched{fetch->job, fetch->version});
  } else if (const auto* push = std::get_if<PushContribution>(&message)) {
    PushTo(*push);
  } else if (const auto* fences = std::get_if<FenceIslands>(&message)) {
    if (!server.jobs.contains(fences->job)) return;
    Generation& newest = server.jobs[fences->job].generation;
    for (const IslandFence& fence : fences->islands) newest = std::max(newest, fence.generation);
  } else if (const auto* end = std::get_if<EndJob>(&message)) {
    if (server.jobs.contains(end->job)) server.jobs[end->job].ended = true;
  } else if (const auto* describe = std::get_if<DescribeJob>(&message)) {
    const auto job = server.jobs.find(describe->job);
    if (job == server.jobs.end()) return;
    say(JobDescribed{Held(job->first, job->second), job->second.assignment, job->second.newest});
  } else if (const auto* remove = std::get_if<RemoveJob>(&message)) {
    server.jobs.erase(remove->job);
    say(JobRemoved{remove->job});
  } else if (const auto* drop = std::get_if<DropContributions>(&message)) {
    std::erase_if(server.jobs[drop->job].staged, [&](const PushId& push) {
      return std::ranges::count(drop->contributions, ToContributionId(push)) > 0;
    });
  }
}

std::map<NodeId, World::Server>::iterator World::FindAt(const std::string& endpoint) {
  return std::ranges::find_if(servers_, [&](const auto& entry) {
    return endpoint == absl::StrCat("tcp://", entry.first, ":1");
  });
}

void World::PushTo(const PushContribution& push) {
  for (const GrantedPush& granted : push.order) {
    const auto target = std::ranges::find_if(push.targets, [&](const ShardSource& source) {
      return source.shard.shard == granted.shard;
    });
    const auto server = FindAt(target->endpoint);
    if (server == servers_.end() || !server->second.alive) continue;
    const ContributionId& id = push.contribution;
    const PushId staged{push.to_job,     id.island,     id.generation, id.incarnation,
                        id.base_version, granted.shard, granted.begin, granted.elements};
    server->second.jobs[push.to_job].staged.insert(staged);
    norms_.try_emplace(id, 1);
    Step(FromServer{server->first, server->second.incarnation, PushStaged{staged}});
  }
}

HeldJob World::Held(const JobId& id, const ServerJob& job) const {
  HeldJob held{
      id,       job.version, job.snapshot, {job.staged.begin(), job.staged.end()}, job.generation,
      job.ended};
  for (const OwnedShard& shard : job.assignment.shards) held.shards.push_back(shard.shard);
  return held;
}

// Pseudo-gradients all point the same way; each layer has its share of the squared norm by
// elements.
Statistics World::Gram(const Server& server, const CollectStatistics& request) {
  Statistics statistics{request.job, request.version, request.contributions, {}, request.shards};
  const ServerJob& job = server.jobs.at(request.job);
  const JobView view = Job(request.job);
  double total = 0;
  for (const ShardPlacement& shard : view.shards) total += static_cast<double>(shard.elements);
  std::map<int32_t, double> share;
  for (const OwnedShard& shard : job.assignment.shards) {
    if (!IsInTurn(request.version, shard, FragmentsFrom(view.spec.outer))) continue;
    const auto& requested = request.shards;
    if (!requested.empty() && std::ranges::count(requested, shard.shard) == 0) continue;
    const bool by_layer = HasStatisticsByLayer(request.contributions.size());
    share[by_layer ? shard.layer : 0] += static_cast<double>(shard.elements) / total;
  }
  for (const auto& [layer, part] : share) {
    LayerGram gram{layer, {}};
    for (const ContributionId& a : request.contributions) {
      for (const ContributionId& b : request.contributions) {
        gram.values.push_back(norms_[a] * norms_[b] * part);
      }
    }
    statistics.layers.push_back(std::move(gram));
  }
  return statistics;
}

void World::Heartbeat(const NodeId& name, Server& server) {
  ServerHeartbeat beat;
  for (const auto& [id, job] : server.jobs) {
    HeldJob& held = beat.jobs.emplace_back(HeldJob{id, job.version, job.snapshot, {}});
    held.ended = job.ended;
  }
  Step(FromServer{name, server.incarnation, std::move(beat)});
}

}  // namespace atl::testing
