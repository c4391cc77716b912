// The real server over loopback, with members that connect through the real attach client.

#include "coordinator/server.h"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/net/control/attach_client.h"
#include "common/net/control/channel.h"
#include "common/protocol/wire.h"
#include "coordinator/store_sqlite.h"
#include "proto/backup.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

constexpr auto kLong = testing::kHangLimit;

std::string FreshFolder() {
  std::string name = absl::StrCat(std::getenv("TEST_TMPDIR"), "/server-XXXXXX");
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return name;
}

// A coordinator in this process; "killed" by its destructor, without a goodbye to its core.
class Coordinator {
 public:
  explicit Coordinator(const std::string& folder, int port = 0, const std::string& backup = "") {
    ServerOptions options;
    options.listen = absl::StrCat("127.0.0.1:", port);
    options.state_dir = folder;
    options.restore_from = backup;
    auto server = CoordinatorServer::Start(options);
    INFO(server.status().ToString());
    REQUIRE(server.ok());
    server_ = *std::move(server);
    thread_ = std::thread([this] { status_ = server_->Run(); });
    address = absl::StrCat("127.0.0.1:", server_->port());
    channel_ = OpenChannel({}, address).value();
    jobs = v1::Jobs::NewStub(channel_);
    status = v1::Status::NewStub(channel_);
    backups = v1::Backups::NewStub(channel_);
  }
  ~Coordinator() {
    server_->Stop();
    thread_.join();
    CHECK(status_.ok());
  }
  int port() const { return server_->port(); }

  std::string address;
  std::unique_ptr<v1::Jobs::Stub> jobs;
  std::unique_ptr<v1::Status::Stub> status;
  std::unique_ptr<v1::Backups::Stub> backups;

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<CoordinatorServer> server_;
  absl::Status status_;
  std::thread thread_;
};

struct Context : grpc::ClientContext {
  Context() { set_deadline(std::chrono::system_clock::now() + kLong); }
};

// A worker that says hello whenever it is attached, and keeps what it receives.
class Worker {
 public:
  Worker(const Coordinator& coordinator, Incarnation incarnation) {
    AttachOptions options{.coordinator = coordinator.address, .name = "w1"};
    options.incarnation = incarnation;
    options.backoff_max = std::chrono::milliseconds(200);
    client_ = WorkerAttach::Open(options, [this](WorkerAttach::Event event) {
                const std::lock_guard lock(mutex_);
                events_.push_back(std::move(event));
                changed_.notify_all();
              }).value();
  }

