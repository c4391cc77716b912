#include "common/trust/member_access.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/files.h"
#include "common/logging.h"
#include "common/net/control/grpc_status.h"
#include "common/net/control/leader.h"
#include "common/trust/token.h"
#include "proto/trust.grpc.pb.h"

namespace atl {
namespace {

constexpr auto kCallLimit = std::chrono::seconds(10);
constexpr auto kLeaderLimit = std::chrono::seconds(5);
constexpr auto kTryAgain = std::chrono::seconds(1);
constexpr Duration kJoinPatience = std::chrono::seconds(60);
constexpr int64_t kRenewLatestS = 3600;  // between two tries

// One call; UNAVAILABLE without an answer, or the token is not known there.
absl::StatusOr<v1::JoinReply> CallJoin(const JoinAddress& to, const v1::JoinRequest& request) {
  absl::Status said;
  for (const std::string& address : SplitAddresses(to.coordinator)) {
    ATOLL_ASSIGN_OR_RETURN(const auto credentials, JoinCredentials(to.token, address));
    const auto stub = v1::Trust::NewStub(OpenChannelWith(credentials, address));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    v1::JoinReply reply;
    const grpc::Status status = stub->Join(&context, request, &reply);
    if (status.ok()) return reply;
    said = Annotate(FromGrpc(status), address);
    if (!absl::IsUnavailable(said)) break;  // else it may be a standby
  }
  return said;
}

// A folder that says who it is must say what the flags do.
absl::Status CheckFolder(const Identity& self, const IdentityFolder& folder,
                         const CertificateFacts& facts) {
  ATOLL_RETURN_IF_ERROR(Annotate(facts.identity.status(), folder.path()));
  if (facts.identity->role == self.role && CoversName(*facts.identity, self.name)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      folder.path(), ": holds the certificate of ", ToText(*facts.identity), ", not of ",
      ToText(self), "; delete the folder and join again to change the name"));
}

// A stop that a thread waits for.
class Stopper {
 public:
  // Waits for so long; returns whether to go on.
  bool Wait(Duration time) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, time, [&] { return stopped_; });
  }
  void Stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.notify_all();
  }
  // Sets the context of the call under way, which Stop cancels. False: stopped already.
  bool SetContext(grpc::ClientContext* context) {
    const std::lock_guard lock(mutex_);
    context_ = context;
    return !stopped_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;  // guarded by mutex_, as below
  grpc::ClientContext* context_ = nullptr;
};

absl::Status RenewWith(const IdentityFolder& folder, const std::string& coordinator,
                       Stopper* stopper) {
  ATOLL_ASSIGN_OR_RETURN(const IdentityFolder::Keys keys, folder.MakeKeys());
  ATOLL_ASSIGN_OR_RETURN(const LeaderChannel leader,
                         OpenLeaderChannel(folder.tls(), coordinator, kCallLimit));
  const auto stub = v1::Trust::NewStub(leader.channel);
  v1::RenewRequest request;
  ATOLL_ASSIGN_OR_RETURN(*request.mutable_certificate_request(), MakeRequest(keys.key));
  v1::RenewReply reply;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
  if (!stopper->SetContext(&context)) return absl::CancelledError("the daemon ends");
  const grpc::Status status = stub->Renew(&context, request, &reply);
  stopper->SetContext(nullptr);
  ATOLL_RETURN_IF_ERROR(FromGrpc(status));
  ATOLL_ASSIGN_OR_RETURN(const std::string authority, ReadPemFile(folder.tls().ca_path));
  if (!IsSignedBy(reply.certificate(), authority)) {
    return absl::DataLossError("the renewed certificate is not of our authority");
  }
  ATOLL_RETURN_IF_ERROR(folder.ReplaceCertificate(reply.certificate()));
  ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, folder.Certificate());
  LogInfo("trust", "the certificate is renewed; it is valid until ", FormatUtc(facts.until_unix_s));
  return absl::OkStatus();
}

}  // namespace

absl::Status RenewCertificate(const IdentityFolder& folder, const std::string& coordinator) {
  Stopper never;
  return RenewWith(folder, coordinator, &never);
}

