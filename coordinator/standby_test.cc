// Several coordinators of one etcd, over loopback: one leads, the others stand by and take over.

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/http/testing/http_get.h"
#include "common/net/control/attach_client.h"
#include "common/net/control/leader.h"
#include "common/trust/authority.h"
#include "coordinator/etcd/testing/etcd_server.h"
#include "coordinator/server.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/trust.grpc.pb.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

constexpr auto kLong = testing::kHangLimit;

EtcdServer& Server() {
  static EtcdServer server;
  return server;
}

// A coordinator in this process.
class Coordinator {
 public:
  // `trust`: a folder of an authority, of which it gets a copy; empty: none.
  explicit Coordinator(const std::string& url, const std::string& trust = "") {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.http_listen = "127.0.0.1:0";
    options.state_dir = absl::StrCat(std::getenv("TEST_TMPDIR"), "/standby-XXXXXX");
    REQUIRE(mkdtemp(options.state_dir.data()) != nullptr);
    options.store = url;
    if (!trust.empty()) {
      std::filesystem::copy(trust, options.state_dir + "/trust",
                            std::filesystem::copy_options::recursive);
    }
    auto server = CoordinatorServer::Start(options);
    INFO(server.status().ToString());
    REQUIRE(server.ok());
    server_ = *std::move(server);
    address = server_->address();
    page_url = server_->page_url();
    thread_ = std::thread([this] { status_ = server_->Run(); });
  }
  ~Coordinator() {
    if (server_ != nullptr) CHECK(End().ok());
  }
  // Says how it ended.
  absl::Status End() {
    server_->Stop();
    thread_.join();
    server_.reset();
    return status_;
  }

  // Returns the answer to a call to this address.
  grpc::Status Call(v1::ClusterStatus* reply) const {
    const auto stub = v1::Status::NewStub(OpenChannel({}, address).value());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kLong);
    return stub->Get(&context, v1::StatusRequest(), reply);
  }
  // Waits until it says this.
  bool Says(const std::string& text) const {
    const auto until = std::chrono::steady_clock::now() + kLong;
    while (std::chrono::steady_clock::now() < until) {
      v1::ClusterStatus reply;
      const grpc::Status status = Call(&reply);
      if (absl::StrContains(status.error_message(), text)) {
        return status.error_code() == grpc::StatusCode::UNAVAILABLE;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }

  std::string address, page_url;

 private:
  std::unique_ptr<CoordinatorServer> server_;
  std::thread thread_;
  absl::Status status_;
};

// The address in the list that leads, and its epoch.
std::pair<std::string, int64_t> Leader(const std::string& list, const TlsOptions& tls = {}) {
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (std::chrono::steady_clock::now() < until) {
    const auto leader = OpenLeaderChannel(tls, list, kLong);
    if (!leader.ok()) continue;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kLong);
    v1::ClusterStatus reply;
    if (v1::Status::NewStub(leader->channel)->Get(&context, v1::StatusRequest(), &reply).ok()) {
      return {leader->address, reply.epoch()};
    }
  }
  return {};
}

TEST_CASE("standby_names_the_leader_and_takes_over_with_a_higher_epoch") {
  const std::string url = Server().FreshUrl();
  Coordinator first(url);
  REQUIRE(Leader(first.address) == std::pair(first.address, int64_t{1}));
  Coordinator second(url);
  const std::string list = absl::StrCat(second.address, ",", first.address);
  CHECK(second.Says(absl::StrCat("the leader is ", first.address)));
  const HttpAnswer page = HttpGet(second.page_url + "/");
  CHECK(page.status == 307);
  CHECK(absl::StrContains(page.body, first.page_url));
  CHECK(Leader(list).first == first.address);
  REQUIRE(first.End().ok());
  CHECK(Leader(list) == std::pair(second.address, int64_t{2}));
  CHECK(HttpGet(second.page_url + "/").status == 200);
  CHECK(second.End().ok());
}

