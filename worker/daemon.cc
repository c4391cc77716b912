#include "worker/daemon.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "common/end_signals.h"
#include "common/event_loop.h"
#include "common/logging.h"
#include "common/machine/limits.h"
#include "common/net/control/attach_client.h"
#include "common/net/control/tls.h"
#include "common/net/relay/places.h"
#include "common/net/relay/relay.h"
#include "common/object_store/http.h"
#include "common/protocol/mark_file.h"
#include "common/protocol/wire.h"
#include "common/service_manager.h"
#include "common/state_folder.h"
#include "common/trust/member_access.h"
#include "common/trust/refused_holders.h"
#include "common/trust/signed_push.h"
#include "common/version.h"
#include "worker/availability.h"
#include "worker/backends.h"
#include "worker/core/core.h"
#include "worker/daemon_metrics.h"
#include "worker/identity.h"
#include "worker/island/control/follower.h"
#include "worker/island/control/leader.h"
#include "worker/island/member/member.h"
#include "worker/island/member/transfer_relay.h"
#include "worker/kill_report.h"
#include "worker/profiler/link_measurer.h"
#include "worker/profiler/worker_profiler.h"
#include "worker/state/saved_jobs.h"

namespace atl::worker {
namespace {

constexpr char kCheckpoints[] = "/checkpoints";  // below the state folder
constexpr size_t kEventsMax = 65536;
constexpr Duration kFlush = std::chrono::seconds(2);
constexpr Duration kEndLimit =
    std::chrono::seconds(5);  // of all that goes on when the loop has ended
// The limit of a step that was interrupted because this worker follows no more.
constexpr Duration kFreeTimeout = std::chrono::seconds(10);
constexpr Duration kActivityInterval = std::chrono::minutes(1);
constexpr size_t kActivitiesMax = 64;

absl::StatusOr<std::unique_ptr<TensorClient>> NewTensorClient(const DaemonOptions& options) {
  TensorClientOptions client;
  client.security.allow_plaintext_beyond_loopback = options.tls.insecure;
  ATOLL_ASSIGN_OR_RETURN(client.security.keys, ReadCurveKey(options.curve_key_path));
  return TensorClient::Create(std::move(client));
}

DeviceFlags CompleteDeviceFlags(const DaemonOptions& options) {
  DeviceFlags flags = options;
  if (flags.threads == 0) flags.threads = ReadMachineLimits().cpus;
  flags.joins_others = JoinsOthers(options);
  return flags;
}

void SayMeasuring(const std::string& what, EventLoop<Event>* loop) {
  if (!what.empty()) LogInfo("profiler", what);
  loop->TryPost(Measuring{what});
}

absl::StatusOr<std::unique_ptr<GroupMember>> NewMember(const DaemonOptions& options,
                                                       Incarnation incarnation,
                                                       const std::vector<WorkerDevice>& devices,
                                                       DigestCache* digests,
                                                       EventLoop<Event>* loop) {
  GroupOptions group;
  group.link.name = options.name;
  group.link.incarnation = incarnation;
  group.link.endpoint = options.peer_endpoints[0];
  group.link.more_endpoints = {options.peer_endpoints.begin() + 1, options.peer_endpoints.end()};
  group.link.allow_plaintext_beyond_loopback = options.tls.insecure;
  ATOLL_ASSIGN_OR_RETURN(group.link.keys, ReadCurveKey(options.curve_key_path));
  group.make_devices = [devices] { return NewLocalDevices(devices); };
  group.device_name = devices[0].info.kind;
  group.compute = GetComputeType(devices);
  const HostMemory host = GetHostMemory(devices);
  group.transport_bytes_max = InboxBytes(host);
  group.saves_bytes_max = std::max<int64_t>(1, host.bytes / 4);
  group.saves_folder = options.state_dir + kCheckpoints;
  group.link.window_bytes[static_cast<size_t>(PeerChannel::kCollective)] =
      GetCollectiveWindowBytes(host);
  group.engine.emulation = MakeEmulation(options);
  group.data.digests = digests;
  group.data.watch.progress = [loop](const std::string& what) { SayMeasuring(what, loop); };
  group.check_job = [roots = options.roots](const JobSpec& spec) {
    return CheckJobPaths(spec, roots);
  };
  group.on_transfer_due = [loop] { loop->TryPost(TransferDue{}); };
  auto member = GroupMember::Create(std::move(group));
  if (!member.ok()) return Annotate(member.status(), "--peer-endpoint");
  return member;
}

WorkerProfilerOptions ProfilerOptions(const DaemonOptions& options, const StateFolder& state,
                                      const Identity& identity,
                                      const std::vector<WorkerDevice>& devices,
                                      EventLoop<Event>* loop) {
  WorkerProfilerOptions profiler;
  profiler.worker = options.name;
  profiler.devices = identity.hello.devices;
  profiler.make_backend = [devices](int index) {
    return NewWorkerBackend(devices[static_cast<size_t>(index)]);
  };
  profiler.compute = GetComputeType(devices);
  profiler.software_version = kSoftwareVersion;
  profiler.folder = state.path() + "/profiles";
  profiler.emulation = MakeEmulation(options);
  profiler.measuring = [loop](const std::string& what) { SayMeasuring(what, loop); };
  return profiler;
}

// A thread may wait for a disk that does not answer, and cannot be stopped. The disk's content is
// whole at any time, so the process may end at any time.
void EndAnyway(int exit_code) {
  std::thread([exit_code] {
    std::this_thread::sleep_for(kEndLimit);
    LogWarning("worker", "ends without the threads that still wait for a disk or a device");
    std::_Exit(exit_code);
  }).detach();
}

// The core and what carries out its actions.
class Daemon {
 public:
  Daemon(const DaemonOptions& options, const HostMemory& host, EventLoop<Event>* loop,
         GroupMember* member, TensorClient* tensors, WorkerProfiler* profiler,
         DaemonMetrics* metrics, Identity identity)
      : loop_(loop),
        metrics_(metrics),
        member_(member),
        tensors_(tensors),
        follower_(member,
                  [loop](int64_t plan_number, const std::string& activity) {
                    loop->Post(FollowerState{plan_number, activity});
                  }),
        transfers_(member, tensors,
                   [this, on_devices = !host.has_devices](Event event) {
                     const PullDone* pulled = std::get_if<PullDone>(&event);
                     // It is there when it is as near as it can be brought during steps.
                     if (on_devices && pulled != nullptr) return leader_.Stage(*pulled);
                     loop_->PostAnswer(std::move(event));
                   }),
        leader_(member,
                // Devices are slow by themselves (MakeEmulation).
                {FromSeconds(options.emulate_slowdown * options.emulate_step_ms / 1e3), host.bytes,
                 host.has_devices},
                {[loop](Event event) { loop->PostAnswer(std::move(event)); },
                 [this] { return follower_.AwaitFree(kFreeTimeout); },
                 [folder = options.state_dir + kCheckpoints](const JobId& job) {
                   RemoveSavedJob(folder, job);
                 },
                 [this] { return transfers_.started(); }, [this] { return transfers_.running(); },
                 [profiler](const JobSpec& spec, const JobFacts& facts, bool needs_plan,
                            const std::atomic<bool>& cancelled) {
                   return profiler->ProfilesFor(spec, facts, needs_plan, &cancelled);
                 }}),
        core_(std::move(identity)),
        key_path_(options.tls.key_path),
        measurer_(&member->link(), MeasurerOptions(member, loop)),
        mark_(&RealFiles(), options.state_dir, [](const std::string& trouble) {
          if (trouble.empty()) return LogInfo("attach", "its cluster is remembered again");
          LogWarning("attach",
                     "cannot remember its cluster, and answers no newer coordinator until it can: ",
                     trouble);
        }) {}

