#include "coordinator/http/gateway.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/model/job_model.h"
#include "common/proto_json.h"
#include "common/protocol/wire.h"
#include "common/toml_message.h"
#include "common/toml_text.h"
#include "common/utf8.h"
#include "coordinator/http/assets.h"
#include "coordinator/http/page_view.h"
#include "coordinator/trust/authorizer.h"
#include "proto/coordinator.grpc.pb.h"

namespace atl {

// Guards calls that begin: gRPC 1.51 crashes where one begins on a channel within the process while
// its server shuts down.
class CallGate {
 public:
  // While it exists, and `open`, a call with this context may begin.
  class Pass {
   public:
    Pass(CallGate* gate, grpc::ClientContext* context) : gate_(gate), context_(context) {
      const std::lock_guard lock(gate_->mutex_);
      open_ = !gate_->closed_;
      if (open_) gate_->passing_.insert(context_);
    }
    ~Pass() {
      const std::lock_guard lock(gate_->mutex_);
      gate_->passing_.erase(context_);
      gate_->left_.notify_all();
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    bool open() const { return open_; }

   private:
    CallGate* const gate_;
    grpc::ClientContext* const context_;
    bool open_ = false;
  };

  // Cancels the calls that have a pass, and waits for them. No call begins afterwards.
  void Close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    for (grpc::ClientContext* context : passing_) context->TryCancel();
    left_.wait(lock, [this] { return passing_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  std::set<grpc::ClientContext*> passing_;  // guarded by mutex_, as below
  bool closed_ = false;
};

struct Gateway::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : jobs(v1::Jobs::NewStub(channel)), status(v1::Status::NewStub(channel)) {}

  std::unique_ptr<v1::Jobs::Stub> jobs;
  std::unique_ptr<v1::Status::Stub> status;
  CallGate gate;
};

namespace {

// Sets what the command line writes into a job that does not say it. What is wrong with the job is
// found where it is submitted.
void NameDocuments(v1::JobSpec* wire) {
  if (wire->data().has_documents()) return;
  v1::JobSpec copy = *wire;
  const absl::StatusOr<JobSpec> spec = Decode(&copy);
  if (!spec.ok()) return;
  const Documents documents = DefaultDocuments(*spec);
  if (documents == Documents::kText) return;
  wire->mutable_data()->set_documents(documents == Documents::kPairs ? v1::DOCUMENTS_PAIRS
                                                                     : v1::DOCUMENTS_MASK);
}

constexpr auto kDeadline = std::chrono::seconds(10);
// A stream's call is renewed so often, which detects a closed connection.
constexpr auto kStreamDeadline = std::chrono::seconds(10);
constexpr int kTraceTimeoutMs = 30'000;
constexpr int64_t kLogLinesMax = 2000;
constexpr int64_t kDecisionRowsMax = 4096;
constexpr int kStatusIntervalMs = 2000;
constexpr int kJobIntervalMs = 1000;
constexpr char kJson[] = "application/json; charset=utf-8";

void SetDeadline(grpc::ClientContext* context, std::chrono::milliseconds limit) {
  context->set_deadline(std::chrono::system_clock::now() + limit);
}

HttpReply JsonReply(int status, std::string body) {
  HttpReply reply;
  reply.status = status;
  reply.type = kJson;
  reply.body = std::move(body);
  return reply;
}

HttpReply ErrorReply(int http, const std::string& text) {
  v1::page::Error error;
  error.set_text(text);
  return JsonReply(http, CompactJson(error));
}

HttpReply EndingReply() { return ErrorReply(503, "the coordinator is ending"); }

HttpReply ToReply(const grpc::Status& status, const google::protobuf::Message& message) {
  if (status.ok()) return JsonReply(200, CompactJson(message));
  const int http = status.error_code() == grpc::StatusCode::NOT_FOUND             ? 404
                   : status.error_code() == grpc::StatusCode::FAILED_PRECONDITION ? 409
                   : status.error_code() == grpc::StatusCode::INVALID_ARGUMENT    ? 400
                                                                                  : 503;
  return ErrorReply(http, status.error_message());
}

// One unary call. `show` makes the message that the page gets.
template <class Stub, class Request, class Reply, class Show>
HttpReply CallAndShow(CallGate& gate, Stub& stub,
                      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                      const Request& request, Show show,
                      std::chrono::milliseconds limit = kDeadline, const std::string& user = "") {
  grpc::ClientContext context;
  if (!user.empty()) context.AddMetadata(kPageUserKey, user);
  SetDeadline(&context, limit);
  const CallGate::Pass pass(&gate, &context);
  if (!pass.open()) return EndingReply();
  Reply reply;
  const grpc::Status status = (stub.*method)(&context, request, &reply);
  return ToReply(status, show(reply));
}
template <class Stub, class Request, class Reply>
HttpReply Call(CallGate& gate, Stub& stub,
               grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
               const Request& request, std::chrono::milliseconds limit = kDeadline,
               const std::string& user = "") {
  const auto as_it_is = [](const Reply& reply) -> const Reply& { return reply; };
  return CallAndShow(gate, stub, method, request, as_it_is, limit, user);
}

// The gRPC services' methods behind queries and actions, by their names; empty: there is none.
std::string FindMethod(const std::string& name, bool is_action) {
  static const auto& queries = *new std::map<std::string, std::string>{
      {"status", "/atl.v1.Status/Get"}, {"jobs", "/atl.v1.Jobs/List"},
      {"job", "/atl.v1.Jobs/Get"},      {"history", "/atl.v1.Jobs/History"},
      {"logs", "/atl.v1.Jobs/Logs"},    {"sites", "/atl.v1.Status/Profile"},
      {"events", "/atl.v1.Jobs/Watch"}, {"settings", "/atl.v1.Jobs/Get"},
  };
  static const auto& actions = *new std::map<std::string, std::string>{
      {"trace", "/atl.v1.Jobs/Trace"},   {"pause", "/atl.v1.Jobs/Pause"},
      {"resume", "/atl.v1.Jobs/Resume"}, {"cancel", "/atl.v1.Jobs/Cancel"},
      {"drain", "/atl.v1.Jobs/Drain"},   {"submit", "/atl.v1.Jobs/Submit"},
      {"set", "/atl.v1.Jobs/Change"},
  };
  const auto& calls = is_action ? actions : queries;
  const auto found = calls.find(name);
  return found == calls.end() ? "" : found->second;
}

int64_t Number(const HttpRequest& request, const std::string& name, int64_t otherwise) {
  int64_t number = 0;
  return absl::SimpleAtoi(request.Query(name), &number) ? number : otherwise;
}

v1::ClusterProfile SitesAndLinks(const v1::ClusterProfile& profile) {
  v1::ClusterProfile reduced;
  *reduced.mutable_sites() = profile.sites();
  std::map<absl::string_view, absl::string_view> site_of;
  for (const v1::SiteOfWorkers& site : profile.sites()) {
    for (const std::string& worker : site.workers()) site_of[worker] = site.name();
  }
  const auto site = [&](const std::string& device) -> absl::string_view {
    const auto found = site_of.find(absl::string_view(device).substr(0, device.find('/')));
    return found == site_of.end() ? "" : found->second;
  };
  const auto rate = [](const v1::Link& link) {
    return link.edges_size() == 0 ? 0 : link.edges(0).bandwidth_bytes_per_s();
  };
  std::map<std::pair<absl::string_view, absl::string_view>, const v1::Link*> fastest;
  for (const v1::Link& link : profile.cluster().links()) {
    const auto from = site(link.from()), to = site(link.to());
    if (from.empty() || to.empty() || from == to) continue;
    const v1::Link*& best = fastest[{std::min(from, to), std::max(from, to)}];
    if (best == nullptr || rate(link) > rate(*best)) best = &link;
  }
  for (const auto& [sites, link] : fastest) *reduced.mutable_cluster()->add_links() = *link;
  return reduced;
}

// Returns whether a message's field can carry the text.
bool IsText(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = CharacterBytes(text, i);
    if (bytes == 0 || absl::ascii_iscntrl(static_cast<unsigned char>(text[i]))) return false;
    i += bytes;
  }
  return true;
}

v1::JobRequest Named(const HttpRequest& request) {
  v1::JobRequest named;
  named.set_job(request.Query("job"));
  return named;
}

JobPage PageFrom(const HttpRequest& request) {
  JobPage page;
  page.decisions = static_cast<int32_t>(
      std::clamp<int64_t>(Number(request, "decisions", 0), 0, kDecisionRowsMax));
  int32_t island = 0;
  if (absl::SimpleAtoi(request.Query("island"), &island)) page.island = island;
  return page;
}

// Server-sent events from calls that stream messages M: one event for every message that is shown
// differently than the last one. The call is renewed when its deadline has passed.
template <class M>
class EventSource {
 public:
  using Begin = std::function<std::unique_ptr<grpc::ClientReader<M>>(grpc::ClientContext*)>;
  using Show = std::function<std::string(const M&)>;  // as JSON
  EventSource(CallGate* gate, Begin begin, Show show)
      : gate_(gate), begin_(std::move(begin)), show_(std::move(show)) {}

