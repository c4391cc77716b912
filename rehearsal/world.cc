// The world, and what all members of it have in common; parameter servers.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rehearsal/players.h"

namespace atl::rehearsal {
namespace {

constexpr int64_t kLayerElements = 256;  // of the cores' model: a push is one part
constexpr int64_t kLayersMax = 64;
constexpr Duration kReconnect = std::chrono::seconds(1);

// Leaves out what depends on values of parameters; messages' sizes are the links' matter.
JobSpec CoreSpec(const Scene& scene) {
  JobSpec spec = scene.spec;
  spec.outer.push_encoding = spec.outer.pull_encoding = Encoding::kFloat32;
  spec.outer.reject_outliers = false;
  spec.outer.clip_norm = 0;
  spec.layout.plan.clear();
  spec.layout.stages = spec.layout.replicas = spec.layout.tensor_parallel = 0;
  spec.layout.tensor_split_ratios.clear();
  return spec;
}

}  // namespace

World::World(const Scene* s, Searches* searches)
    : scene(*s),
      planner(s, searches),
      links(s, &timeline),
      accounts(&s->workers),
      spec(CoreSpec(*s)),
      facts(s->facts) {
  int64_t server_count = 0;
  for (const ServerPlace& place : scene.servers) server_count += place.count;
  const auto real = static_cast<int64_t>(scene.facts.layers.size());
  const int64_t layers =
      std::min({real, kLayersMax, std::max<int64_t>(1, scene.spec.outer.fragments) * server_count});
  facts.layers.clear();
  for (int64_t l = 0; l < layers; ++l) {
    facts.layers.push_back({absl::StrCat("layers.", l), kLayerElements});
  }
  layer_parameters = static_cast<double>(scene.parameters()) / static_cast<double>(layers);
  coordinator = std::make_unique<Coordinator>(this);
  for (const ServerPlace& place : scene.servers) {
    for (int i = 0; i < place.count; ++i) {
      servers.push_back(
          std::make_unique<Server>(this, absl::StrCat("server-", servers.size()), place.site));
    }
  }
  for (const SceneWorker& described : scene.workers) {
    worker_index[described.name] = workers.size();
    workers.push_back(std::make_unique<Worker>(this, workers.size(), &described));
  }
}

World::~World() = default;

Worker* World::FindWorker(const NodeId& name) const { return workers[worker_index.at(name)].get(); }

Server* World::FindServer(const NodeId& name) const {
  const auto found = std::find_if(servers.begin(), servers.end(),
                                  [&](const auto& server) { return server->name() == name; });
  return found->get();
}

void World::Say(const std::string& from_site, const std::string& to_site,
                Timeline::Action deliver) {
  links.Say({from_site, to_site}, std::move(deliver));
}

// ---------------------------------------------------------------------------------- members ----

Member::Member(World* world, std::string name, std::string site)
    : Node(&world->timeline, std::move(name)), world_(*world), site_(std::move(site)) {}

void Member::ConnectAfter(Duration delay) {
  AfterInRun(delay, [this] {
    if (connected_) return;
    const std::string& there = world_.coordinator->site();
    if (!world_.coordinator->alive() || !world_.links.IsUp({site_, there}) ||
        !world_.links.IsUp({there, site_})) {
      return ConnectAfter(kReconnect);
    }
    connected_ = true;
    ++connection_;
    OnConnected();
  });
}

void Member::Disconnect() {
  if (!alive() || !connected_) return;
  connected_ = false;
  ++connection_;
  OnDisconnected();
  ConnectAfter(kReconnect);
}

void Member::ReportLost(Duration detection) {
  connected_ = false;
  world_.timeline.After(detection, [this, incarnation = incarnation_] {
    if (world_.coordinator->alive()) {
      world_.coordinator->Deliver(ConnectionLost{kind(), name(), incarnation});
    }
  });
}

void Member::SendUp(CoordinatorEvent event) {
  if (!connected_) return;
  world_.Say(site_, world_.coordinator->site(),
             [this, event = std::move(event), connection = connection_] {
               if (connection == connection_) world_.coordinator->Deliver(event);
             });
}

// ---------------------------------------------------------------------------------- servers ----

Server::Server(World* world, std::string name, std::string site)
    : Member(world, std::move(name), std::move(site)), process_(this, &world->pool) {}

void Server::Start() {
  BeginRun();
  ++incarnation_;
  connected_ = false;
  ps::ServerOptions options;
  options.name = options.endpoint = name();
  options.incarnation = incarnation_;
  options.memory_bytes = int64_t{1} << 40;
  options.site = site_;
  options.heartbeat_interval_max = kQuiet;
  options.reports_snapshots = true;
  process_.Start(std::move(options));
  ConnectAfter(Duration(0));
}

void Server::Crash(bool machine) {
  if (!alive()) return;
  EndRun();
  process_.End();
  world_.links.Break(name());
  ReportLost(machine ? world_.scene.times.detect : kClosed);
}

void Server::LoseDisk() {
  process_.disk().clear();
  process_.mark() = ClusterMark();
}

void Server::Fail(const std::string& what) { world_.trouble = absl::StrCat(name(), " ", what); }

void Server::Fetch(const ps::FetchPart& fetch) {
  Server* const from = world_.FindServer(fetch.endpoint);
  const auto finish = [this, token = fetch.token, at = run()](absl::Status status,
                                                              std::vector<float> values) {
    if (!alive() || run() != at) return;
    const auto owner = std::make_shared<const std::vector<float>>(std::move(values));
    Deliver(ps::PartFetched{token, std::move(status), {owner, std::as_bytes(std::span(*owner))}});
  };
  if (!from->alive()) {
    return AfterInRun(std::chrono::seconds(5),
                      [finish] { finish(absl::UnavailableError("the server is down"), {}); });
  }
  const auto answer = [this, finish, from](const ps::ReplyPull* reply,
                                           const ps::RefusePull* refusal) {
    std::vector<float> values;
    if (reply != nullptr) values.assign(reply->values.begin(), reply->values.end());
    const absl::Status status =
        reply != nullptr ? absl::OkStatus() : absl::FailedPreconditionError(refusal->reason);
    const double bytes = 4 * world_.layer_parameters * static_cast<double>(values.size()) /
                         static_cast<double>(kLayerElements);
    world_.links.Send({{from->site(), site_}, name(), true, from->name()}, bytes,
                      [finish, status, values, from, sent_by = from->incarnation()] {
                        const bool ended = !from->alive() || from->incarnation() != sent_by;
                        finish(ended ? absl::UnavailableError("the server has ended") : status,
                               values);
                      });
  };
  from->process().Pull(
      {fetch.job, fetch.version, fetch.shard, 0, fetch.range.begin, fetch.range.size(), fetch.slot},
      answer);
}

void Server::Forward(const ps::ForwardPush& push) {
  Server* const to = world_.FindServer(push.endpoint);
  const auto finish = [this, token = push.token, at = run()](absl::Status status) {
    if (alive() && run() == at) Deliver(ps::PushForwarded{token, std::move(status)});
  };
  const double bytes = static_cast<double>(EncodedBytes(
      world_.scene.spec.outer.push_encoding, static_cast<int64_t>(world_.layer_parameters)));
  world_.links.Send(
      {{site_, to->site()}, to->name(), true, name()}, bytes, [this, to, push, finish] {
        if (!to->alive()) {
          return AfterInRun(std::chrono::seconds(5),
                            [finish] { finish(absl::UnavailableError("the server is down")); });
        }
        to->process().Push({push.id, push.encoding, push.elements, push.payload, 0},
                           [finish](PushStatus status, std::string reason) {
                             finish(status == PushStatus::kRefused
                                        ? absl::FailedPreconditionError(reason)
                                        : absl::OkStatus());
                           });
      });
}

}  // namespace atl::rehearsal