  absl::Status Connect(AttachOptions options) {
    const auto on_event = [this, reason = std::string(),
                           served = false](WorkerAttach::Event event) mutable {
      metrics_->NoteConnection(!std::holds_alternative<AttachLost>(event));
      const bool begins = std::holds_alternative<ToWorker>(event) && !served;
      served = std::holds_alternative<ToWorker>(event);
      if (begins) {
        reason.clear();
        LogInfo("attach", "connected to the coordinator");
      }
      if (std::holds_alternative<AttachOpened>(event)) {
        loop_->Post(Connected{});
      } else if (const AttachLost* lost = std::get_if<AttachLost>(&event)) {
        if (reason != lost->reason) {
          LogWarning("attach", "no connection to the coordinator: ", reason = lost->reason);
        }
        loop_->Post(ConnectionLost{lost->reason});
      } else {
        loop_->Post(Received{std::get<ToWorker>(std::move(event))});
      }
    };
    auto attach = WorkerAttach::Open(std::move(options), on_event);
    if (!attach.ok()) return attach.status();
    attach_ = *std::move(attach);
    return absl::OkStatus();
  }

  int Run(const std::function<bool()>& comes_back) {
    const auto turn = [this](Instant now, std::optional<Event> event) {
      metrics_->pulse().Beat();
      if (event && std::holds_alternative<Connected>(*event)) {
        signing_key_.clear();
        (void)ReadSigningKey();  // a push tries again, and says why
      }
      Actions actions = core_.Step(now, event ? *event : Event(Tick{}));
      if (const StepDone* step = event ? std::get_if<StepDone>(&*event) : nullptr) {
        metrics_->NoteStep(step->seconds);
        LogDebug("island", "step ", core_.inner_step(), " took ", 1e3 * step->seconds, " ms, loss ",
                 step->loss);
      }
      for (Action& action : actions.list) {
        // The mark of its coordinator is stored before messages are sent. All messages may be lost:
        // they are sent again.
        if (const auto* remember = std::get_if<RememberCluster>(&action)) {
          mark_.Remember(remember->mark);
        } else if (!std::holds_alternative<Send>(action) || mark_.Fences(now)) {
          Do(action);
        }
      }
      PullIfFree();
      if (core_.activity() != activity_) LogActivity(now);
      return std::min(actions.deadline, mark_.next_try());
    };
    RunService(loop_, turn, comes_back);
    EndAnyway(exit_code_);
    attach_->Close(kFlush);
    transfers_.CancelAll();
    leader_.Interrupt("the worker ends");
    return exit_code_;
  }