absl::Status Join(const Identity& self, const IdentityFolder& folder, const std::string& join,
                  Duration patience) {
  const auto parsed = ParseJoinAddress(join);
  if (!parsed.ok()) return Annotate(parsed.status(), "--join");
  ATOLL_RETURN_IF_ERROR(Annotate(CheckAddresses(parsed->coordinator), "--join"));
  ATOLL_ASSIGN_OR_RETURN(const IdentityFolder::Keys keys, folder.MakeKeys());
  v1::JoinRequest request;
  request.set_role(std::string(RoleName(self.role)));
  request.set_name(self.name);
  ATOLL_ASSIGN_OR_RETURN(*request.mutable_certificate_request(), MakeRequest(keys.key));
  request.set_curve_public_key(keys.curve_public_key);
  const auto limit = std::chrono::steady_clock::now() + patience;
  absl::StatusOr<v1::JoinReply> reply = CallJoin(*parsed, request);
  if (absl::IsUnavailable(reply.status())) {
    LogInfo("trust", "cannot join at ", parsed->coordinator, " yet; tries for up to ",
            std::chrono::ceil<std::chrono::seconds>(patience).count(), " s");
  }
  while (absl::IsUnavailable(reply.status()) && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(kTryAgain);
    reply = CallJoin(*parsed, request);
  }
  if (absl::IsUnavailable(reply.status())) {
    return absl::UnavailableError(absl::StrCat(
        "--join: cannot join at ", parsed->coordinator,
        ": it does not answer, or does not know this token (it may be of another cluster, deleted, "
        "or long expired): ",
        reply.status().message()));
  }
  if (!reply.ok()) return Annotate(reply.status(), "--join");
  const auto authority = ReadCertificate(reply->authority());
  if (!authority.ok() || !EqualSecrets(authority->fingerprint, parsed->token.fingerprint) ||
      !IsSignedBy(reply->certificate(), reply->authority())) {
    return absl::DataLossError("--join: the coordinator's answer is not of the token's authority");
  }
  ATOLL_RETURN_IF_ERROR(folder.Store(reply->authority(), reply->certificate()));
  LogInfo("trust", "joined cluster ", authority->cluster, " as ", ToText(self), ": ",
          folder.path());
  return absl::OkStatus();
}

namespace {

// Returns whether the coordinator has revoked this certificate's holder. False also where that
// cannot be learnt now.
bool IsRevoked(const IdentityFolder& folder, const std::string& coordinator) {
  const auto leader = OpenLeaderChannel(folder.tls(), coordinator, kLeaderLimit);
  if (!leader.ok()) return false;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kLeaderLimit);
  v1::RenewReply reply;
  // A caller without access gets the reason before the request is read; this one is empty.
  const grpc::Status status =
      v1::Trust::NewStub(leader->channel)->Renew(&context, v1::RenewRequest(), &reply);
  return absl::StartsWith(status.error_message(), "revoked: ");
}

IdentityFolder Replacement(const IdentityFolder& folder) {
  return IdentityFolder(folder.path() + ".new");
}

// Puts a complete replacement in the folder's place, which is kept beside until the next one.
absl::Status EndReplacement(const IdentityFolder& folder) {
  const IdentityFolder fresh = Replacement(folder);
  ATOLL_ASSIGN_OR_RETURN(const bool complete, fresh.Exists());
  if (!complete) return absl::OkStatus();
  const std::string former = folder.path() + ".former";
  ATOLL_ASSIGN_OR_RETURN(const bool there, folder.Exists());
  if (there) {
    std::error_code error;
    std::filesystem::remove_all(former, error);  // the rename fails where it stays
    ATOLL_RETURN_IF_ERROR(RealFiles().Rename(folder.path(), former));
  }
  return RealFiles().Rename(fresh.path(), folder.path());
}

// The keys of a revoked member admit no member any more, so all are made anew.
absl::Status JoinWithNewKeys(const Identity& self, const IdentityFolder& folder,
                             const std::string& join) {
  LogWarning("trust", folder.path(), ": its certificate was revoked; joins again, with new keys");
  ATOLL_RETURN_IF_ERROR(Join(self, Replacement(folder), join, kJoinPatience));
  return EndReplacement(folder);
}

}  // namespace

