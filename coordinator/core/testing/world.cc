#include "coordinator/core/testing/world.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/protocol/fragments.h"
#include "common/protocol/round_limit.h"
#include "coordinator/core/testing/describe.h"

namespace atl::testing {

// ---------------------------------------------------------------------------------- commands ----

Command::Command(const std::string& line) {
  for (const std::string& token :
       std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))) {
    const size_t equals = token.find('=');
    if (equals == std::string::npos) {
      words.push_back(token);
    } else {
      arguments[token.substr(0, equals)] = token.substr(equals + 1);
    }
  }
}

bool Command::Has(const std::string& word) const {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string Command::Text(const std::string& key, const std::string& otherwise) const {
  auto it = arguments.find(key);
  return it == arguments.end() ? otherwise : it->second;
}

int64_t Command::Int(const std::string& key, int64_t otherwise) const {
  int64_t value = otherwise;
  if (arguments.contains(key)) ATOLL_CHECK(absl::SimpleAtoi(arguments.at(key), &value), key);
  return value;
}

double Command::Real(const std::string& key, double otherwise) const {
  double value = otherwise;
  if (arguments.contains(key)) ATOLL_CHECK(absl::SimpleAtod(arguments.at(key), &value), key);
  return value;
}

std::vector<PositionRange> Command::Ranges(const std::string& key) const {
  std::vector<PositionRange> ranges;
  for (const std::string& text :
       std::vector<std::string>(absl::StrSplit(Text(key), ',', absl::SkipEmpty()))) {
    const std::vector<std::string> ends = absl::StrSplit(text, '-');
    PositionRange range;
    ATOLL_CHECK(ends.size() == 2 && absl::SimpleAtoi(ends[0], &range.begin) &&
                    absl::SimpleAtoi(ends[1], &range.end),
                text);
    ranges.push_back(range);
  }
  return ranges;
}

namespace {

// Parses commands that are one event; nothing: it is not one of them.
std::optional<CoordinatorEvent> ParseEvent(const Command& command) {
  const std::string& verb = command.words[0];
  const std::map<std::string, JobCommand> controls = {
      {"pause", JobCommand::kPause},           {"resume", JobCommand::kResume},
      {"cancel", JobCommand::kCancel},         {"adopt", JobCommand::kAdopt},
      {"refill", JobCommand::kRefill},         {"remove", JobCommand::kRemove},
      {"note-export", JobCommand::kNoteExport}};
  if (const auto control = controls.find(verb); control != controls.end()) {
    return ControlJob{1,
                      command.words.at(1),
                      control->second,
                      command.Has("force"),
                      command.Text("server"),
                      command.Int("version", kNoVersion)};
  }
  if (verb == "drain") return DrainMember{1, command.words.at(1), !command.Has("undo")};
  if (verb == "sites") {
    SitesFound found;
    for (const auto& [worker, site] : command.arguments) {
      found.workers.push_back({worker, site, absl::StrCat("measured: near ", site)});
    }
    return found;
  }
  if (verb == "rates") {  // rates paris-oslo=1000000
    SitesFound found;
    for (const auto& [pair, rate] : command.arguments) {
      const size_t dash = pair.find('-');
      found.rates[{pair.substr(0, dash), pair.substr(dash + 1)}] = std::stod(rate);
    }
    return found;
  }
  if (verb != "changed") return std::nullopt;
  return ProfileChanged{{command.words.at(1)},
                        absl::StrReplaceAll(command.Text("reason"), {{"_", " "}}),
                        command.Has("unusable"),
                        command.Text("subject"),
                        command.Real("size", 1)};
}

}  // namespace

// ------------------------------------------------------------------------------------- world ----

World::World(CoordinatorOptions options)
    : options_(options), core_(std::make_unique<CoordinatorCore>(options, kCluster, 1)) {
  ATOLL_CHECK(core_->Recover(now_, {}).ok());
}

std::string World::Do(const std::string& line) {
  printed_.clear();
  const Command command(line);
  ATOLL_CHECK(!command.words.empty(), "no command: ", line);
  const std::string& verb = command.words[0];
  if (verb == "server") {
    DoServer(command);
  } else if (verb == "worker") {
    DoWorker(command);
  } else if (verb == "servers" && command.Has("snapshot")) {
    for (auto& [name, server] : servers_) {
      for (auto& [id, job] : server.jobs) job.snapshot = job.version;
      if (server.alive) Heartbeat(name, server);
    }
  } else if (verb == "servers") {
    bool more = AnswerOnce();
    while (more && !command.Has("once")) more = AnswerOnce();
  } else if (verb == "submit") {
    Submit(command);
  } else if (verb == "wait") {
    int64_t seconds = 0;
    ATOLL_CHECK(absl::SimpleAtoi(command.words.at(1), &seconds));
    Wait(seconds);
  } else if (verb == "coordinator") {
    DoCoordinator(command);
  } else if (verb == "planner") {
    DoPlanner(command);
  } else if (verb == "again") {
    Step(CoordinatorEvent(last_event_));
  } else if (verb == "show") {
    Show();
  } else if (const std::optional<CoordinatorEvent> event = ParseEvent(command)) {
    Step(*event);
  } else {
    ATOLL_CHECK(false, "unknown command: ", line);
  }
  return printed_;
}

void World::DoLines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) Do(line);
}

