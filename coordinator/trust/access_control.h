// Decides of every handshake and every call who the caller is and whether he may, and keeps what it
// decides by: the registry in STATE_DIR/trust/registry, or where coordinators share it, the
// authority in that folder, if there is one, and the audit log. Thread-safe; changes are durable
// before a call returns and before any other call sees them, but for CURVE keys, which their owners
// send again (StoreNotes). Changes that come while the registry is written are written together
// after it, and decisions wait for no disk.

#ifndef ATOLL_COORDINATOR_TRUST_ACCESS_CONTROL_H_
#define ATOLL_COORDINATOR_TRUST_ACCESS_CONTROL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/group_commit.h"
#include "common/net/control/identity.h"
#include "common/net/control/tls.h"
#include "common/status.h"
#include "common/trust/authority.h"
#include "coordinator/trust/audit_log.h"
#include "coordinator/trust/known_certificates.h"
#include "coordinator/trust/registry.h"
#include "coordinator/trust/shared_value.h"

namespace grpc {
class AuthContext;
}

namespace atl {

// The caller.
struct Caller {
  std::optional<Identity> identity;  // nullopt: a plaintext connection, or a page of this process
  std::string key_digest;
  std::string curve_public_key;  // that its certificate names; empty: none
  std::string from;              // its address
  std::string page_user;         // of a page of this process: who uses it

  // "operator/me"; empty: without identity.
  std::string text() const;
};

// PEM of the certificate that the other end showed; empty: plaintext.
std::string GetPeerCertificate(const grpc::AuthContext& context);

class AccessControl {
 public:
  // `flags`: files of an authority made otherwise; empty: the folder's own, if it has one, else
  // plaintext. Certificates are made for `lifetime_s`.
  static absl::StatusOr<std::unique_ptr<AccessControl>> Open(const std::string& folder,
                                                             const TlsOptions& flags,
                                                             int64_t lifetime_s);

  // Makes the registry `value`'s from now on; where that has none, it gets this one. `value`
  // outlives all further calls.
  absl::Status Share(SharedValue* value);

  bool has_authority() const { return !authority_.certificate.empty(); }
  const std::string& cluster() const { return cluster_; }  // of the authority; empty: there is none
  const TlsOptions& tls() const { return tls_; }           // the coordinator's own files
  AuditLog& audit() { return audit_; }

  // ---- Decisions ----

  // Decides whether this certificate may make a connection: one that our authority signed, be it
  // expired or revoked, or a token's. What its owner may do is decided call by call, with a reason
  // that the owner gets.
  absl::Status Admit(const std::string& certificate);
  // Decides whether the holder of the certificate may make the call; what is denied is logged and
  // counted. `caller` gets its identity, if it has one.
  absl::Status CheckCall(const std::string& certificate, const std::string& from,
                         absl::string_view path, Caller* caller);
  // Returns who it is, allowed or not.
  Caller WhoIs(const std::string& certificate, const std::string& from);
  // Decides whether the caller may attach under this name; denials are logged and counted too.
  absl::Status CheckName(const Caller& caller, absl::string_view name);
  // Returns whether a call in progress may go on.
  Verdict StillAllowed(const std::string& certificate);
  // Grows when StillAllowed may say something else than before.
  int64_t revocations() const { return revocations_; }

  // ---- Changes ----

  absl::StatusOr<v1::CreateTokenReply> CreateToken(const Caller& by,
                                                   const v1::CreateTokenRequest& request);
  absl::StatusOr<v1::TrustToken> DeleteToken(const Caller& by, const std::string& id);
  absl::StatusOr<v1::JoinReply> Join(const Caller& joiner, const v1::JoinRequest& request);
  absl::StatusOr<std::string> Renew(const Caller& caller, const std::string& request);
  absl::StatusOr<std::vector<v1::TrustMember>> Revoke(const Caller& by,
                                                      const v1::RevokeRequest& request);
  void NoteCurveKey(const Caller& caller, const std::string& curve_public_key);
  // Makes CURVE keys durable that were noted since, if any were: many at once, where many members
  // attach.
  absl::Status StoreNotes();
  size_t changes_that_wait() const { return changes_.waiting(); }
  v1::TrustRecords records() const;
  v1::ClientKeys keys() const;
  v1::ClientKeys refused() const;  // the refused holders of keys() alone

  // Called after a change: of keys(), perhaps; of a subject's access, before Revoke returns. On any
  // thread. Set before the first call.
  std::function<void()> on_keys = [] {};
  std::function<void()> on_revoked = [] {};

  // Writes what an identified or local caller did, or failed to do.
  void Audit(const Caller& caller, const std::string& call, const std::string& target,
             const absl::Status& status);

 private:
  AccessControl(std::string folder, TlsOptions tls, int64_t lifetime_s);
  absl::Status Load(const TlsOptions& flags);
  absl::Status Write(const std::string& registry);
  Verdict Identify(const std::string& certificate, Caller* caller);
  void AuditDenial(const Caller& caller, absl::string_view call, absl::string_view target,
                   const Verdict& verdict);
  void AddToAudit(const Caller& caller, absl::string_view call, absl::string_view target,
                  v1::AuditEntry entry);
  absl::StatusOr<std::string> Sign(const Identity& identity, const std::string& request,
                                   const std::string& curve_public_key, int64_t until_unix_s);
  // Makes a change of the registry, which returns a Status or StatusOr, and makes it durable. One
  // that fails, or that cannot be stored, did not happen.
  template <class Make>
  auto Apply(Make make);
  // False: nothing is to be stored.
  using Change = std::function<bool(TrustRegistry&)>;
  absl::Status Store(const std::vector<Change*>& changes);

  const AuthorityFolder folder_;
  TlsOptions tls_;
  const int64_t lifetime_s_;
  KeyAndCertificate authority_;
  std::string cluster_;
  AuditLog audit_;
  std::atomic<int64_t> revocations_{0};
  KnownCertificates certificates_;
  GroupCommit<Change> changes_;
  std::mutex writing_;             // held while the registry is written; locked before mutex_
  SharedValue* shared_ = nullptr;  // null: the file; guarded by writing_
  mutable std::mutex mutex_;       // never held while anything is written
  TrustRegistry registry_;         // guarded by mutex_, as below
  bool notes_ = false;             // not stored yet
  // Noted since a write began; nullopt: none is under way that will replace the registry.
  std::optional<std::vector<std::pair<Identity, std::string>>> notes_meanwhile_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRUST_ACCESS_CONTROL_H_
