#include "common/net/control/attach_client.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <catch2/catch.hpp>

#include "common/event_loop.h"
#include "common/protocol/wire.h"
#include "proto/control.grpc.pb.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

constexpr auto kLong = testing::kHangLimit;

// Welcomes every member that attaches, repeats the reasons of Leaving messages, and can hang up.
class FakeCoordinator : public v1::WorkerControl::Service {
 public:
  void Start(int port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  void Stop() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  int port() const { return port_; }

  std::atomic<bool> has_left = false;

  grpc::Status Attach(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::ToWorker, v1::FromWorker>* stream) override {
    v1::FromWorker message;
    while (stream->Read(&message)) {
      v1::ToWorker answer;
      answer.set_worker(message.worker());
      answer.set_incarnation(message.incarnation());
      answer.set_epoch(1);
      if (message.has_hello()) {
        stream->Write(MakeClientKeys("first"));
        answer.mutable_welcome()->set_lease_ns(1000);
      }
      if (message.has_leaving()) {
        has_left = message.leaving().reason() == "bye";
        answer.mutable_refused()->set_reason(message.leaving().reason());
        if (message.leaving().reason() == "elsewhere") answer.set_incarnation(99);
        if (message.leaving().reason() == "nonsense") answer.clear_refused();
        if (message.leaving().reason() == "keys") answer = MakeClientKeys("second");
      }
      stream->Write(answer);
    }
    return grpc::Status::OK;
  }

 private:
  static v1::ToWorker MakeClientKeys(const std::string& name) {
    v1::ToWorker keys;
    keys.mutable_client_keys()->add_allowed(name);
    return keys;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A member that records what it sees in words: "open", "lost", "key NAME" (of a list of one),
// "welcome", "refused REASON".
class Member {
 public:
  explicit Member(int port) {
    AttachOptions options;
    options.coordinator = absl::StrCat("127.0.0.1:", port);
    options.name = "w1";
    options.incarnation = 7;
    options.backoff_max = std::chrono::milliseconds(200);
    options.on_keys = [this](const v1::ClientKeys& keys) {
      See(absl::StrCat("key ", keys.allowed(0)));
    };
    auto client = WorkerAttach::Open(
        options, [this](WorkerAttach::Event event) { See(DescribeEvent(event)); });
    REQUIRE(client.ok());
    client_ = *std::move(client);
  }

  void Await(const std::string& text) {
    std::unique_lock lock(mutex_);
    INFO("waiting for " << text);
    REQUIRE(changed_.wait_for(lock, kLong, [&] {
      while (!seen_.empty() && seen_.front() != text) seen_.pop_front();
      return !seen_.empty();
    }));
    seen_.pop_front();
  }
  WorkerAttach* operator->() { return client_.get(); }

 private:
  static std::string DescribeEvent(const WorkerAttach::Event& event) {
    if (std::holds_alternative<AttachOpened>(event)) return "open";
    if (std::holds_alternative<AttachLost>(event)) return "lost";
    const ToWorkerMessage& message = std::get<ToWorker>(event).message;
    if (std::holds_alternative<Welcome>(message)) return "welcome";
    return absl::StrCat("refused ", std::get<Refused>(message).reason);
  }

  void See(std::string text) {
    const std::lock_guard lock(mutex_);
    seen_.push_back(std::move(text));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> seen_;
  std::unique_ptr<WorkerAttach> client_;
};

TEST_CASE("a member attaches, and attaches again when the coordinator comes back") {
  FakeCoordinator coordinator;
  coordinator.Start(0);
  Member member(coordinator.port());
  member.Await("open");
  REQUIRE(member->Send(WorkerHello{}));
  member.Await("key first");
  member.Await("welcome");
  REQUIRE(member->Send(Leaving{"keys"}));
  member.Await("key second");

  coordinator.Stop();
  member.Await("lost");
  REQUIRE(!member->Send(WorkerHeartbeat{}));

  coordinator.Start(coordinator.port());
  member.Await("open");
  REQUIRE(member->Send(WorkerHello{}));
  member.Await("key first");
  member.Await("welcome");
  member->Close(kLong);
  coordinator.Stop();
}

TEST_CASE("messages keep their order; those for others are left out; nonsense ends the stream") {
  FakeCoordinator coordinator;
  coordinator.Start(0);
  Member member(coordinator.port());
  member.Await("open");
  for (const char* text : {"1", "elsewhere", "2", "nonsense"}) member->Send(Leaving{text});
  member.Await("refused 1");
  member.Await("refused 2");
  member.Await("lost");
  member.Await("open");
  member->Send(Leaving{"bye"});  // Close sends what is queued
  member->Close(kLong);
  REQUIRE(coordinator.has_left);
  coordinator.Stop();
}

TEST_CASE("wrong options are refused before anything is tried") {
  const auto fault = [](AttachOptions options) {
    auto client = WorkerAttach::Open(options, [](WorkerAttach::Event) {});
    return std::string(client.status().message());
  };
  AttachOptions options{.coordinator = "127.0.0.1:1", .name = "Big Worker"};
  REQUIRE(fault(options).find("name \"Big Worker\"") == 0);
  options.name = "w1";
  options.coordinator = "somewhere";
  REQUIRE(fault(options) == "address \"somewhere\": must be HOST:PORT or [IPV6]:PORT");
  options.coordinator = "10.0.0.1:4000";
  REQUIRE(fault(options).find("10.0.0.1:4000: plaintext is for loopback addresses only") == 0);
  options.tls.ca_path = "ca.pem";
  REQUIRE(fault(options) == "--tls-ca, --tls-cert and --tls-key must be given together");
  options.tls.cert_path = options.tls.key_path = "none.pem";
  REQUIRE(fault(options) == "--tls-ca ca.pem: cannot open: No such file or directory");
}

}  // namespace
}  // namespace atl