JobView World::Job(const JobId& job) const {
  const std::optional<JobView> view = core_->Job(now_, job);
  ATOLL_CHECK(view, "no job ", job);
  return *view;
}

IslandView World::Island(IslandId id, const JobId& job) const { return Job(job).islands.at(id); }

void World::StartJob(const std::vector<NodeId>& servers, const std::vector<NodeId>& workers,
                     const std::string& submit) {
  for (const NodeId& name : servers) Do(absl::StrCat("server ", name, " attaches"));
  for (const NodeId& name : workers) Do(absl::StrCat("worker ", name, " attaches"));
  Do(absl::StrCat("submit min=", workers.size(), " ", submit));
  for (const NodeId& name : workers) Do(absl::StrCat("worker ", name, " prepared"));
  Do("servers answer");
  DoLines({absl::StrCat("worker ", workers[0], " pushes"),
           absl::StrCat("worker ", workers[0], " stages"), "servers answer"});
  for (const NodeId& name : workers) Do(absl::StrCat("worker ", name, " ready"));
}

void World::Contribute(const NodeId& worker, int64_t sequences, double norm) {
  DoLines({absl::StrCat("worker ", worker, " leases wanted=", sequences),
           absl::StrCat("worker ", worker, " pushes norm=", norm),
           absl::StrCat("worker ", worker, " stages")});
}

std::vector<StoreRecord> World::stored() const {
  std::vector<StoreRecord> records;
  for (const auto& [key, record] : store_) records.push_back(record);
  return records;
}

void World::Step(const CoordinatorEvent& event) {
  if (on_event) on_event(event);
  last_event_ = event;
  const CoordinatorActions actions = core_->Step(now_, event);
  if (after_event) after_event(event);
  for (const StoreWrite& write : actions.persist) {
    if (const auto* log = std::get_if<EventRecord>(&write.record)) {
      log_.push_back(*log);
      Print(absl::StrCat("log ", log->job, log->job.empty() ? "" : " ", log->text));
      continue;
    }
    const std::string key = MakeRecordKey(write.record);
    store_.erase(key);
    if (!write.erase) store_.emplace(key, write.record);
  }
  const bool often = ++steps_ % kOftenEnough == 0 || store_.size() < kManyRecords;
  if (checks && often) CheckStore();
  ATOLL_CHECK(actions.next_deadline > now_, "a deadline that has passed: the shell would spin");
  for (const Reply& reply : actions.replies) {
    reply_ = reply.status;
    Print(absl::StrCat("reply ", reply.job, reply.job.empty() ? "" : " ", reply.status.ToString()));
  }
  for (const ToWorker& to : actions.to_workers) Deliver(to);
  for (const ToServer& to : actions.to_servers) Deliver(to);
  for (const GroupWorkers& query : actions.groups) Group(query);
  for (const MakePlan& query : actions.plans) Plan(query);
}