  bool Next(std::string* chunk) {
    if (finished_) return false;
    if (reader_ == nullptr) {
      context_ = std::make_unique<grpc::ClientContext>();
      SetDeadline(context_.get(), kStreamDeadline);
      const CallGate::Pass pass(gate_, context_.get());
      if (!pass.open()) return false;
      reader_ = begin_(context_.get());
    }
    M message;
    if (reader_->Read(&message)) {
      std::string text = show_(message);
      if (text == last_) return true;
      last_ = text;
      *chunk = "data: " + text + "\n\n";
      return true;
    }
    const grpc::Status status = reader_->Finish();
    reader_.reset();
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      *chunk = ": still here\n\n";
      return true;
    }
    // Any other end is one of the connection: the browser opens the stream again by itself.
    if (!status.ok() && status.error_code() != grpc::StatusCode::NOT_FOUND) return false;
    *chunk = "event: end\ndata: {}\n\n";
    return finished_ = true;
  }

 private:
  CallGate* const gate_;
  const Begin begin_;
  const Show show_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<M>> reader_;
  std::string last_;
  bool finished_ = false;
};

template <class M>
HttpReply Stream(CallGate* gate, typename EventSource<M>::Begin begin,
                 typename EventSource<M>::Show show) {
  HttpReply reply;
  reply.type = "text/event-stream";
  auto source = std::make_shared<EventSource<M>>(gate, std::move(begin), std::move(show));
  reply.next = [source](std::string* chunk) { return source->Next(chunk); };
  return reply;
}

}  // namespace

Gateway::Gateway(std::shared_ptr<grpc::Channel> channel, Permit permit)
    : stubs_(std::make_shared<Stubs>(channel)), permit_(std::move(permit)) {}
Gateway::~Gateway() = default;
void Gateway::Close() { stubs_->gate.Close(); }

HttpReply Gateway::Answer(const HttpRequest& request) {
  for (const auto& [name, value] : request.query) {
    if (!IsText(name) || !IsText(value)) {
      return ErrorReply(400, "the query is not text: it must be UTF-8, without control characters");
    }
  }
  constexpr absl::string_view kApi = "/api/v1/";
  if (absl::StartsWith(request.path, kApi)) {
    const std::string call = request.path.substr(kApi.size());
    return request.method == "POST" ? Act(call, request) : Api(call, request);
  }
  const Asset* asset = FindAsset(request.path == "/" ? "index.html" : request.path.substr(1));
  HttpReply reply;
  if (asset == nullptr || (request.method != "GET" && request.method != "HEAD")) {
    reply.status = 404;
    reply.body = "there is no such page\n";
    return reply;
  }
  reply.type = asset->type;
  reply.body = std::string(asset->body);
  return reply;
}

HttpReply Gateway::Api(const std::string& call, const HttpRequest& request) {
  if (call == "session") {
    const bool actions = permit_(request, "/atl.v1.Jobs/Pause", /*try_only=*/true).allowed.ok();
    return JsonReply(200, actions ? R"({"actions":true})" : "{}");
  }
  const std::string path = FindMethod(call, /*is_action=*/false);
  if (path.empty()) return ErrorReply(404, "there is no such call");
  const User user = permit_(request, path, /*try_only=*/false);
  if (!user.allowed.ok()) return ErrorReply(403, std::string(user.allowed.message()));
  if (call == "status") {
    return CallAndShow(stubs_->gate, *stubs_->status, &v1::Status::Stub::Get, v1::StatusRequest(),
                       [](const v1::ClusterStatus& reply) { return ToPage(reply); });
  }
  if (call == "jobs") {
    v1::ListRequest page;
    page.set_before(Number(request, "before", 0));
    return Call(stubs_->gate, *stubs_->jobs, &v1::Jobs::Stub::List, page);
  }
  if (call == "job") {
    return CallAndShow(
        stubs_->gate, *stubs_->jobs, &v1::Jobs::Stub::Get, Named(request),
        [page = PageFrom(request)](const v1::Job& job) { return ToPage(job, page); });
  }
  if (call == "settings") {
    return CallAndShow(stubs_->gate, *stubs_->jobs, &v1::Jobs::Stub::Get, Named(request),
                       [](const v1::Job& job) {
                         v1::page::Settings settings;
                         settings.set_toml(TomlText(job.spec()));
                         return settings;
                       });
  }
  if (call == "history") return History(request);
  if (call == "sites") return Sites(request);
  if (call == "logs") return Logs(request);
  HttpReply reply = Events(request);
  reply.next = [next = std::move(reply.next), permit = permit_, request, path](std::string* chunk) {
    return permit(request, path, /*try_only=*/true).allowed.ok() && next(chunk);
  };
  return reply;
}

HttpReply Gateway::Act(const std::string& call, const HttpRequest& request) {
  // Another site's page cannot send this header without a preflight request, which is never
  // answered.
  if (request.Header("x-atoll-action").empty()) return ErrorReply(403, "not from this page");
  const std::string path = FindMethod(call, /*is_action=*/true);
  if (path.empty()) return ErrorReply(404, "there is no such action");
  const User user = permit_(request, path, /*try_only=*/false);
  if (!user.allowed.ok()) return ErrorReply(403, std::string(user.allowed.message()));
  if (call == "trace") {
    v1::TraceRequest trace;
    trace.set_job(request.Query("job"));
    trace.set_island(static_cast<int32_t>(Number(request, "island", 0)));
    trace.set_timeout_ms(kTraceTimeoutMs);
    return Call(stubs_->gate, *stubs_->jobs, &v1::Jobs::Stub::Trace, trace,
                std::chrono::milliseconds(kTraceTimeoutMs) + kDeadline);
  }
  if (call == "drain") {
    v1::DrainRequest drain;
    drain.set_server(request.Query("server"));
    drain.set_undo(request.Query("undo") == "1");
    return Call(stubs_->gate, *stubs_->jobs, &v1::Jobs::Stub::Drain, drain, kDeadline, user.name);
  }
  if (call == "submit") {
    v1::SubmitRequest submit;
    TomlMessage reader("job file");
    const absl::Status read = reader.Read(request.body, submit.mutable_spec());
    if (!read.ok()) return ErrorReply(400, std::string(read.message()));
    NameDocuments(submit.mutable_spec());
    return Call(stubs_->gate, *stubs_->jobs, &v1::Jobs::Stub::Submit, submit, kDeadline, user.name);
  }
  if (call == "set") {
    v1::ChangeRequest change;
    change.set_job(request.Query("job"));
    for (const absl::string_view line :
         absl::StrSplit(request.body, '\n', absl::SkipWhitespace())) {
      change.add_settings(std::string(absl::StripAsciiWhitespace(line)));
    }
    return Call(stubs_->gate, *stubs_->jobs, &v1::Jobs::Stub::Change, change, kDeadline, user.name);
  }
  const auto method = call == "pause"    ? &v1::Jobs::Stub::Pause
                      : call == "resume" ? &v1::Jobs::Stub::Resume
                                         : &v1::Jobs::Stub::Cancel;
  return Call(stubs_->gate, *stubs_->jobs, method, Named(request), kDeadline, user.name);
}

HttpReply Gateway::History(const HttpRequest& request) {
  v1::HistoryRequest rpc_request;
  rpc_request.set_job(request.Query("job"));
  rpc_request.set_points(static_cast<int32_t>(Number(request, "points", 0)));
  rpc_request.set_islands(static_cast<int32_t>(Number(request, "islands", 0)));
  return CallAndShow(stubs_->gate, *stubs_->jobs, &v1::Jobs::Stub::History, rpc_request,
                     [](v1::JobHistory& history) -> const v1::JobHistory& {
                       KeepDrawn(&history);
                       return history;
                     });
}

// Answers with a part of the profile: the sites and, between two of them, the fastest measured
// link: 1,000 workers have megabytes of links.
HttpReply Gateway::Sites(const HttpRequest& request) {
  v1::ProfileRequest rpc_request;
  rpc_request.set_job(request.Query("job"));
  return CallAndShow(stubs_->gate, *stubs_->status, &v1::Status::Stub::Profile, rpc_request,
                     SitesAndLinks);
}

HttpReply Gateway::Logs(const HttpRequest& request) {
  v1::LogsRequest logs;
  logs.set_job(request.Query("job"));
  logs.set_after_sequence(Number(request, "after", 0));
  logs.set_tail(std::clamp<int64_t>(Number(request, "tail", 500), 1, kLogLinesMax));
  logs.set_severity(request.Query("severity"));
  logs.set_contains(request.Query("contains"));
  grpc::ClientContext context;
  SetDeadline(&context, kDeadline);
  const CallGate::Pass pass(&stubs_->gate, &context);
  if (!pass.open()) return EndingReply();
  const auto reader = stubs_->jobs->Logs(&context, logs);
  std::string lines = "[";
  v1::LogLine line;
  while (reader->Read(&line)) {
    if (lines.size() > 1) lines += ",";
    lines += CompactJson(line);
  }
  const grpc::Status status = reader->Finish();
  return status.ok() ? JsonReply(200, lines + "]") : ToReply(status, line);
}

HttpReply Gateway::Events(const HttpRequest& request) {
  const std::string job = request.Query("job");
  if (job.empty()) {
    return Stream<v1::ClusterStatus>(
        &stubs_->gate,
        [stubs = stubs_](grpc::ClientContext* context) {
          v1::StatusRequest watch;
          watch.set_interval_ms(kStatusIntervalMs);
          return stubs->status->Watch(context, watch);
        },
        [](const v1::ClusterStatus& status) { return CompactJson(ToPage(status)); });
  }
  return Stream<v1::Job>(
      &stubs_->gate,
      [stubs = stubs_, job](grpc::ClientContext* context) {
        v1::WatchRequest watch;
        watch.set_job(job);
        watch.set_interval_ms(kJobIntervalMs);
        return stubs->jobs->Watch(context, watch);
      },
      [page = PageFrom(request)](const v1::Job& now) { return CompactJson(ToPage(now, page)); });
}

}  // namespace atl
