#include "coordinator/client_service.h"

#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/machine/room.h"
#include "common/net/control/grpc_status.h"
#include "common/protocol/trace_limit.h"
#include "common/protocol/wire.h"
#include "common/status.h"
#include "common/version.h"
#include "common/wall_clock.h"
#include "coordinator/change_settings.h"
#include "coordinator/measurements/live_profile.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/planning/predicted_step.h"
#include "coordinator/preview.h"
#include "coordinator/shared_view.h"
#include "coordinator/trust/authorizer.h"
#include "coordinator/watchers.h"
#include "coordinator/wire.h"
#include "proto/coordinator.grpc.pb.h"

namespace atl {
namespace {

constexpr int64_t kJobBytes = int64_t{16} << 20;  // what must be left for one more
constexpr int64_t kLogLinesAtOnce = 1000;
constexpr Duration kLogPageInterval = std::chrono::milliseconds(20);
constexpr int kTraceDefaultMs = 30'000;
constexpr int kTraceLongestMs = 300'000;
constexpr int kPreviewDefaultMs = 60'000;
// The limit of a preview, as long as islands wait for theirs: the best plan by then is taken.
constexpr Duration kPreviewLimit = std::chrono::seconds(20);
constexpr Duration kLogInterval = std::chrono::milliseconds(200);
constexpr int kHistoryPoints = 1000;
constexpr int kHistoryPointsMax = static_cast<int>(kRoundCurvePoints);
constexpr int kHistoryIslands = 64;

absl::Status NoSuchJob(const JobId& job) {
  return absl::NotFoundError(absl::StrCat("there is no job ", job, ": see atoll ls"));
}

Duration Interval(int32_t requested_ms, int32_t default_ms) {
  return std::chrono::milliseconds(requested_ms <= 0 ? default_ms
                                                     : std::clamp(requested_ms, 100, 60'000));
}

// In the order of Severity, whose first is kDebug.
constexpr const char* kSeverities[] = {"debug", "info", "warning", "error"};
constexpr int kFirstSeverity = static_cast<int>(Severity::kDebug);

LogQuery ToQuery(const v1::LogsRequest& request) {
  LogQuery query{request.job(), request.after_sequence(), request.since_unix_ms()};
  for (int s = 0; s < std::ssize(kSeverities); ++s) {
    if (request.severity() != kSeverities[s]) continue;
    query.severity = static_cast<Severity>(kFirstSeverity + s);
  }
  query.contains = request.contains();
  return query;
}

// Adds what the wall clock says of a job.
void AddTimes(const CoordinatorLoop& loop, JobSummary& view) {
  const JobHistory* history = loop.observations().history().Find(view.job);
  if (history == nullptr) return;
  view.submitted_unix_ms = history->submitted_ms();
  view.started_unix_ms = history->started_ms();
  view.ended_unix_ms = history->ended_ms();
  view.final_loss = history->newest_loss();
  if (view.started_unix_ms == 0) return;
  const int64_t now_ms = UnixTimeMs();
  const int64_t end_ms = view.ended_unix_ms != 0 ? view.ended_unix_ms : now_ms;
  view.paused_ms = history->PausedMs(now_ms);
  const int64_t ran_ms = end_ms - view.started_unix_ms - view.paused_ms;
  if (ran_ms > 0) {
    view.mean_tokens_per_s =
        1e3 * static_cast<double>(view.tokens_committed) / static_cast<double>(ran_ms);
  }
}

// Fills `wire` if there is such a job.
void EncodeSummary(const CoordinatorLoop& loop, const JobId& job, v1::JobSummary* wire) {
  std::optional<JobSummary> view = loop.core().Summary(job);
  if (!view) return;
  AddTimes(loop, *view);
  EncodeView(*view, wire);
}

void EncodeJob(Instant now, const CoordinatorLoop& loop, JobView view, v1::Job* wire) {
  AddTimes(loop, view.summary);
  const JobHistory* history = loop.observations().history().Find(view.summary.job);
  for (IslandView& island : view.islands) {
    const ProgressWatch::Standing standing = loop.observations().progress().Of(now, view, island);
    island.since_step_s = standing.since_step_s;
    island.stalled = standing.stalled;
    if (history == nullptr) continue;
    // This remains to be shown of it when its job has ended.
    const JobHistory::Pushed pushed = history->PushedBy(island.island);
    island.pushed_steps = pushed.steps;
    island.pushed_loss = pushed.loss;
  }
  EncodeView(view, wire);
}

// A unary call; ends exactly once, with UNAVAILABLE if its task is dropped unrun.
class Call {
 public:
  explicit Call(grpc::CallbackServerContext* context) : reactor_(context->DefaultReactor()) {}
  ~Call() { End(absl::UnavailableError("the coordinator is ending or has too much to do")); }
  void End(const absl::Status& status) {
    if (!ended_) reactor_->Finish(ToGrpc(status));
    ended_ = true;
  }
  grpc::ServerUnaryReactor* reactor() { return reactor_; }

 private:
  grpc::ServerUnaryReactor* const reactor_;
  bool ended_ = false;
};

// Runs `answer(now)`, which returns the call's status, on the loop's thread.
template <class Answer>
grpc::ServerUnaryReactor* OnLoop(CoordinatorLoop* loop, grpc::CallbackServerContext* context,
                                 Answer answer) {
  auto call = std::make_shared<Call>(context);
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  loop->Post([call = std::move(call), answer = std::move(answer)](Instant now) {
    call->End(answer(now));
  });
  return reactor;
}

// Returns the core's reply to the request that `make(id)` makes. Loop's thread only.
template <class Make>
absl::Status Requested(CoordinatorLoop* loop, Instant now, Make make) {
  absl::Status status = absl::UnavailableError("the coordinator cannot store this");
  loop->Request(now, make, [&](const Reply& reply) { status = reply.status; });
  return status;
}

// Draws a number at random, so that ids never repeat, whatever store a coordinator has.
int64_t RandomJobNumber() {
  std::random_device device;
  return std::uniform_int_distribution<int64_t>(100'000, 999'999)(device);
}

// The caller's specification with all defaults, if it is good.
absl::StatusOr<JobSpec> GoodSpec(const v1::SubmitRequest& request) {
  v1::JobSpec wire = request.spec();
  ATOLL_ASSIGN_OR_RETURN(JobSpec spec, Decode(&wire));
  ATOLL_RETURN_IF_ERROR(Validate(spec));
  if (!spec.layout.plan.empty()) {
    ATOLL_ASSIGN_OR_RETURN(spec.layout.plan, PinnedJson(spec.layout.plan, "layout.plan"));
  }
  return spec;
}

// The views that are sent to all streams that watch a job, or the cluster.
struct Feed {
  SharedView view;
  absl::Status missing;  // why there is nothing to view
  bool last = false;     // the view will not change any more
};

// The state of one stream.
struct Seen {
  std::shared_ptr<Feed> feed;
  int64_t number = 0;  // of the view that was sent last
};

void SendNew(Seen* seen, WatchStream<grpc::ByteBuffer>* stream) {
  const Feed& feed = *seen->feed;
  if (!feed.missing.ok()) return stream->End(ToGrpc(feed.missing));
  if (feed.view.number() != seen->number) {
    seen->number = feed.view.number();
    stream->Send(feed.view.bytes(), 1);
  }
  if (feed.last) stream->End(grpc::Status::OK);
}

template <class Request>
bool Parse(grpc::ByteBuffer bytes, Request* request) {
  return grpc::SerializationTraits<Request>::Deserialize(&bytes, request).ok();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RefuseToWatch() {
  const auto stream = WatchStream<grpc::ByteBuffer>::Begin();
  WatchStream<grpc::ByteBuffer>* const reactor = stream.get();
  stream->End(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the request cannot be read"));
  return reactor;
}

}  // namespace

class ClientService::Impl {
 public:
  Impl(CoordinatorLoop* loop, AccessControl* access)
      : loop_(loop), access_(access), started_(SteadyNow()), jobs_(this), status_(this) {
    loop->between_tasks = [this](Instant now, bool) { return watchers_.Turn(now); };
  }

  std::vector<grpc::Service*> services() { return {&jobs_, &status_}; }

 private:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  class Jobs : public v1::Jobs::WithRawCallbackMethod_Watch<v1::Jobs::CallbackService> {
   public:
    explicit Jobs(Impl* impl) : impl_(impl) {}

    Unary* Validate(Context* context, const v1::SubmitRequest* request,
                    v1::ValidateReply* reply) override {
      return OnLoop(impl_->loop_, context, [=](Instant) -> absl::Status {
        ATOLL_ASSIGN_OR_RETURN(const JobSpec spec, GoodSpec(*request));
        return Encode(spec, reply->mutable_spec());
      });
    }

    Unary* Submit(Context* context, const v1::SubmitRequest* request,
                  v1::SubmitReply* reply) override {
      const auto submit = [=, loop = impl_->loop_](Instant now) -> absl::Status {
        ATOLL_ASSIGN_OR_RETURN(const JobSpec spec, GoodSpec(*request));
        ATOLL_RETURN_IF_ERROR(CheckRoomLeft(kJobBytes));
        absl::Status status = absl::UnavailableError("the coordinator cannot store the job");
        loop->Request(
            now,
            [&](int64_t id) {
              return SubmitJob{id, spec, RandomJobNumber()};
            },
            [&](const Reply& r) {
              status = r.status;
              reply->set_job(r.job);
            });
        return status;
      };
      return impl_->Audited(context, "Jobs/Submit", submit, [=] {
        const std::string& from = request->spec().model().initial_job();
        return absl::StrCat(reply->job().empty() ? request->spec().name() : reply->job(),
                            from.empty() ? "" : absl::StrCat(" from ", from));
      });
    }

    Unary* List(Context* context, const v1::ListRequest* request, v1::ListReply* reply) override {
      return OnLoop(impl_->loop_, context, [=, loop = impl_->loop_](Instant) {
        CoordinatorCore::JobPage page = loop->core().Jobs(request->before());
        for (JobSummary& job : page.jobs) {
          AddTimes(*loop, job);
          EncodeView(job, reply->add_jobs());
        }
        reply->set_before(page.before);
        if (request->before() != 0) return absl::OkStatus();
        for (const OrphanView& job : loop->core().Orphans()) EncodeView(job, reply->add_orphans());
        return absl::OkStatus();
      });
    }

    Unary* Get(Context* context, const v1::JobRequest* request, v1::Job* reply) override {
      return OnLoop(impl_->loop_, context, [=, loop = impl_->loop_](Instant now) {
        auto view = loop->core().Job(now, request->job());
        if (!view) return NoSuchJob(request->job());
        EncodeJob(now, *loop, *std::move(view), reply);
        return absl::OkStatus();
      });
    }

    Unary* History(Context* context, const v1::HistoryRequest* request,
                   v1::JobHistory* reply) override {
      return OnLoop(impl_->loop_, context, [=, loop = impl_->loop_](Instant) {
        if (!loop->core().FindState(request->job())) return NoSuchJob(request->job());
        reply->set_job(request->job());
        const auto points = static_cast<size_t>(
            request->points() == 0 ? kHistoryPoints
                                   : std::clamp(request->points(), 16, kHistoryPointsMax));
        const auto islands =
            static_cast<size_t>(request->islands() <= 0 ? kHistoryIslands : request->islands());
        if (const JobHistory* found = loop->observations().history().Find(request->job())) {
          found->Encode(points, islands, reply);
        }
        return absl::OkStatus();
      });
    }

    Unary* Pause(Context* c, const v1::JobRequest* request, v1::JobSummary* reply) override {
      return Control(c, request, reply, JobCommand::kPause, "Jobs/Pause");
    }
    Unary* Change(Context* context, const v1::ChangeRequest* request,
                  v1::ChangeReply* reply) override {
      const auto change = [=, loop = impl_->loop_](Instant now) -> absl::Status {
        const std::optional<JobView> job = loop->core().Job(now, request->job());
        if (!job) return NoSuchJob(request->job());
        ATOLL_ASSIGN_OR_RETURN(
            const ChangedSpec changed,
            ApplySettings(job->spec, {request->settings().begin(), request->settings().end()}));
        ATOLL_RETURN_IF_ERROR(Requested(loop, now, [&](int64_t id) {
          return ChangeSettings{id, request->job(), changed.spec, ChangesText(changed.changes)};
        }));
        reply->mutable_changes()->Assign(changed.changes.begin(), changed.changes.end());
        return absl::OkStatus();
      };
      return impl_->Audited(context, "Jobs/Change", change, [=] { return request->job(); });
    }
    Unary* Resume(Context* c, const v1::JobRequest* request, v1::JobSummary* reply) override {
      return Control(c, request, reply, JobCommand::kResume, "Jobs/Resume");
    }
    Unary* Adopt(Context* c, const v1::JobRequest* request, v1::JobSummary* reply) override {
      return Control(c, request, reply, JobCommand::kAdopt, "Jobs/Adopt");
    }
    Unary* Refill(Context* context, const v1::RefillRequest* request,
                  v1::JobSummary* reply) override {
      const auto refill = [=, loop = impl_->loop_](Instant now) {
        const absl::Status status = Requested(loop, now, [&](int64_t id) {
          return ControlJob{id, request->job(), JobCommand::kRefill, false, request->server()};
        });
        EncodeSummary(*loop, request->job(), reply);
        return status;
      };
      return impl_->Audited(context, "Jobs/Refill", refill, [=] { return request->job(); });
    }
    Unary* NoteExport(Context* context, const v1::NoteExportRequest* request,
                      v1::JobSummary* reply) override {
      const auto note = [=, loop = impl_->loop_](Instant now) {
        const absl::Status status = Requested(loop, now, [&](int64_t id) {
          return ControlJob{id, request->job(),    JobCommand::kNoteExport, false,
                            {}, request->version()};
        });
        EncodeSummary(*loop, request->job(), reply);
        return status;
      };
      return impl_->Audited(context, "Jobs/NoteExport", note, [=] { return request->job(); });
    }
    Unary* Drain(Context* context, const v1::DrainRequest* request,
                 v1::DrainReply* reply) override {
      const auto drain = [=, loop = impl_->loop_](Instant now) {
        const absl::Status status = Requested(loop, now, [&](int64_t id) {
          return DrainMember{id, request->server(), !request->undo()};
        });
        for (const MemberView& member : loop->core().Members(now)) {
          if (request->server() == member.name ||
              request->server() == absl::StrCat(member.kind, "/", member.name)) {
            reply->set_state(member.draining);
            reply->set_drained(member.drained);
          }
        }
        return status;
      };
      return impl_->Audited(context, "Jobs/Drain", drain, [=] { return request->server(); });
    }
    Unary* Cancel(Context* c, const v1::JobRequest* request, v1::JobSummary* reply) override {
      return Control(c, request, reply, JobCommand::kCancel, "Jobs/Cancel");
    }
    Unary* Remove(Context* context, const v1::RemoveRequest* request,
                  v1::JobSummary* reply) override {
      const auto remove = [=, loop = impl_->loop_](Instant now) {
        reply->set_job(request->job());               // also of an orphaned one
        EncodeSummary(*loop, request->job(), reply);  // it is hidden afterwards
        return Requested(loop, now, [&](int64_t id) {
          return ControlJob{id, request->job(), JobCommand::kRemove, request->force()};
        });
      };
      return impl_->Audited(context, "Jobs/Remove", remove, [=] { return request->job(); });
    }

    Unary* Trace(Context* context, const v1::TraceRequest* request,
                 v1::TraceReply* reply) override {
      auto call = std::make_shared<Call>(context);
      Unary* const reactor = call->reactor();
      impl_->loop_->Post([=, impl = impl_, call = std::move(call)](Instant now) {
        std::optional<IslandId> island;
        if (request->has_island()) island = request->island();
        const int64_t limit_ms = request->timeout_ms() == 0
                                     ? kTraceDefaultMs
                                     : std::clamp(request->timeout_ms(), 1000, kTraceLongestMs);
        impl->loop_->traces().Query(now, request->job(), island,
                                    std::chrono::milliseconds(limit_ms),
                                    [=](absl::StatusOr<TracedStep> step) {
                                      if (step.ok()) impl->FillTrace(*std::move(step), reply);
                                      call->End(step.status());
                                    });
      });
      return reactor;
    }

    Unary* Preview(Context* context, const v1::PreviewRequest* request,
                   v1::PreviewReply* reply) override {
      auto call = std::make_shared<Call>(context);
      Unary* const reactor = call->reactor();
      impl_->loop_->Post([=, impl = impl_, call = std::move(call)](Instant now) {
        // The core decides whether the plan in force would be kept, so this ends on its thread.
        const auto on_done = [=, loop = impl->loop_](absl::StatusOr<atl::Preview> preview) {
          loop->Post([=, preview = std::move(preview)](Instant) {
            if (preview.ok()) FillPreview(*loop, *preview, reply);
            call->End(preview.status());
          });
        };
        const absl::Status requested = impl->RequestPreview(now, *request, on_done);
        if (!requested.ok()) call->End(requested);
      });
      return reactor;
    }

    grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(Context* context,
                                                      const grpc::ByteBuffer* bytes) override {
      v1::WatchRequest request;
      if (!Parse(*bytes, &request)) return RefuseToWatch();
      auto seen = std::make_shared<Seen>();
      return impl_->Watch<grpc::ByteBuffer>(
          context, Interval(request.interval_ms(), 500),
          [seen, job = request.job(), impl = impl_](Instant now, auto& stream) {
            if (seen->feed == nullptr) seen->feed = impl->FindOrAddFeed(job);
            impl->RefreshJob(now, job, seen->feed.get());
            SendNew(seen.get(), &stream);
          });
    }

    grpc::ServerWriteReactor<v1::LogLine>* Logs(Context* context,
                                                const v1::LogsRequest* request) override {
      struct Reading {
        LogQuery query;
        int64_t tail = 0;  // to be found yet
        Instant idle_until{};
      };
      auto reading = std::make_shared<Reading>(Reading{ToQuery(*request), request->tail()});
      return impl_->Watch<v1::LogLine>(
          context, kLogPageInterval,
          [reading, follow = request->follow(), loop = impl_->loop_](Instant now, auto& stream) {
            if (now < reading->idle_until) return;
            LogQuery& query = reading->query;
            const std::optional<JobState> state = loop->core().FindState(query.job);
            if (!query.job.empty() && !state) return stream.End(ToGrpc(NoSuchJob(query.job)));
            if (reading->tail > 0) {
              const auto after = loop->store().FindLogTail(query, reading->tail);
              if (!after.ok()) return stream.End(ToGrpc(after.status()));
              query.after_sequence = *after;
              reading->tail = 0;
            }
            const auto lines = loop->store().ReadLog(query, kLogLinesAtOnce);
            if (!lines.ok()) return stream.End(ToGrpc(lines.status()));
            for (const LogEntry& line : *lines) {
              query.after_sequence = line.event.sequence;
              stream.Send(LogLine(line), 2 * kLogLinesAtOnce);
            }
            // The next page follows at once, until all that is kept has been sent.
            if (lines->size() == kLogLinesAtOnce) return;
            reading->idle_until = now + kLogInterval;
            if (!follow || (state && HasEnded(*state))) stream.End(grpc::Status::OK);
          });
    }

   private:
    static v1::LogLine LogLine(const LogEntry& line) {
      v1::LogLine message;
      message.set_sequence(line.event.sequence);
      message.set_unix_ms(line.unix_time_ms);
      message.set_job(line.event.job);
      message.set_severity(kSeverities[static_cast<int>(line.event.severity) - kFirstSeverity]);
      message.set_text(line.event.text);
      return message;
    }

    Unary* Control(Context* context, const v1::JobRequest* request, v1::JobSummary* reply,
                   JobCommand command, const std::string& call) {
      const auto control = [=, loop = impl_->loop_](Instant now) {
        const absl::Status status = Requested(loop, now, [&](int64_t id) {
          return ControlJob{id, request->job(), command};
        });
        EncodeSummary(*loop, request->job(), reply);
        return status;
      };
      return impl_->Audited(context, call, control, [=] { return request->job(); });
    }

    Impl* const impl_;
  };

  class Status : public v1::Status::WithRawCallbackMethod_Watch<v1::Status::CallbackService> {
   public:
    explicit Status(Impl* impl) : impl_(impl) {}

    Unary* Get(Context* context, const v1::StatusRequest*, v1::ClusterStatus* reply) override {
      return OnLoop(impl_->loop_, context, [=, impl = impl_](Instant now) {
        impl->Cluster(now, reply);
        return absl::OkStatus();
      });
    }

    Unary* Profile(Context* context, const v1::ProfileRequest* request,
                   v1::ClusterProfile* reply) override {
      return OnLoop(impl_->loop_, context,
                    [=, impl = impl_](Instant now) { return impl->Profile(now, *request, reply); });
    }

    grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(Context* context,
                                                      const grpc::ByteBuffer* bytes) override {
      v1::StatusRequest request;
      if (!Parse(*bytes, &request)) return RefuseToWatch();
      auto seen = std::make_shared<Seen>();
      seen->feed = impl_->cluster_feed_;
      return impl_->Watch<grpc::ByteBuffer>(context, Interval(request.interval_ms(), 1000),
                                            [seen, impl = impl_](Instant now, auto& stream) {
                                              impl->RefreshCluster(now, seen->feed.get());
                                              SendNew(seen.get(), &stream);
                                            });
    }

   private:
    Impl* const impl_;
  };

  // One simulation of a step: milliseconds for hundreds of devices.
  absl::StatusOr<StepTrace> Predict(const TracedStep& step) {
    const IslandPlan plan = loop_->core().Plan(step.job.summary.job, step.island);
    if (step.measured.plan_number == 0) {
      return absl::NotFoundError("the island has no plan: its worker trains as it sees fit");
    }
    if (plan.number != step.measured.plan_number) {
      return absl::NotFoundError(absl::StrCat("plan ", step.measured.plan_number,
                                              " was replaced while its step was traced"));
    }
    std::optional<PlanRequest> request =
        loop_->planner().MadeFrom(step.job.summary.job, step.island, plan);
    const bool again = !request;
    if (again) {
      request =
          RequestFor(step.job, plan, loop_->core().Members(SteadyNow()), loop_->measurements());
    }
    ATOLL_ASSIGN_OR_RETURN(StepTrace trace, PredictStep(*request, plan));
    LimitEntries(kTraceEntriesMax, &trace);
    if (again) absl::StrAppend(&trace.about, "; as known now, not when the plan was made");
    return trace;
  }

  absl::Status RequestPreview(Instant now, const v1::PreviewRequest& request, OnPreview on_done) {
    const int requested_ms = request.timeout_ms() == 0 ? kPreviewDefaultMs : request.timeout_ms();
    const Duration limit = std::min<Duration>(
        kPreviewLimit, std::chrono::milliseconds(std::clamp(requested_ms, 1000, kTraceLongestMs)));
    if (!request.has_spec()) {
      const std::optional<JobState> state = loop_->core().FindState(request.job());
      if (!state) return NoSuchJob(request.job());
      const std::vector<MakePlan> queries = loop_->core().PlanRequests(request.job());
      if (queries.empty()) {
        return absl::FailedPreconditionError(absl::StrCat(
            request.job(), " is ", Name(*state),
            ": none of its islands is of several devices, which alone have plans; see atoll show"));
      }
      QueryPreview(now, loop_->planner(), queries, limit, std::move(on_done));
      return absl::OkStatus();
    }
    GroupWorkers query;
    v1::SubmitRequest submitted;
    *submitted.mutable_spec() = request.spec();
    ATOLL_ASSIGN_OR_RETURN(query.spec, GoodSpec(submitted));
    v1::JobDefinition wire;
    *wire.mutable_spec() = request.spec();
    *wire.mutable_facts() = request.facts();
    ATOLL_ASSIGN_OR_RETURN(JobDefinition definition, Decode(&wire));
    query.facts = std::move(definition.facts);
    query.members = loop_->core().IdleWorkers(query.spec.layout);
    if (query.members.empty()) {
      const bool leaves_out =
          !query.spec.layout.exclude.empty() || !query.spec.layout.sites.empty();
      return absl::FailedPreconditionError(
          absl::StrCat("no idle worker is attached",
                       leaves_out ? " that layout.exclude and layout.sites do not leave out" : "",
                       ": a job that is submitted now would wait for one (atoll status)"));
    }
    QueryPreview(now, loop_->planner(), query, limit, std::move(on_done));
    return absl::OkStatus();
  }

  static void FillPreview(const CoordinatorLoop& loop, const atl::Preview& preview,
                          v1::PreviewReply* reply) {
    reply->set_job(preview.job);
    reply->set_grouping(preview.grouping);
    for (const PreviewedPlan& plan : preview.plans) {
      v1::PreviewedIsland* island = reply->add_islands();
      const PlanMade& made = plan.made;
      island->set_island(made.island);
      if (made.plan.ok()) {
        EncodePlan(*made.plan, island->mutable_plan());
        island->set_kept(loop.core().WhyPlanIsKept(made));
      } else {
        island->set_trouble(std::string(made.plan.status().message()));
      }
      island->set_current_number(plan.current_number);
      island->set_current_step_ns(made.current_step_ns);
      for (const auto& [worker, why] : made.left_out) {
        island->add_left_out(absl::StrCat(worker, ": ", why));
      }
      for (const std::string& device : plan.idle_devices) island->add_idle_devices(device);
    }
  }

  void FillTrace(TracedStep step, v1::TraceReply* reply) {
    reply->set_job(step.job.summary.job);
    reply->set_island(step.island);
    reply->set_leader(step.leader);
    reply->set_generation(step.generation);
    // It was received, so that it can be sent.
    ATOLL_CHECK(Encode(step.measured, reply->mutable_measured()).ok());
    const absl::StatusOr<StepTrace> predicted = Predict(step);
    absl::Status status = predicted.status();
    if (status.ok()) status = Encode(*predicted, reply->mutable_predicted());
    if (status.ok()) return;
    reply->clear_predicted();
    reply->set_no_prediction(std::string(status.message()));
  }

  absl::Status Profile(Instant now, const v1::ProfileRequest& request, v1::ClusterProfile* reply) {
    const CoordinatorCore& core = loop_->core();
    std::optional<JobView> job;
    if (!request.job().empty()) {
      job = core.Job(now, request.job());
      if (!job) return NoSuchJob(request.job());
    } else {
      const auto states = core.JobStates();
      for (auto newest = states.rbegin(); newest != states.rend() && !job; ++newest) {
        auto view = core.Job(now, newest->first);
        if (view->facts) job = std::move(view);
      }
    }
    ATOLL_ASSIGN_OR_RETURN(
        *reply, LiveProfile(now, core.Members(now), job ? &*job : nullptr, loop_->measurements()));
    return absl::OkStatus();
  }

  void Cluster(Instant now, v1::ClusterStatus* status) {
    status->set_epoch(loop_->core().epoch());
    status->set_cluster(loop_->core().cluster());
    status->set_store_age(loop_->core().StoreAge());
    for (const OrphanView& job : loop_->core().Orphans()) EncodeView(job, status->add_orphans());
    for (const ForeignMemberView& member : loop_->core().ForeignMembers(now)) {
      EncodeView(member, status->add_foreign_members());
    }
    status->set_up_s(Seconds(now - started_));
    status->set_unix_ms(UnixTimeMs());
    status->set_software_version(kSoftwareVersion);
    for (const MemberView& member : loop_->core().Members(now)) {
      EncodeView(member, status->add_members());
    }
    for (std::string& text : loop_->measurements().ListTroubles(now)) {
      status->add_troubles(std::move(text));
    }
    for (const auto& [id, state] : loop_->core().JobStates()) {
      if (HasEnded(state)) continue;
      auto view = loop_->core().Job(now, id);
      auto& decisions = view->decisions;
      if (decisions.size() > 1) decisions.erase(decisions.begin(), decisions.end() - 1);
      EncodeJob(now, *loop_, *std::move(view), status->add_jobs());
    }
  }

  std::shared_ptr<Feed> FindOrAddFeed(const JobId& job) {
    std::erase_if(feeds_, [](const auto& entry) { return entry.second.expired(); });
    std::shared_ptr<Feed> feed = feeds_[job].lock();
    if (feed == nullptr) feeds_[job] = feed = std::make_shared<Feed>();
    return feed;
  }

  void RefreshJob(Instant now, const JobId& job, Feed* feed) {
    feed->view.Refresh(now, [&] {
      v1::Job message;
      auto view = loop_->core().Job(now, job);
      feed->missing = view ? absl::OkStatus() : NoSuchJob(job);
      feed->last = view && HasEnded(view->summary.state);
      if (view) EncodeJob(now, *loop_, *std::move(view), &message);
      return message.SerializeAsString();
    });
  }

  void RefreshCluster(Instant now, Feed* feed) {
    feed->view.Refresh(now, [&] {
      v1::ClusterStatus message;
      Cluster(now, &message);
      return message.SerializeAsString();
    });
  }

  // A call that changes something: what it did, to `target()` as of its end, is in the audit log
  // before the caller has the answer.
  template <class Change, class Target>
  Unary* Audited(Context* context, const std::string& call, Change change, Target target) {
    Caller caller = CallerFrom(access_, *context);
    return OnLoop(loop_, context,
                  [=, access = access_, caller = std::move(caller)](Instant now) -> absl::Status {
                    const absl::Status status = change(now);
                    access->Audit(caller, call, target(), status);
                    return status;
                  });
  }

  // `send(now, stream)` sends what is new, or ends the stream. It is skipped while the caller has
  // not read the last message, and one that reads nothing for minutes is cancelled.
  template <class M, class Send>
  grpc::ServerWriteReactor<M>* Watch(Context* context, Duration interval, Send send) {
    auto access = std::make_shared<AccessWatch>(access_, *context);
    auto stream = WatchStream<M>::Begin(context);
    WatchStream<M>* const reactor = stream.get();
    const bool posted = loop_->Post([this, stream, interval, send, access](Instant) {
      if (watchers_.size() >= kMaxWatchers) {
        return stream->End(
            grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls that watch"));
      }
      watchers_.Add(interval, [stream, send, access, reads = ReadWatch()](Instant at) mutable {
        const Verdict verdict = access->Check();
        if (!verdict.ok()) stream->End(ToGrpc(ToStatus(verdict)));
        const bool idle = stream->idle();
        if (!stream->ended() && idle) send(at, *stream);
        if (!reads.IsOver(at, idle)) return !stream->ended();
        stream->Abort();  // its slot is free at once
        return false;
      });
    });
    if (!posted) {
      stream->End(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                               "the coordinator is ending or has too much to do"));
    }
    return reactor;
  }

  CoordinatorLoop* const loop_;
  AccessControl* const access_;
  const Instant started_;
  std::map<JobId, std::weak_ptr<Feed>> feeds_;  // of the streams in watchers_
  const std::shared_ptr<Feed> cluster_feed_ = std::make_shared<Feed>();
  Watchers watchers_;
  Jobs jobs_;
  Status status_;
};

ClientService::ClientService(CoordinatorLoop* loop, AccessControl* access)
    : impl_(std::make_unique<Impl>(loop, access)) {}
ClientService::~ClientService() = default;

std::vector<grpc::Service*> ClientService::services() { return impl_->services(); }

}  // namespace atl