void World::DoPlanner(const Command& command) {
  planner_speed_ = command.Real("speed", planner_speed_);
  if (command.Has("waits")) planner_ = PlannerMode::kWaits;
  if (command.Has("refuses")) {
    planner_ = PlannerMode::kRefuses;
    planner_refusal_ = command.Text("reason");
  }
  if (command.Has("answers")) planner_ = PlannerMode::kAnswers;
  if (command.Has("groups")) {
    groups_ = command.Has("site")  ? IslandScope::kSite
              : command.Has("all") ? IslandScope::kAll
                                   : IslandScope::kWorker;
  }
  if (planner_ == PlannerMode::kWaits) return;
  for (const GroupWorkers& query : std::exchange(pending_groups_, {})) Group(query);
  for (const MakePlan& query : std::exchange(pending_plans_, {})) Plan(query);
}

void World::Group(const GroupWorkers& query) {
  std::string names;
  for (const PlanMember& worker : query.members) absl::StrAppend(&names, " ", worker.member.worker);
  Print(absl::StrCat("groups", names, "?"));
  if (planner_ == PlannerMode::kWaits) {
    pending_groups_.push_back(query);
    return;
  }
  Step(WorkersGrouped{query.job, query.request, groups_, "as the test says"});
}

void World::Plan(const MakePlan& query) {
  if (planner_ == PlannerMode::kWaits) {
    pending_plans_.push_back(query);
    return;
  }
  PlanMade made{query.job, query.island, query.request,
                absl::ResourceExhaustedError(planner_refusal_)};
  if (planner_ == PlannerMode::kAnswers) {
    made.plan = TestPlan(query, planner_speed_);
  }
  Step(made);
}

void World::CheckStore() {
  std::vector<StoreRecord> stored = this->stored();
  const std::vector<StoreRecord> claimed = core_->Stored();
  for (size_t i = 0; i < std::min(stored.size(), claimed.size()); ++i) {
    ATOLL_CHECK(stored[i] == claimed[i], "not stored as it is: ", MakeRecordKey(stored[i]), " / ",
                MakeRecordKey(claimed[i]));
  }
  ATOLL_CHECK(stored.size() == claimed.size(), stored.size(), " stored, ", claimed.size());
  CoordinatorCore second(options_, core_->cluster(), core_->epoch() + 1);
  const absl::Status status = second.Recover(now_, stored);
  ATOLL_CHECK(status.ok(), status.ToString());
  std::vector<StoreRecord> recovered = second.Stored();
  std::erase_if(stored, [](const auto& r) { return std::holds_alternative<EpochRecord>(r); });
  ATOLL_CHECK(recovered == stored, "recovery gives another state");
}

void World::DoCoordinator(const Command& command) {
  const std::string what = command.words.at(1);
  if (what == "is-held-up") {
    int64_t seconds = 0;
    ATOLL_CHECK(absl::SimpleAtoi(command.words.at(2), &seconds));
    now_ += std::chrono::seconds(seconds);
    Step(Stalled{std::chrono::seconds(seconds)});
  } else if (what == "is-backed-up") {
    backup_ = store_;
    backup_mark_ = {core_->cluster(), core_->epoch()};
  } else if (what == "puts-its-store-aside") {
    aside_ = store_;
    aside_mark_ = {core_->cluster(), core_->epoch()};
  } else if (what == "takes-its-store-back") {
    store_ = aside_;
    Restart(aside_mark_.cluster, aside_mark_.epoch + 1);
  } else if (what == "is-rolled-back") {
    store_ = backup_;
    Restart(backup_mark_.cluster, backup_mark_.epoch + 1);
  } else if (what == "is-restored") {
    store_ = backup_;
    const EpochRecord own = AfterLoss(std::get<EpochRecord>(store_.at("epoch")), 0);
    store_["epoch"] = own;
    Restart(own.cluster, own.epoch + 1);
  } else if (what == "is-lost") {
    store_.clear();
    Restart(command.Text("cluster", core_->cluster()), 1);
  } else {
    if (what == "crashes-at") crashed_ = command.words.at(2);
    Restart(core_->cluster(), core_->epoch() + 1);
  }
}