absl::Status EnterCluster(const Identity& self, const IdentityFolder& folder,
                          const std::string& join, const AccessFlags& access) {
  const TlsOptions& flags = *access.tls;
  const bool has_files =
      !flags.ca_path.empty() || !flags.cert_path.empty() || !flags.key_path.empty();
  if (has_files && !join.empty()) {
    return absl::InvalidArgumentError("--join gets the files that --tls-* name: give one of both");
  }
  if (has_files) return absl::OkStatus();
  JoinAddress to;
  if (!join.empty()) {
    auto parsed = ParseJoinAddress(join);
    if (!parsed.ok()) return Annotate(parsed.status(), "--join");
    to = *std::move(parsed);
    *access.coordinator = to.coordinator;
  }
  ATOLL_RETURN_IF_ERROR(EndReplacement(folder));
  ATOLL_ASSIGN_OR_RETURN(const bool there, folder.Exists());
  if (there) {
    ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, folder.Certificate());
    ATOLL_RETURN_IF_ERROR(CheckFolder(self, folder, facts));
    ATOLL_ASSIGN_OR_RETURN(const CertificateFacts authority, folder.Authority());
    if (!join.empty() && authority.fingerprint != to.token.fingerprint) {
      return absl::InvalidArgumentError(
          absl::StrCat("--join: the token is of another cluster than ", folder.path(),
                       ", which is of ", authority.cluster, "; delete that folder to change"));
    }
    const int64_t now = absl::ToUnixSeconds(absl::Now());
    if (!join.empty() && (facts.until_unix_s < now || now < facts.from_unix_s)) {
      absl::Status joined = Join(self, folder, join, kJoinPatience);
      // Revoked, too: with the same keys it is not let in.
      if (absl::StrContains(joined.message(), ": revoked: ")) {
        joined = JoinWithNewKeys(self, folder, join);
      }
      ATOLL_RETURN_IF_ERROR(joined);
    } else if (!join.empty() && IsRevoked(folder, to.coordinator)) {
      ATOLL_RETURN_IF_ERROR(JoinWithNewKeys(self, folder, join));
    }
  } else if (!join.empty()) {
    ATOLL_RETURN_IF_ERROR(Join(self, folder, join, kJoinPatience));
  } else {
    return absl::OkStatus();
  }
  const bool insecure = flags.insecure;
  *access.tls = folder.tls();
  access.tls->insecure = insecure;
  if (access.curve_key_path->empty()) *access.curve_key_path = folder.curve_key_path();
  return absl::OkStatus();
}

class CertificateRenewer::Impl {
 public:
  Impl(IdentityFolder folder, std::string coordinator)
      : folder_(std::move(folder)),
        coordinator_(std::move(coordinator)),
        thread_([this] { Run(); }) {}
  ~Impl() {
    stopper_.Stop();
    thread_.join();
  }

 private:
  void Run() {
    while (stopper_.Wait(TimeToRenewal())) {
      if (TimeToRenewal() > std::chrono::seconds(0)) continue;
      const absl::Status status = RenewWith(folder_, coordinator_, &stopper_);
      if (!status.ok()) {
        LogWarning("trust", "the certificate was not renewed: ", status.message());
        if (!stopper_.Wait(TimeToNextTry())) return;
      }
    }
  }

  static int64_t Now() { return absl::ToUnixSeconds(absl::Now()); }

  std::chrono::milliseconds TimeToRenewal() const {
    const auto facts = folder_.Certificate();
    if (!facts.ok()) return std::chrono::seconds(kRenewLatestS);
    const int64_t issued = facts->from_unix_s + kBackdatedS;
    const int64_t half = (facts->until_unix_s - issued) / 2;
    // A coordinator whose clock was ahead signed what begins later than now.
    const int64_t left = facts->from_unix_s > Now() ? 0 : issued + half - Now();
    // Looks again before long: this clock may be set meanwhile.
    return std::chrono::seconds(std::clamp<int64_t>(left, 0, kRenewLatestS));
  }

  // More often towards the end.
  std::chrono::milliseconds TimeToNextTry() const {
    const auto facts = folder_.Certificate();
    const int64_t left =
        facts.ok() && facts->from_unix_s <= Now() ? facts->until_unix_s - Now() : kRenewLatestS;
    return std::chrono::seconds(std::clamp<int64_t>(left / 20, 1, kRenewLatestS));
  }

  const IdentityFolder folder_;
  const std::string coordinator_;
  Stopper stopper_;
  std::thread thread_;  // last: it uses all of the above
};

CertificateRenewer::CertificateRenewer(IdentityFolder folder, std::string coordinator)
    : impl_(std::make_unique<Impl>(std::move(folder), std::move(coordinator))) {}
CertificateRenewer::~CertificateRenewer() = default;

std::unique_ptr<CertificateRenewer> StartRenewer(const IdentityFolder& folder,
                                                 const TlsOptions& in_use,
                                                 const std::string& coordinator) {
  if (in_use.cert_path != folder.tls().cert_path) return nullptr;
  return std::make_unique<CertificateRenewer>(folder, coordinator);
}

}  // namespace atl
