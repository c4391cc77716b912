// The workers of a World.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {

void World::AttachWorker(const NodeId& name, Worker& worker, const Command& command) {
  const Incarnation incarnation = command.Int("incarnation", worker.incarnation + 1);
  if (command.Has("rival")) {  // another process of its name, whose connection stays
    return Step(FromWorker{name, incarnation, WorkerHello()});
  }
  if (incarnation != worker.incarnation) {
    if (worker.alive && incarnation > worker.incarnation) {
      Step(ConnectionLost{MemberKind::kWorker, name, worker.incarnation});
    }
    worker = Worker{.mark = worker.mark, .held = worker.held, .speed = worker.speed};
  }
  worker.incarnation = incarnation;
  worker.alive = true;
  worker.silent = false;
  WorkerHello hello;
  hello.peer_endpoint = absl::StrCat("tcp://", command.Text("host", name), ":9");
  hello.site = command.Text("site");
  hello.relay_address = command.Text("relay");
  hello.relay_secret = "secret";
  hello.relay_own = command.Int("own", 0) != 0;
  hello.devices.resize(command.Int("devices", 1), {"cpu", 1 << 30, 1});
  hello.mark = worker.mark;
  hello.held = worker.held;
  Step(FromWorker{name, worker.incarnation, std::move(hello)});
}

namespace {

ValidationResult MakeValidationResult(const IslandOrder& order, const Command& command) {
  ValidationResult result{order.job, command.Int("version", order.validate_version),
                          command.Real("loss", 1), command.Int("tokens", 500)};
  if (command.arguments.contains("set")) {
    result.sets.push_back({command.Text("set"), result.version, command.Real("set-loss", 1), 100});
  }
  for (const int32_t task : order.evaluations) {
    const bool more = std::ssize(result.scores) < command.Int("tasks", kEvaluationsMax);
    if (!command.arguments.contains("score") || !more) break;
    TaskScore score{.name = order.spec.evaluation[static_cast<size_t>(task)].name};
    score.version = result.version;
    score.items = 10;
    score.accuracy = command.Real("score", 0);
    result.scores.push_back(std::move(score));
  }
  return result;
}

JobPrepared MakeJobPrepared(const NodeId& name, const JobId& job, const Command& command) {
  const int64_t scale = command.Int("scale", 1);
  JobFacts facts{{{"embedding", 40 * scale}, {"block", 30 * scale}, {"head", 10 * scale}},
                 command.Int("sequences", 1000),
                 50,
                 static_cast<uint64_t>(command.Int("digest", 7)),
                 ModelSpec{.heads = command.Int("heads", 0)}};
  LayerSize& block = facts.layers[1];
  block.experts = static_cast<int32_t>(command.Int("experts", 0));
  if (block.experts > 0) {
    block.experts_begin = 4;
    block.expert_elements = 20 / block.experts;
  }
  JobPrepared prepared{job, facts};
  if (command.Int("measured", 0) != 0) prepared.profiles.push_back({name + "/0", "cpu", "1", 7});
  return prepared;
}

}  // namespace