namespace {

// Accepts messages as members do.
template <typename To>
bool Accepts(const ClusterMark& mark, const To& to) {
  return mark.cluster.empty() || (to.cluster == mark.cluster && to.epoch >= mark.epoch);
}

template <typename To>
void Remember(const To& to, ClusterMark& mark) {
  if (std::holds_alternative<Refused>(to.message)) return;
  if (std::holds_alternative<Welcome>(to.message)) mark.cluster = to.cluster;
  mark.epoch = to.epoch;
  mark.sequence = std::max(mark.sequence, to.sequence);
}

}  // namespace

void World::Deliver(const ToWorker& to) {
  Print(absl::StrCat("-> ", to.worker, ": ", Describe(to.message)));
  Worker& worker = workers_[to.worker];
  if (to.incarnation != worker.incarnation || !Accepts(worker.mark, to)) return;
  Remember(to, worker.mark);
  if (const auto* forget = std::get_if<ForgetJob>(&to.message)) {
    std::erase(worker.held, forget->job);
  }
  if (const auto* prepare = std::get_if<PrepareJob>(&to.message))
    worker.job_to_prepare = prepare->job;
  if (const auto* order = std::get_if<IslandOrder>(&to.message)) {
    if (order->generation != worker.order.generation || order->job != worker.order.job) {
      worker.leases.clear();
      worker.ready = false;
    }
    if (order->plan.number != worker.order.plan.number) worker.set_up = false;
    worker.order = *order;
    worker.member = MemberOrder();
    if (order->run == RunState::kStop) {
      worker.order = IslandOrder();
      worker.holds_layers = false;
    }
  }
  if (const auto* order = std::get_if<MemberOrder>(&to.message)) {
    worker.holds_layers = worker.holds_layers || worker.set_up;
    worker.member = *order;
    worker.order = IslandOrder();
    worker.set_up = false;
    if (order->run == RunState::kStop) {
      worker.member = MemberOrder();
      worker.holds_layers = false;
    }
  }
  if (const auto* fill = std::get_if<FillShards>(&to.message)) worker.fill = *fill;
  if (const auto* grant = std::get_if<LeaseGrant>(&to.message)) {
    if (grant->request == worker.request && !grant->ranges.empty()) {
      worker.leases.insert(worker.leases.end(), grant->ranges.begin(), grant->ranges.end());
      ++worker.request;
    }
  }
  if (const auto* grant = std::get_if<PushGrant>(&to.message)) {
    worker.granted = grant->contribution;
    worker.to_stage = grant->order;
  }
}

void World::Deliver(const ToServer& to) {
  const std::string text = Describe(to.message);
  if (std::holds_alternative<FenceIslands>(to.message)) {
    // Repeated with every heartbeat.
    if (last_fences_[to.server] == text) return;
    last_fences_[to.server] = text;
  }
  Print(absl::StrCat("-> ", to.server, ": ", text));
  Server& server = servers_[to.server];
  if (!Accepts(server.mark, to)) return;
  Remember(to, server.mark);
  if (to.incarnation == server.incarnation && server.alive)
    server.pending_messages.push_back(to.message);
}

