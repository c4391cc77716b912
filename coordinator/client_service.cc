#include "coordinator/client_service.h"

#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/machine/room.h"
#include "common/net/control/grpc_status.h"
#include "common/protocol/wire.h"
#include "common/status.h"
#include "coordinator/change_settings.h"
#include "coordinator/clients/client_answers.h"
#include "coordinator/shared_view.h"
#include "coordinator/trust/authorizer.h"
#include "coordinator/wire.h"
#include "proto/coordinator.grpc.pb.h"

namespace atl {
namespace {

constexpr int64_t kJobBytes = int64_t{16} << 20;  // what must be left for one more
constexpr Duration kLogPageInterval = std::chrono::milliseconds(20);
constexpr int kTraceDefaultMs = 30'000;
constexpr size_t kDecisionsPage = 64, kDecisionsBytes = size_t{1} << 20;
constexpr int kHistoryPoints = 1000;
constexpr int kHistoryPointsMax = static_cast<int>(kRoundCurvePoints);
constexpr int kHistoryIslands = 64;

Duration Interval(int32_t requested_ms, int32_t default_ms) {
  return std::chrono::milliseconds(requested_ms <= 0 ? default_ms
                                                     : std::clamp(requested_ms, 100, 60'000));
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
      const Caller caller = CallerFrom(impl_->access_, *context);
      const std::string owner = caller.identity ? caller.identity->name : "";
      const auto submit = [=, loop = impl_->loop_](Instant now) -> absl::Status {
        ATOLL_ASSIGN_OR_RETURN(const JobSpec spec, GoodSpec(*request));
        ATOLL_RETURN_IF_ERROR(CheckRoomLeft(kJobBytes));
        absl::Status status = absl::UnavailableError("the coordinator cannot store the job");
        loop->Request(
            now,
            [&](int64_t id) {
              return SubmitJob{id, spec, RandomJobNumber(), owner};
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

    Unary* Decisions(Context* context, const v1::DecisionsRequest* request,
                     v1::DecisionsReply* reply) override {
      return OnLoop(impl_->loop_, context, [=, loop = impl_->loop_](Instant) -> absl::Status {
        auto page = loop->core().Decisions(request->job(), request->after_round(), kDecisionsPage);
        if (!page) return NoSuchJob(request->job());
        size_t bytes = 0;
        for (const DecisionRecord& decision : page->decisions) {
          ATOLL_ASSIGN_OR_RETURN(std::string record, EncodeRecord(decision));
          bytes += record.size();
          if (bytes > kDecisionsBytes && !reply->records().empty()) break;
          reply->add_records(std::move(record));
        }
        for (std::string& certificate : page->certificates) {
          reply->add_certificates(std::move(certificate));
        }
        reply->set_newest_digest(page->newest_digest);
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
    Unary* Pause(Context* c, const v1::JobRequest* r, v1::JobSummary* reply) override {
      return Control(c, {.job = r->job(), .command = JobCommand::kPause}, reply);
    }
    Unary* Resume(Context* c, const v1::JobRequest* r, v1::JobSummary* reply) override {
      return Control(c, {.job = r->job(), .command = JobCommand::kResume}, reply);
    }
    Unary* Cancel(Context* c, const v1::JobRequest* r, v1::JobSummary* reply) override {
      return Control(c, {.job = r->job(), .command = JobCommand::kCancel}, reply);
    }
    Unary* Remove(Context* c, const v1::RemoveRequest* r, v1::JobSummary* reply) override {
      return Control(c, {.job = r->job(), .command = JobCommand::kRemove, .force = r->force()},
                     reply);
    }
    Unary* Adopt(Context* c, const v1::JobRequest* r, v1::JobSummary* reply) override {
      return Control(c, {.job = r->job(), .command = JobCommand::kAdopt}, reply);
    }
    Unary* Refill(Context* c, const v1::RefillRequest* r, v1::JobSummary* reply) override {
      return Control(c, {.job = r->job(), .command = JobCommand::kRefill, .server = r->server()},
                     reply);
    }
    Unary* NoteExport(Context* c, const v1::NoteExportRequest* r, v1::JobSummary* reply) override {
      return Control(
          c, {.job = r->job(), .command = JobCommand::kNoteExport, .version = r->version()}, reply);
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
                                      if (step.ok())
                                        FillTrace(*impl->loop_, *std::move(step), reply);
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
        const absl::Status requested = RequestPreview(now, *impl->loop_, *request, on_done);
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
      auto reading = std::make_shared<LogReading>(*request);
      return impl_->Watch<v1::LogLine>(context, kLogPageInterval,
                                       [reading, loop = impl_->loop_](Instant now, auto& stream) {
                                         reading->SendPage(now, *loop, stream);
                                       });
    }

   private:
    Unary* Control(Context* context, const ControlJob& command, v1::JobSummary* reply) {
      static constexpr const char* kCalls[] = {"Pause", "Resume", "Cancel",    "Remove",
                                               "Adopt", "Refill", "NoteExport"};
      const auto control = [=, loop = impl_->loop_](Instant now) {
        const bool removes = command.command == JobCommand::kRemove;
        reply->set_job(command.job);                            // also of an orphaned one
        if (removes) EncodeSummary(*loop, command.job, reply);  // it is hidden afterwards
        const absl::Status status = Requested(loop, now, [&](int64_t id) {
          ControlJob request = command;
          request.request_id = id;
          return request;
        });
        if (!removes) EncodeSummary(*loop, command.job, reply);
        return status;
      };
      const std::string call = kCalls[static_cast<size_t>(command.command)];
      return impl_->Audited(context, "Jobs/" + call, control, [job = command.job] { return job; });
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
      return OnLoop(impl_->loop_, context, [=, loop = impl_->loop_](Instant now) {
        return EncodeProfile(now, *loop, *request, reply);
      });
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

  void Cluster(Instant now, v1::ClusterStatus* status) {
    status->set_up_s(Seconds(now - started_));
    EncodeCluster(now, *loop_, status);
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
      watchers_.Add(interval, [stream, send, access, reads = ViewWatch()](Instant at) mutable {
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
