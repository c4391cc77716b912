#include "paramserver/server.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "common/files.h"
#include "common/logging.h"
#include "common/machine/room.h"
#include "common/metrics/names.h"
#include "common/net/relay/places.h"
#include "common/protocol/mark_file.h"
#include "common/service_manager.h"
#include "common/version.h"

namespace atl::ps {
namespace {

constexpr char kPart[] = "server";
constexpr Duration kFetchLimit = std::chrono::minutes(2);  // of a part of at most 16 MiB
// Limits of a push to the other server that holds its shard, or to one of the job above: its time,
// and the least that it gets through.
constexpr Duration kForwardLimit = std::chrono::seconds(30);
constexpr size_t kForwardBytesPerSecond = 1 << 20;

int64_t AssemblyBytes(int64_t memory_bytes) {
  return std::min<int64_t>(memory_bytes / 4, int64_t{1} << 30);
}

bool IsWildcard(absl::string_view endpoint) {
  return absl::StartsWith(endpoint, "tcp://0.0.0.0:") || absl::StartsWith(endpoint, "tcp://*:") ||
         absl::StartsWith(endpoint, "tcp://[::]:");
}

}  // namespace

Daemon::Daemon(DaemonOptions options)
    : options_(std::move(options)),
      metrics_(options_.state_folder),
      mark_(&RealFiles(), options_.state_folder,
            [](const std::string& trouble) {
              if (trouble.empty()) return LogInfo(kPart, "its cluster is remembered again");
              LogWarning(
                  kPart,
                  "cannot remember its cluster, and answers no newer coordinator until it can: ",
                  trouble);
            }),
      pool_(std::max(1, options_.threads)) {}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Create(DaemonOptions options) {
  auto daemon = std::unique_ptr<Daemon>(new Daemon(std::move(options)));
  ATOLL_RETURN_IF_ERROR(daemon->Start());
  return daemon;
}

absl::Status Daemon::Start() {
  ATOLL_RETURN_IF_ERROR(CheckRoom(options_.memory_bytes));
  if (IsWildcard(options_.listen) && options_.advertise.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen ", options_.listen,
                     " is every address: say by --advertise at which one workers reach it"));
  }
  ATOLL_ASSIGN_OR_RETURN(folder_, StateFolder::Open(options_.state_folder));
  ATOLL_ASSIGN_OR_RETURN(const Incarnation incarnation, folder_->NextIncarnation());
  ATOLL_ASSIGN_OR_RETURN(const ClusterMark mark,
                         ReadClusterMark(RealFiles(), options_.state_folder));
  const LogOptions log_options;
  ATOLL_ASSIGN_OR_RETURN(RecoveredState recovered,
                         RecoverState(RealFiles(), options_.state_folder, log_options, &pool_));
  for (const std::string& note : recovered.notes) LogWarning("storage", note);
  for (const RecoveredJob& job : recovered.jobs) {
    if (job.state == nullptr) continue;
    LogInfo("storage", "recovered job ", job.job, " at version ", job.state->version(), " with ",
            job.state->Staged().size(), " staged pushes");
  }
  auto storage =
      std::make_unique<Storage>(&RealFiles(), options_.state_folder, recovered, log_options);
  ServerOptions server{options_.name,
                       incarnation,
                       kSoftwareVersion,
                       "",
                       options_.memory_bytes - AssemblyBytes(options_.memory_bytes),
                       options_.security.keys.public_key,
                       mark,
                       options_.site,
                       options_.site_only};
  ATOLL_ASSIGN_OR_RETURN(
      relay_, Relay::Open(options_.relay, options_.listen,
                          options_.advertise.empty() ? options_.listen : options_.advertise));
  if (relay_ != nullptr) {
    server.relay_address = relay_->address();
    server.relay_secret = relay_->secret();
    server.relay_own = relay_->own();
  }
  core_ = std::make_unique<ServerCore>(std::move(server), std::move(recovered.jobs), &pool_);
  gate_ = core_->MakeGate();
  storage_ = std::make_unique<StorageThread>(std::move(storage),
                                             [this](Event event) { loop_.Post(std::move(event)); });
  Monitored monitored = metrics_.ForServer([this] { loop_.TryPost(Tick{}); },
                                           [this](MetricsWriter& writer) { AddQueues(writer); });
  monitored.admits = [this](const std::string& shown) { return refused_.Check(shown); };
  ATOLL_ASSIGN_OR_RETURN(monitor_, ServeMetrics(options_.metrics_listen, options_.tls, monitored));
  // From here on threads of others may call.
  ATOLL_RETURN_IF_ERROR(Listen());
  core_->SetEndpoint(endpoint_);
  renewer_ = StartRenewer(IdentityFolder(options_.state_folder + "/identity"), options_.tls,
                          options_.coordinator);
  return Attach(incarnation);
}