// ----------------------------------------------------------------------------------- servers ----

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
        return std::count(commit->dropped.begin(), commit->dropped.end(), id) > 0 ||
               std::any_of(commit->terms.begin(), commit->terms.end(),
                           [&](const RoundTerm& term) { return term.contribution == id; });
      });
    }
    say(RoundApplied{commit->job, commit->version});
  } else if (const auto* receive = std::get_if<ReceiveShards>(&message)) {
    const auto is_fill = [](const ShardSource& source) { return source.fill; };
    if (std::none_of(receive->sources.begin(), receive->sources.end(), is_fill)) return;
    ServerJob& job = server.jobs[receive->job];
    if (job.assignment.shards.empty()) {
      job.version = receive->version;
      job.newest = receive->newest;
    }
    if (job.version == receive->version) job.receiving = *receive;
  } else if (const auto* fetch = std::get_if<FetchBase>(&message)) {
    const bool there =
        std::all_of(fetch->sources.begin(), fetch->sources.end(), [&](const ShardSource& source) {
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
      return std::count(drop->contributions.begin(), drop->contributions.end(),
                        ToContributionId(push)) > 0;
    });
  }
}

std::map<NodeId, World::Server>::iterator World::FindAt(const std::string& endpoint) {
  return std::find_if(servers_.begin(), servers_.end(), [&](const auto& entry) {
    return endpoint == absl::StrCat("tcp://", entry.first, ":1");
  });
}

void World::PushTo(const PushContribution& push) {
  for (const GrantedPush& granted : push.order) {
    const auto target = std::find_if(
        push.targets.begin(), push.targets.end(),
        [&](const ShardSource& source) { return source.shard.shard == granted.shard; });
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
    if (!IsInTurn(request.version, shard.layer, view.spec.outer.fragments)) continue;
    const auto& requested = request.shards;
    if (!requested.empty() && std::count(requested.begin(), requested.end(), shard.shard) == 0)
      continue;
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
    beat.jobs.push_back({id, job.version, job.snapshot, {}});
  }
  Step(FromServer{name, server.incarnation, std::move(beat)});
}

// ------------------------------------------------------------------------------- time and all ----

void World::Submit(const Command& command) {
  JobSpec spec;
  spec.name = command.Text("name", "lm");
  spec.model.hidden = 8;
  spec.model.layers = 2;
  spec.model.heads = 2;
  spec.data.path = "text";
  spec.data.sequence_length = 10;
  for (const absl::string_view site :
       absl::StrSplit(command.Text("sites"), ',', absl::SkipEmpty())) {
    spec.data.path.clear();
    spec.data.sites.push_back({std::string(site), absl::StrCat("text-", site), ""});
  }
  if (command.arguments.contains("set")) {
    spec.data.validation.push_back({command.Text("set"), "more-text"});
  }
  for (const absl::string_view every :
       absl::StrSplit(command.Text("evaluate"), ',', absl::SkipEmpty())) {
    EvaluationSpec& task = spec.evaluation.emplace_back();
    task.name = spec.evaluation.size() == 1 ? "arc" : "wiki";
    task.path = task.name + ".jsonl";
    task.every_rounds = std::stoll(std::string(every));
  }
  spec.model.initial_job = command.Text("from");
  spec.inner.batch_sequences = command.Int("batch", 1);
  spec.outer.optimizer = "nesterov";  // has state that moves with shards
  spec.outer.learning_rate = 0.7;
  spec.outer.momentum = 0.8;
  spec.outer.min_islands = command.Int("min", 1);
  spec.outer.max_islands = command.Int("max", 8);
  spec.outer.min_servers = command.Int("servers", 1);
  spec.outer.shard_copies = static_cast<int>(command.Int("copies", 1));
  spec.outer.steps_per_round = command.Int("steps", 4);
  spec.outer.fragments = command.Int("fragments", 1);
  spec.outer.site.rounds = command.Int("site-rounds", 0);
  spec.outer.grace_seconds = command.Real("grace", 10);
  spec.outer.steps_min = command.Int("steps-min", 1);
  spec.outer.adaptive_grace = command.Has("adaptive-grace");
  spec.outer.clip_norm = command.Real("clip", 0);
  spec.outer.merge = command.Text("merge", "mean");
  spec.outer.balance_steps = !command.Has("no-balance");
  if (command.Has("quantised-pulls")) spec.outer.pull_encoding = Encoding::kInt4;
  if (command.Has("no-overlap")) spec.outer.overlap = Overlap::kNone;
  spec.outer.wait_for_all = command.Has("wait-for-all");
  const std::string island = command.Text("island");
  spec.layout.island = island == "site"   ? IslandScope::kSite
                       : island == "all"  ? IslandScope::kAll
                       : island == "auto" ? IslandScope::kAuto
                                          : IslandScope::kWorker;
  spec.layout.workers_per_island = command.Int("per-island", 0);
  spec.layout.stages = command.Int("stages", 0);
  spec.layout.exclude = absl::StrSplit(command.Text("exclude"), ',', absl::SkipEmpty());
  spec.layout.sites = absl::StrSplit(command.Text("pinned"), ',', absl::SkipEmpty());
  spec.schedule.train_tokens = command.Int("tokens", 1000);
  spec.schedule.validate_every_rounds = command.Int("validate", 0);
  submitted_ = command.Int("number", submitted_ + 1);
  Step(SubmitJob{1, spec, submitted_});
}

