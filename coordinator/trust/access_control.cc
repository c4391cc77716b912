#include "coordinator/trust/access_control.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/files.h"
#include "common/logging.h"
#include "common/protocol/wire.h"
#include "common/trust/records.h"
#include "coordinator/authorization.h"

namespace atl {
namespace {

constexpr size_t kIdCharacters = 12;  // of a token's id, where it is displayed

int64_t Now() { return absl::ToUnixSeconds(absl::Now()); }

Verdict Unknown() {
  return {v1::TRUST_DENIAL_UNKNOWN_AUTHORITY,
          "the certificate is not of this cluster's authority, and no token's"};
}

// Members' names are node names; users' names may have dots and capitals.
absl::Status CheckJoinName(const std::string& role, const std::string& name) {
  const bool member = role == RoleName(Role::kWorker) || role == RoleName(Role::kParameterServer);
  return member ? CheckNodeName(name) : CheckUserName(name);
}

}  // namespace

std::string Caller::text() const { return identity.has_value() ? ToText(*identity) : page_user; }

std::string GetPeerCertificate(const grpc::AuthContext& context) {
  const auto found = context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return found.empty() ? "" : std::string(found[0].data(), found[0].size());
}

AccessControl::AccessControl(std::string folder, TlsOptions tls, int64_t lifetime_s)
    : folder_(folder),
      tls_(std::move(tls)),
      lifetime_s_(lifetime_s),
      audit_(&RealFiles(), std::move(folder)),
      changes_([this](const std::vector<Change*>& changes) { return Store(changes); }) {}

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Open(const std::string& folder,
                                                                   const TlsOptions& flags,
                                                                   int64_t lifetime_s) {
  auto access = std::unique_ptr<AccessControl>(new AccessControl(folder, flags, lifetime_s));
  ATOLL_RETURN_IF_ERROR(access->Load(flags));
  return access;
}

absl::Status AccessControl::Load(const TlsOptions& flags) {
  auto records = ReadTrustRecords(folder_.RegistryPath());
  if (records.ok()) {
    registry_ = TrustRegistry(*std::move(records));
  } else if (!absl::IsNotFound(records.status())) {
    return records.status();
  }
  const bool has_files =
      !flags.ca_path.empty() || !flags.cert_path.empty() || !flags.key_path.empty();
  if (has_files) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const bool has_authority, folder_.Exists());
  if (!has_authority) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(authority_, folder_.Read());
  ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(authority_.certificate));
  cluster_ = facts.cluster;
  ATOLL_RETURN_IF_ERROR(folder_.RenewCoordinator(Now()));
  tls_ = folder_.coordinator().tls();
  tls_.insecure = flags.insecure;
  return absl::OkStatus();
}

// REQUIRES: writing_ is held.
absl::Status AccessControl::Write(const std::string& registry) {
  if (shared_ != nullptr) return shared_->Write(registry);
  ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(folder_.path()));
  return WriteFileWithMode(folder_.RegistryPath(), registry, 0600);
}

absl::Status AccessControl::Share(SharedValue* value) {
  {
    const std::lock_guard writing(writing_);
    const std::lock_guard lock(mutex_);
    ATOLL_ASSIGN_OR_RETURN(const auto stored, value->Read());
    shared_ = value;
    if (!stored) {
      ATOLL_ASSIGN_OR_RETURN(const std::string registry, EncodeTrustRecords(registry_.records()));
      return Write(registry);
    }
    ATOLL_ASSIGN_OR_RETURN(v1::TrustRecords records,
                           DecodeTrustRecords("the registry of the --store", *stored));
    registry_ = TrustRegistry(std::move(records));
  }
  ++revocations_;
  return absl::OkStatus();
}

template <class Make>
auto AccessControl::Apply(Make make) {
  std::optional<decltype(make(registry_))> made;
  const absl::Status stored = changes_.Do([&](TrustRegistry& registry) {
    made.emplace(make(registry));
    return made->ok();
  });
  on_keys();
  return stored.ok() ? *std::move(made) : decltype(make(registry_))(stored);
}

