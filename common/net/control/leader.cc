#include "common/net/control/leader.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/net/control/reachability.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr auto kSlice = std::chrono::milliseconds(50);
constexpr auto kFirstPause = std::chrono::milliseconds(200);  // between checks of one address
constexpr auto kLongestPause = std::chrono::milliseconds(800);
constexpr int kReconnectMs = 300;

using Clock = std::chrono::system_clock;  // of gRPC's deadlines

// A health check of one address, in flight or to be repeated.
struct Probe {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<grpc::ClientContext> context;  // of the newest
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> call;
  grpc::ByteBuffer reply;
  grpc::Status status;
  bool under_way = false;
  Clock::time_point next;  // when it is to be made, if none is under way
  Clock::duration pause = kFirstPause;
};

// The checks of all addresses, which end with this object.
class Probes {
 public:
  explicit Probes(Clock::time_point until) : until_(until) {}
  ~Probes() {
    for (const auto& probe : probes_) {
      if (probe->under_way) probe->context->TryCancel();
    }
    while (Probe* const probe = Await(Clock::time_point::max())) probe->under_way = false;
  }

  void Add(std::string address, std::shared_ptr<grpc::Channel> channel) {
    Probe& probe = *probes_.emplace_back(std::make_unique<Probe>());
    probe.address = std::move(address);
    probe.channel = std::move(channel);
  }

  // Makes those that are due, and returns one that has ended, if any has within a slice of time.
  Probe* Next() {
    const auto now = Clock::now();
    for (const auto& probe : probes_) {
      if (!probe->under_way && probe->next <= now) Start(*probe);
    }
    Probe* const ended = Await(now + kSlice);
    if (ended == nullptr) return nullptr;
    ended->under_way = false;
    ended->next = Clock::now() + ended->pause;
    ended->pause = std::min<Clock::duration>(ended->pause * 3 / 2, kLongestPause);
    return ended;
  }

  // Returns the last answer of each address.
  std::string Said() const {
    std::vector<std::string> said;
    for (const auto& probe : probes_) {
      said.push_back(
          absl::StrCat(probe->address, ": ", SummarizeFailure(probe->status.error_message())));
    }
    return absl::StrJoin(said, "; ");
  }

 private:
  void Start(Probe& probe) {
    probe.context = std::make_unique<grpc::ClientContext>();
    probe.context->set_deadline(until_);
    const grpc::Slice nothing;
    grpc::GenericStub stub(probe.channel);
    probe.call =
        stub.PrepareUnaryCall(probe.context.get(), kCheck, grpc::ByteBuffer(&nothing, 1), &queue_);
    probe.call->StartCall();
    probe.call->Finish(&probe.reply, &probe.status, &probe);
    probe.under_way = true;
  }

  // One that has ended; null: none until then, or none is under way.
  Probe* Await(Clock::time_point until) {
    void* tag;
    bool ok;
    const bool any = std::any_of(probes_.begin(), probes_.end(),
                                 [](const auto& probe) { return probe->under_way; });
    if (!any && until == Clock::time_point::max()) return nullptr;
    const auto status = queue_.AsyncNext(&tag, &ok, until);
    return status == grpc::CompletionQueue::GOT_EVENT ? static_cast<Probe*>(tag) : nullptr;
  }

  const Clock::time_point until_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Probe>> probes_;
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
                                                Duration limit, const std::function<bool()>& stop,
                                                int keepalive_ms) {
  ATOLL_RETURN_IF_ERROR(CheckAddresses(list));
  const std::vector<std::string> addresses = SplitAddresses(list);
  if (addresses.size() == 1) {
    ATOLL_ASSIGN_OR_RETURN(auto channel, OpenChannel(tls, list, {.keepalive_ms = keepalive_ms}));
    return LeaderChannel{list, std::move(channel)};
  }
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
  Probes probes(until);
  const ChannelTimes times{kShortKeepaliveMs, kShortKeepaliveTimeoutMs, kReconnectMs};
  for (const std::string& address : addresses) {
    ATOLL_ASSIGN_OR_RETURN(const auto credentials, ClientCredentials(tls, address));
    probes.Add(address, OpenChannelWith(credentials, address, times));
  }
  LeaderChannel refusing;  // one that does not allow this end anything says so best by its call
  while (Clock::now() < until && !stop()) {
    const Probe* const probe = probes.Next();
    if (probe == nullptr) continue;
    if (probe->status.ok()) return LeaderChannel{probe->address, probe->channel};
    const grpc::StatusCode code = probe->status.error_code();
    if (code == grpc::StatusCode::PERMISSION_DENIED || code == grpc::StatusCode::UNAUTHENTICATED) {
      refusing = {probe->address, probe->channel};
    }
  }
  if (refusing.channel != nullptr) return refusing;
  return absl::UnavailableError(absl::StrCat("no coordinator leads: ", probes.Said()));
}

}  // namespace atl