void World::DoWorker(const Command& command) {
  const NodeId& name = command.words.at(1);
  Worker& worker = workers_[name];
  const std::string& verb = command.words.at(2);
  const auto say = [&](WorkerMessage message) {
    Step(FromWorker{name, worker.incarnation, std::move(message)});
  };
  if (verb == "attaches") {
    AttachWorker(name, worker, command);
  } else if (verb == "dies") {
    worker.alive = false;
    Step(ConnectionLost{MemberKind::kWorker, name, worker.incarnation});
  } else if (verb == "goes-silent") {
    worker.silent = true;
  } else if (verb == "leaves") {
    worker.alive = !worker.member.job.empty() || worker.order.shared;  // islands shared work on
    say(Leaving{"stopped by its operator"});
  } else if (verb == "prepared") {
    say(MakeJobPrepared(name, worker.job_to_prepare, command));
  } else if (verb == "refuses") {
    say(JobRefused{worker.job_to_prepare, command.Text("reason")});
  } else if (verb == "ready") {
    worker.ready = worker.set_up = true;
    worker.lags = false;
    worker.speed = command.Real("speed", worker.speed);
    Heartbeat(name, worker);
  } else if (verb == "stands-still" || verb == "lags") {
    (verb == "lags" ? worker.lags : worker.stands_still) = true;
  } else if (verb == "fills") {
    FillServers(worker.fill);
  } else if (verb == "steps-on") {
    worker.steps_on = true;
  } else if (verb == "pulls") {
    for (const auto& [at, rate] : command.arguments) worker.pull_rates[at] = std::stod(rate);
    Heartbeat(name, worker);
  } else if (verb == "misses") {
    worker.unreached = {command.Text("address")};
    Heartbeat(name, worker);
  } else if (verb == "beats") {
    worker.measuring = absl::StrReplaceAll(command.Text("measuring"), {{"_", " "}});
    worker.exchange_s = command.Real("exchange", worker.exchange_s);
    Heartbeat(name, worker);
  } else if (verb == "follows" || verb == "sets-up") {
    worker.set_up = true;
    worker.replan_reason.clear();
    Heartbeat(name, worker);
  } else if (verb == "saves") {
    Save(name, worker, command);
  } else if (verb == "replans") {
    worker.replan_reason = command.Text("reason");
    Heartbeat(name, worker);
  } else if (verb == "leases") {
    const IslandOrder& order = worker.order;
    say(LeaseRequest{order.job, order.island, order.generation,
                     command.Int("request", worker.request), command.Int("wanted", 4)});
  } else if (verb == "pushes") {
    Push(name, worker, command);
  } else if (verb == "stages") {
    Stage(name, worker, command.Int("shards", static_cast<int64_t>(worker.to_stage.size())));
  } else if (verb == "validates") {
    say(MakeValidationResult(worker.order, command));
  } else {
    ATOLL_CHECK(false, "unknown worker command ", verb);
  }
}

// Layer l is held by holder l of those named, and by the next one.
void World::Save(const NodeId& name, Worker& worker, const Command& command) {
  SavedState state;
  state.about = {worker.order.job,       worker.order.island,        command.Int("base", 0),
                 command.Int("step", 4), command.Ranges("consumed"), command.Int("number", 1)};
  const std::string holders = command.Text("holders");
  const size_t count = holders.size();
  for (size_t l = 0; l < count; ++l) {
    state.units.push_back({static_cast<int32_t>(l), 0, {1}, 0, 10});
    const NodeId holder(1, holders[l]);
    const uint64_t units = (uint64_t{1} << l) | (uint64_t{1} << ((l + count - 1) % count));
    state.holders.push_back({holder,
                             workers_.at(holder).incarnation,
                             command.Has("disk") ? Tier::kDisk : Tier::kMemory,
                             {units}});
  }
  worker.saved = {state};
  if (command.Has("disk")) worker.held = {state.about.job};
  Heartbeat(name, worker);
}

void World::Push(const NodeId& name, Worker& worker, const Command& command) {
  const IslandOrder& order = worker.order;
  PushRequest push;
  push.job = order.job;
  push.contribution = {order.island, command.Int("generation", order.generation),
                       command.Int("incarnation", order.author),
                       command.Int("base", order.committed_version)};
  push.inner_steps = command.Int("steps", order.steps_this_round);
  if (push.contribution.base_version != kNoVersion) {
    push.consumed = command.arguments.contains("consumed") ? command.Ranges("consumed")
                                                           : std::exchange(worker.leases, {});
  }
  for (const PositionRange& range : push.consumed) push.tokens += 10 * range.size();
  push.tokens = command.Int("tokens", push.tokens);
  if (command.arguments.contains("skipped")) push.skipped = command.Ranges("skipped");
  push.moments = order.moments_version != kNoVersion && !command.Has("without-moments") &&
                 push.contribution.base_version + 1 >= order.moments_version;
  for (const absl::string_view tokens :
       absl::StrSplit(command.Text("experts"), ',', absl::SkipEmpty())) {
    push.expert_tokens.push_back(std::stoll(std::string(tokens)));
  }
  push.train_loss = 2;
  push.gradient_norm = 3;
  norms_[push.contribution] = command.Real("norm", 1);
  Step(FromWorker{name, worker.incarnation, std::move(push)});
}