 private:
  static LinkMeasurerOptions MeasurerOptions(GroupMember* member, EventLoop<Event>* loop) {
    LinkMeasurerOptions options;
    options.meet = [member](const PeerFence& fence, const std::vector<IslandMember>& members) {
      return member->MeetToMeasure(fence, members);
    };
    options.measuring = [loop](const std::string& what) { SayMeasuring(what, loop); };
    options.post = [loop](LinksMeasured answer) {
      if (answer.probe) {
        loop->PostAnswer(std::move(answer));
        return;
      }
      std::string missing = answer.trouble;
      for (const auto* failures : {&answer.unreachable, &answer.unmeasured}) {
        for (const LinkFailure& failure : *failures) {
          absl::StrAppend(&missing, missing.empty() ? "" : "; ", "to ", failure.to, ": ",
                          failure.reason);
        }
      }
      LogInfo("profiler", answer.links.size(), " links measured", missing.empty() ? "" : "; not ",
              missing);
      loop->PostAnswer(std::move(answer));
    };
    return options;
  }

  // Each round has the same activities: once a minute is enough of each.
  void LogActivity(Instant now) {
    activity_ = core_.activity();
    std::string kind = activity_;
    std::erase_if(kind, [](char c) { return absl::ascii_isdigit(c); });
    if (activity_logged_.size() > kActivitiesMax) activity_logged_.clear();
    const auto [logged, is_new] = activity_logged_.try_emplace(kind, now);
    if (!is_new && now - logged->second < kActivityInterval) return LogDebug("worker", activity_);
    logged->second = now;
    LogInfo("worker", activity_);
  }

  // The key of the stream's beginning: the coordinator has its certificate, whatever has replaced
  // the file since.
  absl::Status ReadSigningKey() {
    if (!signing_key_.empty() || key_path_.empty()) return absl::OkStatus();
    ATOLL_ASSIGN_OR_RETURN(signing_key_, ReadPemFile(key_path_));
    return absl::OkStatus();
  }

  // False: it cannot be signed, and is not sent. The core repeats it.
  bool Sign(PushRequest* push) {
    absl::Status status = ReadSigningKey();
    if (status.ok()) status = SignPush(signing_key_, push);
    if (!status.ok()) LogError("worker", key_path_, ": ", status.message());
    return status.ok();
  }