absl::Status AccessControl::Store(const std::vector<Change*>& changes) {
  const std::lock_guard writing(writing_);
  TrustRegistry next;
  {
    const std::lock_guard lock(mutex_);
    next = registry_;
    notes_meanwhile_.emplace();
  }
  bool is_changed = false;
  for (Change* change : changes) is_changed = (*change)(next) || is_changed;
  absl::Status stored;
  if (is_changed) {
    const absl::StatusOr<std::string> encoded = EncodeTrustRecords(next.records());
    stored = encoded.ok() ? Write(*encoded) : encoded.status();
  }
  const std::lock_guard lock(mutex_);
  const auto noted = *std::exchange(notes_meanwhile_, std::nullopt);
  if (!is_changed || !stored.ok()) return stored;
  notes_ = false;
  for (const auto& [identity, key] : noted) notes_ = next.NoteCurveKey(identity, key) || notes_;
  registry_ = std::move(next);
  return absl::OkStatus();
}

absl::Status AccessControl::StoreNotes() {
  const std::lock_guard writing(writing_);
  std::string registry;
  {
    const std::lock_guard lock(mutex_);
    if (!notes_) return absl::OkStatus();
    ATOLL_ASSIGN_OR_RETURN(registry, EncodeTrustRecords(registry_.records()));
    notes_ = false;
  }
  const absl::Status stored = Write(registry);
  if (!stored.ok()) {
    const std::lock_guard lock(mutex_);
    notes_ = true;
  }
  return stored;
}

Verdict AccessControl::Identify(const std::string& certificate, Caller* caller) {
  const auto known = certificates_.Look(certificate, authority_.certificate);
  if (!known.ok()) return Unknown();
  const CertificateFacts& facts = (*known)->facts;
  caller->key_digest = facts.key_digest;
  caller->curve_public_key = facts.curve_public_key;
  const std::lock_guard lock(mutex_);
  if ((*known)->is_ours) {
    if (facts.identity.ok()) caller->identity = *facts.identity;
    return registry_.CheckCertificate(facts, Now());
  }
  // The role in a token's certificate is its maker's claim.
  const v1::TrustToken* token = registry_.FindToken(facts.key_digest);
  if (token == nullptr) return Unknown();
  caller->identity = Identity{Role::kJoiner, token->id().substr(0, kIdCharacters)};
  return {};
}

absl::Status AccessControl::Admit(const std::string& certificate) {
  Caller caller;
  const Verdict verdict = Identify(certificate, &caller);
  if (verdict.denial != v1::TRUST_DENIAL_UNKNOWN_AUTHORITY) return absl::OkStatus();
  AuditDenial(caller, "connect", "", verdict);
  return ToStatus(verdict);
}

absl::Status AccessControl::CheckCall(const std::string& certificate, const std::string& from,
                                      absl::string_view path, Caller* caller) {
  caller->from = from;
  if (certificate.empty()) return absl::OkStatus();
  Verdict verdict = Identify(certificate, caller);
  if (verdict.ok()) verdict = Authorize(*caller->identity, path);
  if (!verdict.ok()) {
    AuditDenial(*caller, path, "", verdict);
    return ToStatus(verdict);
  }
  if (!caller->curve_public_key.empty()) NoteCurveKey(*caller, caller->curve_public_key);
  return absl::OkStatus();
}

Caller AccessControl::WhoIs(const std::string& certificate, const std::string& from) {
  Caller caller;
  caller.from = from;
  if (!certificate.empty()) Identify(certificate, &caller);
  return caller;
}

absl::Status AccessControl::CheckName(const Caller& caller, absl::string_view name) {
  if (!caller.identity || CoversName(*caller.identity, name)) return absl::OkStatus();
  const Verdict verdict{v1::TRUST_DENIAL_NAME,
                        absl::StrCat("the certificate of ", caller.text(),
                                     " does not allow to attach as \"", name, "\"")};
  AuditDenial(caller, "Attach", name, verdict);
  return ToStatus(verdict);
}