void World::Stage(const NodeId& name, Worker& worker, int64_t shards) {
  const JobView job = Job(workers_[name].order.job);
  std::vector<GrantedPush> staged = worker.to_stage;
  staged.resize(std::min<size_t>(staged.size(), static_cast<size_t>(shards)));
  worker.to_stage.erase(worker.to_stage.begin(), worker.to_stage.begin() + std::ssize(staged));
  const ContributionId id = worker.granted;
  for (const GrantedPush& granted : staged) {
    const ShardPlacement& placement = job.shards.at(granted.shard);
    const PushId push{workers_[name].order.job, id.island,       id.generation, id.incarnation,
                      id.base_version,          placement.shard, granted.begin, granted.elements};
    std::vector<NodeId> holders = {placement.server};
    if (!job.copies.empty()) holders.push_back(job.copies.at(push.shard).server);  // forwarded
    for (const NodeId& holder : holders) {
      const auto server = servers_.find(holder);
      if (server == servers_.end() || !server->second.alive) continue;
      server->second.jobs[push.job].staged.insert(push);
      Step(FromServer{holder, server->second.incarnation, PushStaged{push}});
    }
  }
}

void World::FillServers(const FillShards& order) {
  std::map<NodeId, std::vector<ShardId>> filled;
  for (const ShardPlacement& shard : order.shards) {
    const ReceiveShards& receiving = servers_[shard.server].jobs[order.job].receiving;
    const bool expected =
        receiving.version - receiving.fill_age == order.version &&
        std::any_of(receiving.sources.begin(), receiving.sources.end(),
                    [&](const ShardSource& s) { return s.fill && s.shard.shard == shard.shard; });
    if (expected) filled[shard.server].push_back(shard.shard);
  }
  for (const auto& [name, shards] : filled) {
    const Server& server = servers_[name];
    Step(
        FromServer{name, server.incarnation,
                   ShardsReceived{order.job, server.jobs.at(order.job).receiving.version, shards}});
  }
}

void World::Heartbeat(const NodeId& name, Worker& worker) {
  WorkerHeartbeat beat;
  beat.measuring = worker.measuring;
  beat.unreached = worker.unreached;
  for (const auto& [server, rate] : worker.pull_rates) {
    beat.pull_rates.push_back({absl::StrCat("tcp://", server, ":1"), rate});
  }
  if (!worker.order.job.empty()) {
    IslandProgress progress;
    progress.job = worker.order.job;
    progress.island = worker.order.island;
    progress.generation = worker.order.generation;
    progress.seen_sequence = worker.order.sequence;
    progress.saved = worker.saved;
    if (!worker.stands_still && !worker.lags) worker.base = worker.order.committed_version;
    progress.base_version = worker.base;
    progress.ready = worker.ready;
    progress.activity = worker.ready ? "training" : "getting ready";
    progress.tokens_per_s = worker.speed;
    progress.exchange_seconds = worker.exchange_s;
    if (!worker.stands_still) ++worker.inner_step;
    progress.inner_step = worker.inner_step;
    progress.train_loss = 2;
    progress.plan_number = worker.set_up ? worker.order.plan.number : 0;
    progress.setting_up = worker.set_up || worker.steps_on ? 0 : worker.order.plan.number;
    progress.plan_wanted = worker.replan_reason;
    beat.progress = progress;
  }
  if (!worker.member.job.empty()) {
    const MemberOrder& order = worker.member;
    beat.member = MemberProgress{order.job,
                                 order.island,
                                 order.generation,
                                 worker.set_up ? order.plan.number : 0,
                                 order.sequence,
                                 worker.set_up ? "following" : "getting ready",
                                 worker.holds_layers || worker.set_up};
  }
  Step(FromWorker{name, worker.incarnation, std::move(beat)});
}

}  // namespace atl::testing