  void Do(Action& action) {
    if (Send* send = std::get_if<Send>(&action)) {
      if (const WorkerLog* log = std::get_if<WorkerLog>(&send->message)) {
        LogInfo("job", log->job, ": ", log->text);
      }
      if (auto* heartbeat = std::get_if<WorkerHeartbeat>(&send->message)) {
        metrics_->NoteHeartbeat(*heartbeat, core_.paused(), leader_.queued());
        metrics_->NoteEdges(member_->EdgeBytesSent());
        // Measurements pass the core by: it decides nothing on them.
        heartbeat->devices = member_->Work();
        heartbeat->unreachable = member_->ListUnreachable();
        heartbeat->all_reduce_times = member_->GetAllReduceTimes();
        heartbeat->round_trips = member_->RoundTrips();
        heartbeat->utilisation = member_->GetUtilisation();
        for (const auto& [endpoint, rate] : tensors_->pull_rates()) {
          heartbeat->pull_rates.push_back({endpoint, rate});
        }
        heartbeat->unreached = member_->link().ListUnreached();
        for (std::string& address : tensors_->ListUnreached()) {
          heartbeat->unreached.push_back(std::move(address));
        }
      }
      auto* const push = std::get_if<PushRequest>(&send->message);
      if (push != nullptr && push->signature && !Sign(push)) return;
      attach_->Send(std::move(send->message));
    } else if (const StartPull* pull = std::get_if<StartPull>(&action)) {
      next_pull_ = *pull;
    } else if (const PushShards* push = std::get_if<PushShards>(&action)) {
      transfers_.Push(*push);
    } else if (std::holds_alternative<CancelTransfers>(action)) {
      next_pull_.reset();
      transfers_.CancelAll();
      leader_.CancelStaging();
    } else if (MeasureLinks* request = std::get_if<MeasureLinks>(&action)) {
      measurer_.Measure(std::move(*request));
    } else if (const TraceNextStep* request = std::get_if<TraceNextStep>(&action)) {
      LogInfo("trace", request->job, ": a step is recorded, for request ", request->request);
      leader_.Trace(*request);
    } else if (const InterruptStep* interrupt = std::get_if<InterruptStep>(&action)) {
      leader_.Interrupt(interrupt->reason);
    } else if (const Follow* follow = std::get_if<Follow>(&action)) {
      const MemberOrder& order = follow->order;
      follower_.Follow({order.job, order.generation, order.plan.number}, order.plan,
                       order.at_step_end);
    } else if (const Unfollow* unfollow = std::get_if<Unfollow>(&action)) {
      follower_.Unfollow(unfollow->reason);
    } else if (const UseRelays* use = std::get_if<UseRelays>(&action)) {
      member_->link().AcceptThrough(ListStandbyWays(use->relays));
    } else if (const Note* note = std::get_if<Note>(&action)) {
      LogWarning("attach", note->text);
    } else if (const Stop* stop = std::get_if<Stop>(&action)) {
      LogInfo("worker", "ends: ", stop->reason);
      exit_code_ = stop->exit_code;
      loop_->Stop();
    } else {
      leader_.Enqueue(std::move(action));
    }
  }

  // A layer of an earlier pull may still be on its way to a device, for seconds on a slow link; its
  // end causes a Tick.
  void PullIfFree() {
    if (!next_pull_ || leader_.staging()) return;
    transfers_.Pull(*std::exchange(next_pull_, std::nullopt));
  }