Verdict AccessControl::StillAllowed(const std::string& certificate) {
  if (certificate.empty()) return {};
  Caller caller;
  return Identify(certificate, &caller);
}

absl::StatusOr<v1::CreateTokenReply> AccessControl::CreateToken(
    const Caller& by, const v1::CreateTokenRequest& request) {
  if (!has_authority()) {
    return absl::FailedPreconditionError(
        "this coordinator signs no certificates: `atoll init` makes an authority in its "
        "--state-dir; then start it without --tls-* flags");
  }
  const auto token = Apply(
      [&](TrustRegistry& registry) { return registry.CreateToken(request, by.text(), Now()); });
  Audit(by, "Trust/CreateToken",
        token.ok() ? absl::StrCat(token->id().substr(0, kIdCharacters), " for ",
                                  absl::StrJoin(token->roles(), ","))
                   : "",
        token.status());
  ATOLL_RETURN_IF_ERROR(token.status());
  v1::CreateTokenReply reply;
  *reply.mutable_token() = *token;
  return reply;
}

absl::StatusOr<v1::TrustToken> AccessControl::DeleteToken(const Caller& by, const std::string& id) {
  const auto token = Apply([&](TrustRegistry& registry) { return registry.DeleteToken(id); });
  Audit(by, "Trust/DeleteToken", id.substr(0, kIdCharacters), token.status());
  return token;
}

absl::StatusOr<std::string> AccessControl::Sign(const Identity& identity,
                                                const std::string& request,
                                                const std::string& curve_public_key,
                                                int64_t until_unix_s) {
  CertificateContents contents{identity, {}, curve_public_key};
  contents.from_unix_s = Now() - kBackdatedS;
  contents.until_unix_s = until_unix_s;
  return SignRequest(authority_, request, contents);
}

absl::StatusOr<v1::JoinReply> AccessControl::Join(const Caller& joiner,
                                                  const v1::JoinRequest& request) {
  const std::string who = absl::StrCat(request.role(), "/", request.name());
  if (!has_authority() || !joiner.identity || joiner.identity->role != Role::kJoiner) {
    return absl::FailedPreconditionError("joining takes a token, over TLS");
  }
  const auto join = [&]() -> absl::StatusOr<v1::JoinReply> {
    ATOLL_ASSIGN_OR_RETURN(const Role role, RoleFromName(request.role()));
    ATOLL_RETURN_IF_ERROR(CheckJoinName(request.role(), request.name()));
    v1::TrustMember member;
    member.set_role(request.role());
    member.set_name(request.name());
    ATOLL_ASSIGN_OR_RETURN(*member.mutable_key_digest(),
                           RequestKeyDigest(request.certificate_request()));
    member.set_curve_public_key(request.curve_public_key());
    member.set_issued_unix_s(Now());
    member.set_expires_unix_s(Now() + lifetime_s_);
    member.set_token(joiner.key_digest);
    v1::JoinReply reply;
    // Signed before the token is used up, given out after that is durable.
    ATOLL_ASSIGN_OR_RETURN(*reply.mutable_certificate(),
                           Sign({role, request.name()}, request.certificate_request(),
                                request.curve_public_key(), member.expires_unix_s()));
    reply.set_authority(authority_.certificate);
    Verdict verdict;
    const absl::Status joined = Apply([&](TrustRegistry& registry) {
      verdict = registry.Join(member, Now());
      return verdict.ok() ? absl::OkStatus() : ToStatus(verdict);
    });
    if (!verdict.ok()) AuditDenial(joiner, "Trust/Join", who, verdict);
    ATOLL_RETURN_IF_ERROR(joined);
    return reply;
  };
  absl::StatusOr<v1::JoinReply> reply = join();
  if (reply.ok()) {
    Audit(joiner, "Trust/Join", who, absl::OkStatus());
    LogInfo("access", who, " has joined from ", joiner.from, " with token ", joiner.identity->name);
  }
  return reply;
}