// Besides the keys of --curve-clients; of both, none that is revoked.
void Daemon::SetKeys(const v1::ClientKeys& listed) {
  std::set<std::string> keys(options_.security.allowed_client_keys.begin(),
                             options_.security.allowed_client_keys.end());
  keys.insert(listed.allowed().begin(), listed.allowed().end());
  for (const std::string& key : listed.revoked()) keys.erase(key);
  std::erase_if(keys, [](const std::string& key) { return !IsCurveKey(key); });
  LogInfo(kPart, keys.size(), " keys may use the tensor link, ", listed.revoked_size(),
          " are revoked");
  link_->SetClientKeys({keys.begin(), keys.end()});
}

absl::Status Daemon::Listen() {
  TensorServerOptions options;
  options.endpoint = options_.listen;
  if (absl::EndsWith(options.endpoint, ":0")) {
    options.endpoint.replace(options.endpoint.size() - 1, 1, "*");  // ZeroMQ's wildcard
  }
  options.security = options_.security;
  options.io_threads = options_.io_threads;
  options.assembly_bytes_max = AssemblyBytes(options_.memory_bytes);
  options.push_bytes_max = options.assembly_bytes_max;
  options.idle_buffer_bytes_max = options.assembly_bytes_max;
  auto link = TensorServer::Create(options, this);
  if (!link.ok()) return Annotate(link.status(), "--listen");
  link_ = *std::move(link);
  endpoint_ = options_.advertise.empty() ? link_->endpoint() : options_.advertise;
  LogInfo(kPart, "tensor link listens at ", link_->endpoint(), ", advertised as ", endpoint_);
  TensorClientOptions client;
  client.security = {options_.security.keys, options_.security.allow_plaintext_beyond_loopback};
  ATOLL_ASSIGN_OR_RETURN(client_, TensorClient::Create(client));
  if (relay_ != nullptr) client_->UseOwnRelay(relay_->near(), relay_->secret());
  return absl::OkStatus();
}

absl::Status Daemon::Attach(Incarnation incarnation) {
  AttachOptions options;
  options.coordinator = options_.coordinator;
  options.tls = options_.tls;
  options.name = options_.name;
  options.incarnation = incarnation;
  options.max_queued = 1 << 16;
  if (!options_.tls.cert_path.empty()) {
    options.on_keys = [this](const v1::ClientKeys& keys) {
      refused_.Set(keys.refused());
      if (!options_.security.keys.empty()) SetKeys(keys);
    };
  }
  const auto on_event = [this, reason = std::string(),
                         served = false](ServerAttach::Event event) mutable {
    metrics_.NoteConnection(!std::holds_alternative<AttachLost>(event));
    const bool begins = std::holds_alternative<ToServer>(event) && !served;
    served = std::holds_alternative<ToServer>(event);
    if (begins) {
      reason.clear();
      LogInfo(kPart, "attached to the coordinator at ", options_.coordinator);
    }
    if (std::holds_alternative<AttachOpened>(event)) {
      loop_.Post(ConnectionUp{});
    } else if (const auto* lost = std::get_if<AttachLost>(&event)) {
      if (reason != lost->reason) {
        LogWarning(kPart, "no connection to the coordinator: ", reason = lost->reason);
      }
      loop_.Post(ConnectionDown{});
    } else {
      loop_.Post(FromCoordinator{std::get<ToServer>(std::move(event))});
    }
  };
  auto attach = ServerAttach::Open(options, on_event);
  ATOLL_RETURN_IF_ERROR(attach.status());
  attach_ = *std::move(attach);
  return absl::OkStatus();
}

Daemon::~Daemon() {
  monitor_.reset();
  renewer_.reset();
  loop_.Stop();  // threads that wait in Post return
  if (attach_ != nullptr) attach_->Close(std::chrono::seconds(1));
  client_.reset();
  link_.reset();
  storage_.reset();
}

absl::Status Daemon::Run() {
  RunService(&loop_, [this](Instant now, std::optional<Event> event) {
    return Step(now, std::move(event));
  });
  return outcome_;
}