  EventLoop<Event>* const loop_;
  DaemonMetrics* const metrics_;
  GroupMember* const member_;
  TensorClient* const tensors_;
  Follower follower_;
  TransferRelay transfers_;
  IslandLeader leader_;
  WorkerCore core_;
  const std::string key_path_;  // empty: it has no certificate
  std::string signing_key_;     // secret; empty: not read yet
  LinkMeasurer measurer_;
  MarkWriter mark_;
  std::unique_ptr<WorkerAttach> attach_;
  std::optional<StartPull> next_pull_;
  std::string activity_;
  std::map<std::string, Instant> activity_logged_;  // by activity without its numbers
  int exit_code_ = 0;
};

// And says what an earlier worker of this folder was ended for.
absl::StatusOr<std::unique_ptr<StateFolder>> OpenStateFolder(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(auto state, StateFolder::Open(path));
  const auto kills = ReadMemoryKills();
  if (!kills.has_value()) return state;
  const auto report = ReportMemoryKills(RealFiles(), path, *kills, ReadMachineLimits());
  if (!report.ok()) {
    LogWarning("worker", "ends for want of memory are not counted: ", report.status().message());
  } else if (!report->empty()) {
    LogWarning("worker", *report);
  }
  return state;
}

// Tries whether they work; each job gets backends of its own.
absl::Status TryBackends(const std::vector<WorkerDevice>& devices) {
  for (const WorkerDevice& device : devices) {
    ATOLL_RETURN_IF_ERROR(NewWorkerBackend(device).status());
  }
  return absl::OkStatus();
}

// Until the result ends.
auto SayWhatStoresWaitFor(EventLoop<Event>* loop) {
  WatchWaits([loop](const std::string& what) {
    if (!what.empty()) LogInfo("data", what);
    loop->TryPost(Measuring{what});
  });
  return absl::MakeCleanup([] { WatchWaits(nullptr); });
}

// Null: no member can wait here.
absl::StatusOr<std::unique_ptr<Relay>> OpenRelay(const DaemonOptions& options, WorkerHello* hello,
                                                 TensorClient* tensors, GroupMember* member) {
  const std::string& link = options.peer_endpoints[0];
  ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<Relay> relay, Relay::Open(options.relay, link, link));
  if (relay == nullptr) return relay;
  hello->relay_address = relay->address();
  hello->relay_secret = relay->secret();
  hello->relay_own = relay->own();
  tensors->UseOwnRelay(relay->near(), relay->secret());
  member->link().UseOwnRelay(relay->near(), relay->secret());
  return relay;
}

// `comes_back`: the process is to start again.
absl::StatusOr<int> RunOnce(DaemonOptions options, bool* comes_back) {
  ATOLL_RETURN_IF_ERROR(CheckOptions(SetDefaults(&options)));
  ATOLL_RETURN_IF_ERROR(BeginWork(options));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<WorkerDevice> devices,
                         FindWorkerDevices(CompleteDeviceFlags(options)));
  ConfineRedirects(
      [roots = options.roots](const std::string& url) { return MayReadUrl(url, roots); });
  const IdentityFolder own(options.state_dir + "/identity");
  ATOLL_RETURN_IF_ERROR(
      EnterCluster({Role::kWorker, options.name}, own, options.join,
                   {&options.coordinator, &options.tls, &options.curve_key_path}));
  options.roots.never = ListOwnFiles(options);
  const auto renewer = StartRenewer(own, options.tls, options.coordinator);
  WarnIfUnreachable(options);
  EventLoop<Event> loop(kEventsMax);
  const auto unwatched = SayWhatStoresWaitFor(&loop);
  EndSignals signals;
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<StateFolder> state,
                         OpenStateFolder(options.state_dir));
  ATOLL_ASSIGN_OR_RETURN(const Incarnation incarnation, state->NextIncarnation());
  std::atomic<bool> signalled = false, hours_ended = false;
  signals.Watch([&](const char* name) {
    signalled = true;
    loop.TryPost(ShutdownRequested{name});
  });
  ATOLL_RETURN_IF_ERROR(TryBackends(devices));
  DigestCache digests(RealFiles(), state->path() + "/data-digests");
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<GroupMember> member,
                         NewMember(options, incarnation, devices, &digests, &loop));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<TensorClient> tensors, NewTensorClient(options));

  ATOLL_ASSIGN_OR_RETURN(Identity identity, MakeIdentity(options, incarnation, devices, *member,
                                                         *state, options.state_dir + kCheckpoints));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Relay> relay,
                         OpenRelay(options, &identity.hello, tensors.get(), member.get()));
  AttachOptions attach{.coordinator = options.coordinator,
                       .tls = options.tls,
                       .name = options.name,
                       .incarnation = incarnation};
  WorkerProfiler profiler(RealFiles(), ProfilerOptions(options, *state, identity, devices, &loop));
  if (options.profile_again) profiler.Forget();
  DaemonMetrics metrics(state->path(), devices.size());
  RefusedHolders refused;
  attach.on_keys = [&refused](const v1::ClientKeys& keys) { refused.Set(keys.refused()); };
  Monitored monitored =
      metrics.ForServer([&loop] { loop.TryPost(Tick{}); },
                        [&loop](MetricsWriter& writer) {
                          writer.Add(kEventQueue, static_cast<double>(loop.queued()));
                        });
  monitored.admits = [&refused](const std::string& shown) { return refused.Check(shown); };
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> monitor,
                         ServeMetrics(options.metrics_listen, options.tls, monitored));
  Daemon daemon(options, GetHostMemory(devices), &loop, member.get(), tensors.get(), &profiler,
                &metrics, std::move(identity));
  ATOLL_RETURN_IF_ERROR(daemon.Connect(std::move(attach)));
  const auto end = [&loop](ShutdownRequested why) { loop.TryPost(std::move(why)); };
  const std::unique_ptr<NoticeWatcher> notices = WatchForNotice(options, end);
  const std::unique_ptr<NoticeWatcher> hours = WatchHours(options, end, &hours_ended);
  const int code = daemon.Run([&] { return hours_ended && !signalled; });
  *comes_back = code == 0 && hours_ended && !signalled;
  return code;
}

}  // namespace

absl::StatusOr<int> RunDaemon(DaemonOptions options, char** arguments) {
  bool comes_back = false;
  const absl::StatusOr<int> code = RunOnce(std::move(options), &comes_back);
  return comes_back ? StartAgain(arguments) : code;
}

}  // namespace atl::worker