TEST_CASE("over_tls_a_revocation_holds_whichever_coordinator_leads") {
  std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/trust-XXXXXX");
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const AuthorityFolder authority(folder + "/authority");
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  REQUIRE(authority.Make("0123456789abcdef", {"127.0.0.1"}, now).ok());
  const auto person = [&](const std::string& name) {
    const IdentityFolder own(folder + "/" + name);
    REQUIRE(authority.Issue({Role::kOperator, name}, own, now, 3600).ok());
    return own.tls();
  };
  const TlsOptions me = person("me"), other = person("other");
  const std::string url = Server().FreshUrl();
  Coordinator first(url, authority.path());
  Leader(first.address, me);
  Coordinator second(url, authority.path());
  const std::string list = absl::StrCat(second.address, ",", first.address);
  REQUIRE(Leader(list, me).first == first.address);
  REQUIRE(Leader(list, other).first == first.address);
  {
    const auto leader = OpenLeaderChannel(me, list, kLong).value();
    grpc::ClientContext context;
    v1::RevokeRequest request;
    request.set_name("other");
    request.set_role("operator");
    v1::RevokeReply reply;
    const grpc::Status status =
        v1::Trust::NewStub(leader.channel)->Revoke(&context, request, &reply);
    INFO(status.error_message());
    REQUIRE(status.ok());
  }
  REQUIRE(first.End().ok());
  REQUIRE(Leader(list, me).first == second.address);
  // Another coordinator might allow it: the search for the leader ends at its limit.
  const auto call = [&](std::chrono::nanoseconds limit) {
    const auto found = OpenLeaderChannel(other, list, limit);
    if (!found.ok()) return grpc::StatusCode::UNAVAILABLE;
    grpc::ClientContext context;
    v1::ClusterStatus reply;
    return v1::Status::NewStub(found->channel)
        ->Get(&context, v1::StatusRequest(), &reply)
        .error_code();
  };
  const auto is_denied = [](grpc::StatusCode code) {
    return code == grpc::StatusCode::PERMISSION_DENIED;
  };
  CHECK(is_denied(testing::WithGrowingLimit(std::chrono::seconds(1), call, is_denied)));
}

TEST_CASE("standby_can_be_ended") {
  const std::string url = Server().FreshUrl();
  Coordinator first(url);
  Leader(first.address);
  Coordinator second(url);
  CHECK(second.End().ok());
  CHECK(Leader(first.address).second == 1);
}

TEST_CASE("member_with_a_list_attaches_to_the_leader_and_follows_it") {
  const std::string url = Server().FreshUrl();
  Coordinator first(url);
  Leader(first.address);
  Coordinator second(url);
  std::mutex mutex;
  std::condition_variable changed;
  bool opened = false;  // guarded by mutex, as below
  int64_t epoch = 0;    // of the newest message
  AttachOptions options;
  options.coordinator = absl::StrCat(second.address, ",", first.address);
  options.name = "w1";
  options.incarnation = 7;
  const auto client = WorkerAttach::Open(options, [&](WorkerAttach::Event event) {
                        const std::lock_guard lock(mutex);
                        if (std::holds_alternative<AttachOpened>(event)) opened = true;
                        if (const auto* message = std::get_if<ToWorker>(&event)) {
                          epoch = message->epoch;
                        }
                        changed.notify_all();
                      }).value();
  // Says hello wherever a stream opens.
  const auto await_epoch = [&](int64_t wanted) {
    const auto until = std::chrono::steady_clock::now() + kLong;
    std::unique_lock lock(mutex);
    while (epoch != wanted) {
      if (!changed.wait_until(lock, until, [&] { return opened || epoch == wanted; })) return false;
      if (std::exchange(opened, false)) client->Send(WorkerHello{});
    }
    return true;
  };
  CHECK(await_epoch(1));
  REQUIRE(first.End().ok());
  CHECK(await_epoch(2));
  client->Close(std::chrono::seconds(1));
}

}  // namespace
}  // namespace atl
