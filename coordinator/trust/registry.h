// Who may be in the cluster: join tokens, members that have joined, members that are revoked. Pure;
// the caller gives the time and keeps records() durable before it acts on a change.
// proto/trust.proto has the records.

#ifndef ATOLL_COORDINATOR_TRUST_REGISTRY_H_
#define ATOLL_COORDINATOR_TRUST_REGISTRY_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/trust/pki.h"
#include "proto/keys.pb.h"
#include "proto/trust.pb.h"

namespace atl {

// A verdict: whether something is allowed, and if not, why.
struct Verdict {
  v1::TrustDenial denial = v1::TRUST_DENIAL_UNSPECIFIED;
  std::string reason;
  bool ok() const { return denial == v1::TRUST_DENIAL_UNSPECIFIED; }
};

// "revoked", "token_used": the word that a message of a refusal begins with.
std::string DenialName(v1::TrustDenial denial);
// UNAUTHENTICATED where the caller is not who he says, PERMISSION_DENIED where he may not; the
// message is the word and the reason.
absl::Status ToStatus(const Verdict& verdict);

class TrustRegistry {
 public:
  explicit TrustRegistry(v1::TrustRecords records = {});

  const v1::TrustRecords& records() const { return records_; }

  // ---- Decisions ----

  // Judges a certificate that the authority has signed.
  Verdict CheckCertificate(const CertificateFacts& facts, int64_t now_unix_s) const;
  // Finds such a token, be it used up or expired; null: it is not known.
  const v1::TrustToken* FindToken(const std::string& key_digest) const;
  // Judges whether the token is still valid for joining in this role.
  Verdict CheckToken(const std::string& key_digest, const std::string& role,
                     int64_t now_unix_s) const;

  // Returns the CURVE key of a member; empty: it has none, or is not known.
  std::string FindCurveKey(const Identity& identity) const;

  // ---- Changes ----

  absl::StatusOr<v1::TrustToken> CreateToken(const v1::CreateTokenRequest& request,
                                             const std::string& by, int64_t now_unix_s);
  // Deletes a token by its id or a beginning of it.
  absl::StatusOr<v1::TrustToken> DeleteToken(const std::string& id);

  // Lets a member in under its token and keys, which no other member has. The same key and token
  // may come again, and use nothing up. `member` has role, name, both keys, the token and the
  // dates.
  Verdict Join(const v1::TrustMember& member, int64_t now_unix_s);
  // Its certificate was renewed.
  void NoteRenewal(const Identity& identity, int64_t until_unix_s);
  // The CURVE key of a member whose certificate was made otherwise. False: nothing changed, also
  // where the key is another member's or revoked.
  bool NoteCurveKey(const Identity& identity, const std::string& curve_public_key);

  // Ends the access of a name, in one role or, with an empty one, in all that it has joined as.
  absl::StatusOr<std::vector<v1::TrustMember>> Revoke(const std::string& name,
                                                      const std::string& role,
                                                      const std::string& by, int64_t now_unix_s);

  // Returns who may use tensor links; `refused` is left out.
  v1::ClientKeys Keys() const;
  // Whose certificates are refused although they have not expired, for members that serve others.
  google::protobuf::RepeatedPtrField<v1::RefusedHolder> Refused(int64_t now_unix_s) const;

 private:
  const v1::TrustMember* Find(absl::string_view role, const std::string& name) const;
  v1::TrustMember* Find(absl::string_view role, const std::string& name);
  v1::TrustMember* Add(absl::string_view role, const std::string& name);
  void Prune(int64_t now_unix_s);
  void PruneMembers(int64_t now_unix_s);
  using MemberKey = std::pair<std::string, std::string>;  // role and name
  void IndexMembers();
  bool OwnsCurveKey(const MemberKey& member, const std::string& key) const;
  // Returns why the member may not use the key; empty: it may. A key is one member's, and a revoked
  // one no member's.
  std::string CurveKeyProblem(const MemberKey& member, const std::string& key) const;
  void RevokeCurveKey(const MemberKey& member, const std::string& key);

  v1::TrustRecords records_;
  std::map<MemberKey, int> indices_;                   // of members
  std::map<std::string, MemberKey> curve_key_owners_;  // of members that are not revoked
  std::set<int> revoked_;                              // indices of members that are or were
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRUST_REGISTRY_H_