  // Waits for a message of kind M.
  template <class M>
  ToWorker Await() {
    std::unique_lock lock(mutex_);
    for (;;) {
      REQUIRE(changed_.wait_for(lock, kLong, [&] { return !events_.empty(); }));
      const WorkerAttach::Event event = std::move(events_.front());
      events_.pop_front();
      if (std::holds_alternative<AttachOpened>(event)) client_->Send(WorkerHello{"0.1.0", {}, {}});
      const auto* message = std::get_if<ToWorker>(&event);
      // Another process may still hold the name.
      const bool refused = message != nullptr && std::holds_alternative<Refused>(message->message);
      if (refused && !std::is_same_v<M, Refused>) client_->Send(WorkerHello{"0.1.0", {}, {}});
      if (message != nullptr && std::holds_alternative<M>(message->message)) return *message;
    }
  }
  void Close() { client_->Close(kLong); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<WorkerAttach::Event> events_;
  std::unique_ptr<WorkerAttach> client_;  // last: its thread uses all of the above
};

v1::SubmitRequest TinyJob() {
  v1::SubmitRequest request;
  v1::JobSpec* spec = request.mutable_spec();
  spec->set_name("tiny");
  spec->mutable_model()->set_hidden(64);
  spec->mutable_model()->set_layers(2);
  spec->mutable_model()->set_heads(4);
  spec->mutable_data()->set_path("corpus.txt");
  spec->mutable_schedule()->set_train_tokens(1 << 20);
  return request;
}

std::string Submit(Coordinator& coordinator, const v1::SubmitRequest& request = TinyJob()) {
  v1::SubmitReply reply;
  Context context;
  const grpc::Status status = coordinator.jobs->Submit(&context, request, &reply);
  INFO(status.error_message());
  REQUIRE(status.ok());
  return reply.job();
}

v1::Job Get(Coordinator& coordinator, const std::string& id) {
  v1::JobRequest request;
  request.set_job(id);
  v1::Job job;
  Context context;
  REQUIRE(coordinator.jobs->Get(&context, request, &job).ok());
  return job;
}

TEST_CASE("jobs are submitted, shown, paused and cancelled") {
  Coordinator coordinator(FreshFolder());
  const std::string id = Submit(coordinator);
  REQUIRE(Get(coordinator, id).summary().state() == v1::JOB_STATE_QUEUED);
  REQUIRE(Get(coordinator, id).spec().outer().momentum() == OuterSpec{}.momentum);

  v1::JobRequest request;
  request.set_job(id);
  v1::JobSummary summary;
  {
    Context context;
    REQUIRE(coordinator.jobs->Cancel(&context, request, &summary).ok());
    REQUIRE(summary.state() == v1::JOB_STATE_CANCELLED);
  }
  Context context;
  REQUIRE(coordinator.jobs->Pause(&context, request, &summary).error_code() ==
          grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_CASE("a_summary_names_what_its_tokens_are") {
  Coordinator coordinator(FreshFolder());
  v1::SubmitRequest images = TinyJob();
  images.mutable_spec()->mutable_model()->Clear();
  images.mutable_spec()->mutable_model()->set_config_path("resnet.json");
  images.mutable_spec()->mutable_data()->set_format(v1::DATA_FORMAT_IDX);
  images.mutable_spec()->mutable_data()->set_sequence_length(1);
  CHECK(Get(coordinator, Submit(coordinator, images)).summary().token_unit() == "images");
  CHECK(Get(coordinator, Submit(coordinator)).summary().token_unit() == "tokens");
}

TEST_CASE("a bad specification and an unknown job are refused by name") {
  Coordinator coordinator(FreshFolder());
  v1::SubmitRequest bad = TinyJob();
  bad.mutable_spec()->mutable_outer()->set_momentum(1.5);
  v1::SubmitReply reply;
  v1::ValidateReply valid;
  Context c1, c2, c3;
  const grpc::Status status = coordinator.jobs->Submit(&c1, bad, &reply);
  REQUIRE(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  REQUIRE(status.error_message() == "outer.momentum = 1.5: must be at least 0 and below 1");
  REQUIRE(coordinator.jobs->Validate(&c2, bad, &valid).error_message() == status.error_message());
  v1::JobRequest request;
  request.set_job("none-1");
  v1::Job job;
  REQUIRE(coordinator.jobs->Get(&c3, request, &job).error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("a watcher sees the job until its end") {
  Coordinator coordinator(FreshFolder());
  v1::WatchRequest watch;
  watch.set_job(Submit(coordinator));
  watch.set_interval_ms(100);
  Context context;
  auto stream = coordinator.jobs->Watch(&context, watch);
  v1::Job job;
  REQUIRE(stream->Read(&job));
  REQUIRE(job.summary().state() == v1::JOB_STATE_QUEUED);
  {
    v1::JobRequest request;
    request.set_job(watch.job());
    v1::JobSummary summary;
    Context cancel;
    REQUIRE(coordinator.jobs->Cancel(&cancel, request, &summary).ok());
  }
  while (stream->Read(&job)) {
  }
  REQUIRE(stream->Finish().ok());
  REQUIRE(job.summary().state() == v1::JOB_STATE_CANCELLED);

  v1::LogsRequest logs;
  logs.set_job(watch.job());
  Context log_context;
  auto lines = coordinator.jobs->Logs(&log_context, logs);
  v1::LogLine line;
  int count = 0;
  while (lines->Read(&line)) ++count;
  REQUIRE(lines->Finish().ok());
  REQUIRE(count > 0);
}

// A call that watches the cluster and reads nothing until its end.
class UnreadWatcher : public grpc::ClientReadReactor<v1::ClusterStatus> {
 public:
  explicit UnreadWatcher(v1::Status::Stub* stub) {
    request_.set_interval_ms(100);
    stub->async()->Watch(&context_, &request_, this);
    AddHold();
    StartCall();
  }
  // Cancels it and waits until it has ended.
  ~UnreadWatcher() override {
    context_.TryCancel();
    StartRead(&message_);
    RemoveHold();
    ended_.get_future().wait();
  }
  // Waits for the first message, which comes with the metadata; false: the call has ended instead.
  bool Await() { return first_.get_future().get(); }
  void OnReadInitialMetadataDone(bool ok) override { first_.set_value(ok); }
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&message_);
  }
  void OnDone(const grpc::Status&) override { ended_.set_value(); }

 private:
  grpc::ClientContext context_;
  v1::StatusRequest request_;
  v1::ClusterStatus message_;
  std::promise<bool> first_;
  std::promise<void> ended_;
};

TEST_CASE("unread_watchers_do_not_delay_other_calls") {
  constexpr int kJobs = 200, kWatchers = 100, kCalls = 50;
  Coordinator coordinator(FreshFolder());
  std::string job;
  for (int i = 0; i < kJobs; ++i) job = Submit(coordinator);
  const auto seconds_of_calls = [&] {
    const std::clock_t begin = std::clock();  // of the processor: the machine may be busy
    for (int i = 0; i < kCalls; ++i) Get(coordinator, job);
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  const double alone = seconds_of_calls();
  std::deque<UnreadWatcher> watchers;
  for (int i = 0; i < kWatchers; ++i) watchers.emplace_back(coordinator.status.get());
  for (UnreadWatcher& watcher : watchers) REQUIRE(watcher.Await());
  // A call takes a turn of the loop. With a status made for each watcher, a turn takes 0.3 s.
  const double watched = seconds_of_calls();
  INFO(alone << " s without watchers, " << watched << " s with them");
  CHECK(watched < 3 + 20 * alone);
}

TEST_CASE("a_watch_request_that_cannot_be_parsed_is_refused") {
  Coordinator coordinator(FreshFolder());
  v1::WatchRequest watch;
  watch.set_job("\xff");  // not UTF-8
  Context context;
  auto stream = coordinator.jobs->Watch(&context, watch);
  v1::Job job;
  CHECK_FALSE(stream->Read(&job));
  CHECK(stream->Finish().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_CASE("backup_of_a_serving_coordinator_brings_its_jobs_to_another") {
  const std::string folder = FreshFolder(), file = FreshFolder() + "/backup";
  std::string job;
  {
    Coordinator coordinator(folder);
    job = Submit(coordinator);
    Context context;
    const auto stream = coordinator.backups->Make(&context, v1::BackupRequest());
    v1::BackupPart part;
    std::string bytes;
    while (stream->Read(&part)) bytes += part.data();
    REQUIRE(stream->Finish().ok());
    CHECK(part.last());
    CHECK(part.total_bytes() == static_cast<int64_t>(bytes.size()));
    CHECK(part.sequence() > 0);
    std::ofstream(file, std::ios::binary) << bytes;
    CHECK_FALSE(std::filesystem::exists(folder + "/coordinator.db.backup"));
  }
  {
    Coordinator restored(FreshFolder(), 0, file);
    CHECK(Get(restored, job).summary().state() == v1::JOB_STATE_QUEUED);
    Context context;
    v1::ClusterStatus status;
    REQUIRE(restored.status->Get(&context, v1::StatusRequest(), &status).ok());
    CHECK(status.epoch() > 1000);
  }
  ServerOptions full;
  full.listen = "127.0.0.1:0";
  full.state_dir = folder;
  full.restore_from = file;
  CHECK(absl::IsFailedPrecondition(CoordinatorServer::Start(full).status()));
}

TEST_CASE("a log of many pages comes whole and in order") {
  constexpr int kLines = 3500;
  const std::string folder = FreshFolder();
  {
    auto store = OpenSqliteStore(folder).value();
    std::vector<StoreWrite> writes;
    for (int i = 1; i <= kLines; ++i) {
      writes.push_back({EventRecord{i, "", Severity::kInfo, absl::StrCat("line ", i)}});
    }
    REQUIRE(store->Apply(writes, 1).ok());
  }
  Coordinator coordinator(folder);
  v1::LogsRequest request;
  SECTION("to its end") {}
  SECTION("followed") { request.set_follow(true); }
  Context context;
  auto stream = coordinator.jobs->Logs(&context, request);
  v1::LogLine line;
  for (int i = 1; i <= kLines; ++i) {
    REQUIRE(stream->Read(&line));
    REQUIRE(line.text() == absl::StrCat("line ", i));
  }
  if (request.follow()) context.TryCancel();
  while (stream->Read(&line)) {
  }
  REQUIRE(stream->Finish().ok() != request.follow());
}

TEST_CASE("a_worker_attaches_is_listed_and_a_newer_incarnation_takes_its_place_when_it_ends") {
  Coordinator coordinator(FreshFolder());
  {
    Worker old_run(coordinator, 1);
    REQUIRE(old_run.Await<Welcome>().incarnation == 1);
    old_run.Close();
  }
  Worker new_run(coordinator, 2);
  REQUIRE(new_run.Await<Welcome>().incarnation == 2);

  v1::ClusterStatus status;
  Context context;
  REQUIRE(coordinator.status->Get(&context, {}, &status).ok());
  REQUIRE(status.members_size() == 1);
  REQUIRE(status.members(0).name() == "w1");
  REQUIRE(status.members(0).incarnation() == 2);
  REQUIRE(status.members(0).attached());
  REQUIRE(status.members(0).kind() == "worker");
}

TEST_CASE("after a restart jobs are there, the epoch is larger, and members come back") {
  const std::string folder = FreshFolder();
  auto coordinator = std::make_unique<Coordinator>(folder);
  const int port = coordinator->port();
  Worker worker(*coordinator, 1);
  const int64_t epoch = worker.Await<Welcome>().epoch;
  const std::string id = Submit(*coordinator);
  coordinator.reset();
  coordinator = std::make_unique<Coordinator>(folder, port);
  REQUIRE(worker.Await<Welcome>().epoch == epoch + 1);
  REQUIRE(Get(*coordinator, id).summary().job() == id);
}

TEST_CASE("a stream that speaks for two members, or speaks nonsense, is ended") {
  Coordinator coordinator(FreshFolder());
  auto stub = v1::WorkerControl::NewStub(OpenChannel({}, coordinator.address).value());
  v1::FromWorker message;
  message.set_worker("w1");
  message.mutable_hello();
  v1::ToWorker answer;
  for (const char* second : {"w2", "Not A Name"}) {
    Context context;
    auto stream = stub->Attach(&context);
    message.set_worker("w1");
    REQUIRE(stream->Write(message));
    REQUIRE(stream->Read(&answer));
    message.set_worker(second);
    stream->Write(message);
    while (stream->Read(&answer)) {
    }
    REQUIRE(stream->Finish().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_CASE("a taken port and an open plaintext address are refused") {
  Coordinator coordinator(FreshFolder());
  ServerOptions options;
  options.state_dir = FreshFolder();
  options.listen = coordinator.address;
  REQUIRE(CoordinatorServer::Start(options).status().message().find("cannot listen there") !=
          absl::string_view::npos);
  options.listen = "0.0.0.0:0";
  REQUIRE(CoordinatorServer::Start(options).status().message().find("plaintext is for loopback") !=
          absl::string_view::npos);
}

}  // namespace
}  // namespace atl