absl::StatusOr<std::string> AccessControl::Renew(const Caller& caller, const std::string& request) {
  if (!has_authority() || !caller.identity) {
    return absl::FailedPreconditionError("this coordinator signs no certificates");
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string digest, RequestKeyDigest(request));
  if (!EqualSecrets(digest, caller.key_digest)) {
    return absl::InvalidArgumentError("a certificate is renewed for its own key only");
  }
  std::string curve;
  {
    const std::lock_guard lock(mutex_);
    curve = registry_.FindCurveKey(*caller.identity);
  }
  const int64_t until = Now() + lifetime_s_;
  ATOLL_ASSIGN_OR_RETURN(const std::string certificate,
                         Sign(*caller.identity, request, curve, until));
  ATOLL_RETURN_IF_ERROR(Apply([&](TrustRegistry& registry) {
    registry.NoteRenewal(*caller.identity, until);
    return absl::OkStatus();
  }));
  const absl::Status own = folder_.RenewCoordinator(Now());
  if (!own.ok()) LogWarning("access", "its own certificate is not renewed: ", own.message());
  Audit(caller, "Trust/Renew", caller.text(), absl::OkStatus());
  return certificate;
}

absl::StatusOr<std::vector<v1::TrustMember>> AccessControl::Revoke(
    const Caller& by, const v1::RevokeRequest& request) {
  const std::string who = by.text().empty() ? "a plaintext connection" : by.text();
  const auto revoked = Apply([&](TrustRegistry& registry) {
    return registry.Revoke(request.name(), request.role(), who, Now());
  });
  Audit(by, "Trust/Revoke",
        request.role().empty() ? request.name() : absl::StrCat(request.role(), "/", request.name()),
        revoked.status());
  if (!revoked.ok()) return revoked;
  ++revocations_;
  LogWarning("access", request.name(), " is revoked by ", who);
  on_revoked();
  return revoked;
}

void AccessControl::NoteCurveKey(const Caller& caller, const std::string& curve_public_key) {
  if (!caller.identity || caller.identity->role == Role::kJoiner) return;
  {
    const std::lock_guard lock(mutex_);
    if (!registry_.NoteCurveKey(*caller.identity, curve_public_key)) return;
    notes_ = true;
    if (notes_meanwhile_) notes_meanwhile_->emplace_back(*caller.identity, curve_public_key);
  }
  on_keys();
}

v1::TrustRecords AccessControl::records() const {
  const std::lock_guard lock(mutex_);
  return registry_.records();
}

v1::ClientKeys AccessControl::keys() const {
  const std::lock_guard lock(mutex_);
  v1::ClientKeys keys = registry_.Keys();
  *keys.mutable_refused() = registry_.Refused(Now());
  return keys;
}

v1::ClientKeys AccessControl::refused() const {
  v1::ClientKeys keys;
  const std::lock_guard lock(mutex_);
  *keys.mutable_refused() = registry_.Refused(Now());
  return keys;
}

void AccessControl::Audit(const Caller& caller, const std::string& call, const std::string& target,
                          const absl::Status& status) {
  v1::AuditEntry entry;
  entry.set_done(status.ok());
  if (!status.ok()) entry.set_reason(std::string(status.message()));
  AddToAudit(caller, call, target, std::move(entry));
}

void AccessControl::AuditDenial(const Caller& caller, absl::string_view call,
                                absl::string_view target, const Verdict& verdict) {
  v1::AuditEntry entry;
  entry.set_denial(verdict.denial);
  entry.set_reason(verdict.reason);
  AddToAudit(caller, absl::StripPrefix(call, "/atl.v1."), target, std::move(entry));
  LogWarning("access", "denied: ", caller.from, caller.from.empty() ? "" : " ", call, ": ",
             DenialName(verdict.denial), ": ", verdict.reason);
}

void AccessControl::AddToAudit(const Caller& caller, absl::string_view call,
                               absl::string_view target, v1::AuditEntry entry) {
  entry.set_who(caller.text());
  entry.set_from(caller.from);
  entry.set_call(std::string(call));
  entry.set_target(std::string(target));
  const absl::Status written = audit_.Add(std::move(entry));
  if (!written.ok()) LogWarning("access", "the audit log lacks an entry: ", written.message());
}

}  // namespace atl