Instant Daemon::Step(Instant now, std::optional<Event> event) {
  metrics_.pulse().Beat();
  if (!event || std::holds_alternative<Tick>(*event)) {
    const LinkCounters counters = link_->counters();
    event =
        Tick{storage_->log_bytes(), counters.payload_bytes_received, counters.payload_bytes_sent};
  }
  Actions actions = core_->Step(now, *event);
  event.reset();  // may hold the last reference to a push's bytes
  {
    const std::lock_guard lock(gate_mutex_);
    gate_.Apply(std::move(actions.gate), actions.room);
  }
  if (actions.remember) mark_.Remember(*actions.remember);
  if (actions.relays) link_->AcceptThrough(ListStandbyWays(*actions.relays));
  // All messages may be lost: they are sent again.
  if (!mark_.Fences(now)) actions.to_coordinator.clear();
  storage_->Add(actions);
  for (ServerMessage& message : actions.to_coordinator) {
    if (auto* const heartbeat = std::get_if<ServerHeartbeat>(&message)) {
      heartbeat->unreached = client_->ListUnreached();
      metrics_.NoteHeartbeat(*heartbeat);
    }
    attach_->Send(std::move(message));
  }
  for (AcknowledgePush& answer : actions.pushes) {
    link_->AcknowledgePush({answer.token}, answer.status, std::move(answer.reason));
  }
  for (ReplyPull& reply : actions.replies) {
    link_->ReplyPull({reply.token}, reply.version, reply.values, std::move(reply.owner));
  }
  for (RefusePull& refusal : actions.refusals) {
    link_->RefusePull({refusal.token}, refusal.refusal, refusal.current, std::move(refusal.reason));
  }
  for (FetchPart& fetch : actions.fetches) Fetch(std::move(fetch));
  for (ForwardPush& push : actions.forwards) Forward(std::move(push));
  for (const std::string& note : actions.notes) LogInfo(kPart, note);
  if (actions.stop) {
    outcome_ = absl::FailedPreconditionError(
        absl::StrCat("the coordinator at ", options_.coordinator, " refuses: ", *actions.stop));
    loop_.Stop();
  }
  return std::min(actions.next_deadline, mark_.next_try());
}

void Daemon::AddQueues(MetricsWriter& writer) const {
  const StorageThread::Queued queued = storage_->queued();
  writer.Add(kEventQueue, static_cast<double>(loop_.queued()));
  writer.Add(kWorkQueue, static_cast<double>(queued.storage), {{"queue", "storage"}});
  writer.Add(kWorkQueue, static_cast<double>(queued.snapshots), {{"queue", "snapshots"}});
}

void Daemon::Fetch(FetchPart fetch) {
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(fetch.range.size()));
  PullRequest request{fetch.job, fetch.version, fetch.shard};
  request.begin = fetch.range.begin;
  request.elements = fetch.range.size();
  request.slot = fetch.slot;
  client_->Pull(
      {fetch.endpoint, fetch.public_key}, request, *values, kFetchLimit,
      [this, values, token = fetch.token](const PullResult& result) {
        loop_.Post(PartFetched{token, result.status, {values, std::as_bytes(std::span(*values))}});
      });
}

void Daemon::Forward(ForwardPush push) {
  const std::span<const std::byte> bytes = push.payload.bytes;
  const auto limit = kForwardLimit + std::chrono::seconds(bytes.size() / kForwardBytesPerSecond);
  client_->Push({push.endpoint, push.public_key}, push.id, push.encoding, push.elements, bytes,
                std::move(push.payload.owner), limit,
                [this, token = push.token](const PushResult& result) {
                  loop_.Post(PushForwarded{token, result.status});
                });
}

absl::Status Daemon::AdmitPush(const PushId& id, Encoding encoding, int64_t element_count) {
  const std::lock_guard lock(gate_mutex_);
  return gate_.Admit(id, encoding, element_count);
}

void Daemon::OnPush(const PushId& id, Encoding encoding, int64_t elements, Payload payload,
                    ReplyToken token) {
  auto owner = std::make_shared<const Payload>(std::move(payload));
  const std::span<const std::byte> bytes = owner->bytes();
  loop_.Post(PushArrived{id, encoding, elements, {std::move(owner), bytes}, token.id});
}

void Daemon::OnPull(const PullRequest& request, ReplyToken token) {
  loop_.Post(PullArrived{request.job, request.version, request.shard, token.id, request.begin,
                         request.elements, request.slot});
}

}  // namespace atl::ps
