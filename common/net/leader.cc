#include "common/net/leader.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr auto kSlice = std::chrono::milliseconds(50);

// One health check under way.
struct Probe {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> call;
  grpc::ByteBuffer reply;
  grpc::Status status;
};

// The checks of all addresses, which end with this object.
class Probes {
 public:
  ~Probes() {
    for (const auto& probe : probes_) probe->context.TryCancel();
    for (; under_way_ > 0; --under_way_) {
      void* tag;
      bool ok;
      queue_.Next(&tag, &ok);
    }
  }

  void Start(std::string address, std::shared_ptr<grpc::Channel> channel, Duration limit) {
    Probe& probe = *probes_.emplace_back(std::make_unique<Probe>());
    probe.address = std::move(address);
    probe.channel = std::move(channel);
    probe.context.set_deadline(std::chrono::system_clock::now() + limit);
    const grpc::Slice nothing;
    grpc::GenericStub stub(probe.channel);
    probe.call =
        stub.PrepareUnaryCall(&probe.context, kCheck, grpc::ByteBuffer(&nothing, 1), &queue_);
    probe.call->StartCall();
    probe.call->Finish(&probe.reply, &probe.status, &probe);
    ++under_way_;
  }

  // The next that ends; null: none is left, or `stop` says so.
  Probe* Next(const std::function<bool()>& stop) {
    while (under_way_ > 0 && !stop()) {
      void* tag;
      bool ok;
      const auto until = std::chrono::system_clock::now() + kSlice;
      if (queue_.AsyncNext(&tag, &ok, until) != grpc::CompletionQueue::GOT_EVENT) continue;
      --under_way_;
      return static_cast<Probe*>(tag);
    }
    return nullptr;
  }

 private:
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Probe>> probes_;
  int under_way_ = 0;
};

}  // namespace

std::vector<std::string> SplitAddresses(absl::string_view list) {
  return absl::StrSplit(list, ',');
}

absl::Status CheckAddresses(absl::string_view list) {
  const std::vector<std::string> addresses = SplitAddresses(list);
  for (const std::string& address : addresses) ATOLL_RETURN_IF_ERROR(CheckAddress(address));
  if (addresses.size() <= kMaxCoordinators) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("names ", addresses.size(), " addresses; at most ", kMaxCoordinators));
}

absl::StatusOr<LeaderChannel> OpenLeaderChannel(const TlsOptions& tls, const std::string& list,
                                                Duration limit, const std::function<bool()>& stop) {
  ATOLL_RETURN_IF_ERROR(CheckAddresses(list));
  const std::vector<std::string> addresses = SplitAddresses(list);
  if (addresses.size() == 1) {
    ATOLL_ASSIGN_OR_RETURN(auto channel, OpenChannel(tls, list));
    return LeaderChannel{list, std::move(channel)};
  }
  Probes probes;
  for (const std::string& address : addresses) {
    ATOLL_ASSIGN_OR_RETURN(const auto credentials, ClientCredentials(tls, address));
    probes.Start(
        address,
        OpenChannelWith(credentials, address, {kShortKeepaliveMs, kShortKeepaliveTimeoutMs}),
        limit);
  }
  std::vector<std::string> said;
  LeaderChannel refusing;  // where this end is not admitted, the call itself says so best
  while (Probe* const probe = probes.Next(stop)) {
    if (probe->status.ok()) return LeaderChannel{probe->address, probe->channel};
    const grpc::StatusCode code = probe->status.error_code();
    if (code == grpc::StatusCode::PERMISSION_DENIED ||
        code == grpc::StatusCode::UNAUTHENTICATED) {
      refusing = {probe->address, probe->channel};
    }
    said.push_back(absl::StrCat(probe->address, ": ", probe->status.error_message()));
  }
  if (refusing.channel != nullptr) return refusing;
  return absl::UnavailableError(
      absl::StrCat("no coordinator leads: ", absl::StrJoin(said, "; ")));
}

}  // namespace atl