void World::Wait(int64_t seconds) {
  for (int64_t second = 1; second <= seconds; ++second) {
    now_ += std::chrono::seconds(1);
    if (std::chrono::duration_cast<std::chrono::seconds>(now_.time_since_epoch()).count() % 2 ==
        0) {
      for (auto& [name, server] : servers_) {
        if (server.alive && !server.silent) Heartbeat(name, server);
      }
      for (auto& [name, worker] : workers_) {
        if (worker.alive && !worker.silent) Heartbeat(name, worker);
      }
    }
    Step(Tick{});
  }
}

void World::Restart(ClusterId cluster, int64_t epoch) {
  std::vector<StoreRecord> stored;
  for (const auto& [key, record] : store_) stored.push_back(record);
  core_ = std::make_unique<CoordinatorCore>(options_, std::move(cluster), epoch);
  const absl::Status status = core_->Recover(now_, stored, std::exchange(crashed_, ""));
  ATOLL_CHECK(status.ok(), status.ToString());
  for (auto& [name, server] : servers_) server.pending_messages.clear();
  last_fences_.clear();
  Step(Tick{});
}

void World::Show() {
  for (const JobSummary& job : core_->Jobs().jobs) {
    const JobView view = Job(job.job);
    Print(absl::StrCat("= ", job.job, " ", Name(job.state), " (", job.reason, "), version ",
                       job.version, ", ", job.tokens_committed, " of ", job.tokens_budget,
                       " tokens", job.waiting_for.empty() ? "" : ", waits: ", job.waiting_for));
    for (const IslandView& island : view.islands) {
      Print(absl::StrFormat(
          "=   island %d of %s generation %d: %s; %d accepted, %d rejected, %d "
          "tokens, %d leased",
          island.island, island.worker, island.generation, island.activity, island.rounds_accepted,
          island.rounds_rejected, island.tokens_committed, island.leased_sequences));
      if (!island.plan && island.planning.empty()) continue;
      std::string line = absl::StrCat("=     ", Describe(island.plan.value_or(IslandPlan())));
      if (!island.planning.empty()) absl::StrAppend(&line, "; ", island.planning);
      for (const IslandWorkerView& w : island.workers) {
        absl::StrAppend(&line, "; ", w.worker,
                        w.leads     ? " leads"
                        : w.in_plan ? " follows"
                                    : " spare",
                        " (plan ", w.plan_number, ")");
      }
      Print(line);
    }
    Print(absl::StrFormat("=   round %s; data: %d committed, %d pushed, %d leased, %d free",
                          view.round.phase, view.ledger.committed, view.ledger.pushed,
                          view.ledger.leased, view.ledger.free));
  }
}

}  // namespace atl::testing
