#include "coordinator/trust/registry.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace atl {
namespace {

constexpr int kTokensMax = 1000;
constexpr int kMembersMax = 20'000;
constexpr int kRevokedKeysMax = 20'000;
constexpr int kUsesMax = 10'000;
constexpr int64_t kTtlDefaultS = 3600;
constexpr int64_t kTtlMaxS = 30 * 86400;
// An expired token is known for so long, and its holder is given the reason.
constexpr int64_t kKeptAfterExpiryS = 86400;
constexpr size_t kDigestCharacters = 64;
// A member whose certificate has expired can no longer renew it; its name is kept for so long.
constexpr int64_t kMemberKeptAfterExpiryS = 30 * 86400;
constexpr size_t kCurveKeyCharacters = 40;
constexpr absl::string_view kZ85Alphabet =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

// When the last certificate of the role and name expires; 0: not known.
int64_t LastExpiry(const v1::TrustMember& member) {
  if (member.former_revoked_unix_s() == 0) return member.expires_unix_s();
  if (member.expires_unix_s() == 0 || member.former_expires_unix_s() == 0) return 0;
  return std::max(member.expires_unix_s(), member.former_expires_unix_s());
}

// That `former` was revoked, now or before, also where it joins again.
void KeepRevocation(const v1::TrustMember& former, v1::TrustMember* joined) {
  joined->set_former_revoked_unix_s(former.former_revoked_unix_s());
  joined->set_former_revoked_by(former.former_revoked_by());
  joined->set_former_expires_unix_s(former.former_expires_unix_s());
  if (former.revoked_unix_s() == 0) return;
  joined->set_former_revoked_unix_s(former.revoked_unix_s());
  joined->set_former_revoked_by(former.revoked_by());
  joined->set_former_expires_unix_s(LastExpiry(former));
}

bool IsDigest(absl::string_view text) {
  return text.size() == kDigestCharacters && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool IsCurveKey(absl::string_view text) {
  return text.size() == kCurveKeyCharacters &&
         text.find_first_not_of(kZ85Alphabet) == absl::string_view::npos;
}

template <class List>
bool Contains(const List& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

std::string DenialName(v1::TrustDenial denial) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::TrustDenial_Name(denial), "TRUST_DENIAL_"));
}

absl::Status ToStatus(const Verdict& verdict) {
  if (verdict.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat(DenialName(verdict.denial), ": ", verdict.reason);
  switch (verdict.denial) {
    case v1::TRUST_DENIAL_NO_ROLE:
    case v1::TRUST_DENIAL_EXPIRED:
    case v1::TRUST_DENIAL_UNKNOWN_AUTHORITY:
    case v1::TRUST_DENIAL_TOKEN_UNKNOWN:
    case v1::TRUST_DENIAL_TOKEN_EXPIRED:
      return absl::UnauthenticatedError(text);
    default:
      return absl::PermissionDeniedError(text);
  }
}

TrustRegistry::TrustRegistry(v1::TrustRecords records) : records_(std::move(records)) {
  IndexMembers();
}

void TrustRegistry::IndexMembers() {
  indices_.clear();
  curve_key_owners_.clear();
  revoked_.clear();
  for (int i = 0; i < records_.members_size(); ++i) {
    const v1::TrustMember& member = records_.members(i);
    indices_[{member.role(), member.name()}] = i;
    if (member.revoked_unix_s() == 0) {
      curve_key_owners_[member.curve_public_key()] = {member.role(), member.name()};
    }
    if (member.revoked_unix_s() != 0 || member.former_revoked_unix_s() != 0) revoked_.insert(i);
  }
}

Verdict TrustRegistry::CheckCertificate(const CertificateFacts& facts, int64_t now_unix_s) const {
  if (!facts.identity.ok()) {
    return {v1::TRUST_DENIAL_NO_ROLE, std::string(facts.identity.status().message())};
  }
  const std::string who = absl::StrCat("the certificate of ", ToText(*facts.identity));
  if (now_unix_s < facts.from_unix_s) {
    return {v1::TRUST_DENIAL_EXPIRED,
            absl::StrCat(who, " is valid from ", FormatUtc(facts.from_unix_s),
                         " only; is that machine's clock right?")};
  }
  if (now_unix_s > facts.until_unix_s) {
    return {v1::TRUST_DENIAL_EXPIRED,
            absl::StrCat(who, " expired on ", FormatUtc(facts.until_unix_s), "; join again")};
  }
  const v1::TrustMember* member = Find(RoleName(facts.identity->role), facts.identity->name);
  if (member == nullptr) return {};
  if (member->revoked_unix_s() != 0) {
    return {v1::TRUST_DENIAL_REVOKED,
            absl::StrCat(ToText(*facts.identity), " was revoked on ",
                         FormatUtc(member->revoked_unix_s()), " by ", member->revoked_by())};
  }
  if (!member->key_digest().empty() && !EqualSecrets(member->key_digest(), facts.key_digest)) {
    return {v1::TRUST_DENIAL_REPLACED,
            absl::StrCat("another key has joined as ", ToText(*facts.identity), " since")};
  }
  return {};
}

const v1::TrustToken* TrustRegistry::FindToken(const std::string& key_digest) const {
  const v1::TrustToken* found = nullptr;
  for (const v1::TrustToken& token : records_.tokens()) {
    if (EqualSecrets(token.id(), key_digest)) found = &token;
  }
  return found;
}

Verdict TrustRegistry::CheckToken(const std::string& key_digest, const std::string& role,
                                  int64_t now_unix_s) const {
  const v1::TrustToken* token = FindToken(key_digest);
  if (token == nullptr) {
    return {v1::TRUST_DENIAL_TOKEN_UNKNOWN, "the coordinator does not know this token"};
  }
  if (now_unix_s >= token->expires_unix_s()) {
    return {v1::TRUST_DENIAL_TOKEN_EXPIRED,
            absl::StrCat("the token expired on ", FormatUtc(token->expires_unix_s()))};
  }
  if (!Contains(token->roles(), role)) {
    return {v1::TRUST_DENIAL_TOKEN_ROLE,
            absl::StrCat("the token is for ", absl::StrJoin(token->roles(), " and "), ", not for ",
                         role)};
  }
  if (token->uses_left() == 0) {
    return {v1::TRUST_DENIAL_TOKEN_USED,
            absl::StrCat("the token is used up, by ", absl::StrJoin(token->members(), ", "))};
  }
  return {};
}

absl::StatusOr<v1::TrustToken> TrustRegistry::CreateToken(const v1::CreateTokenRequest& request,
                                                          const std::string& by,
                                                          int64_t now_unix_s) {
  Prune(now_unix_s);
  if (!IsDigest(request.key_digest())) {
    return absl::InvalidArgumentError("key_digest: must be 64 of 0-9 and a-f");
  }
  if (request.roles().empty()) return absl::InvalidArgumentError("roles: names none");
  v1::TrustToken token;
  for (const std::string& name : request.roles()) {
    ATOLL_ASSIGN_OR_RETURN(const Role role, RoleFromName(name));
    if (role == Role::kCoordinator) {
      return absl::InvalidArgumentError("a coordinator does not join: `atoll init` makes it");
    }
    if (!Contains(token.roles(), name)) token.add_roles(name);
  }
  const int uses = request.uses() == 0 ? 1 : request.uses();
  const int64_t ttl_s = request.ttl_s() == 0 ? kTtlDefaultS : request.ttl_s();
  if (uses < 1 || uses > kUsesMax) {
    return absl::InvalidArgumentError(absl::StrCat("uses: must be from 1 to ", kUsesMax));
  }
  if (ttl_s < 1 || ttl_s > kTtlMaxS) {
    return absl::InvalidArgumentError("ttl: must be from 1 second to 30 days");
  }
  if (FindToken(request.key_digest()) != nullptr) {
    return absl::AlreadyExistsError("there is such a token already");
  }
  if (records_.tokens_size() >= kTokensMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", kTokensMax, " tokens already: delete some, or let them expire"));
  }
  token.set_id(request.key_digest());
  token.set_uses_left(uses);
  token.set_created_unix_s(now_unix_s);
  token.set_expires_unix_s(now_unix_s + ttl_s);
  token.set_created_by(by);
  *records_.add_tokens() = token;
  return token;
}

absl::StatusOr<v1::TrustToken> TrustRegistry::DeleteToken(const std::string& id) {
  std::vector<int> found;
  for (int i = 0; i < records_.tokens_size(); ++i) {
    if (!id.empty() && absl::StartsWith(records_.tokens(i).id(), id)) found.push_back(i);
  }
  if (found.empty()) return absl::NotFoundError(absl::StrCat("there is no token ", id));
  if (found.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(found.size(), " tokens begin with ", id));
  }
  v1::TrustToken token = records_.tokens(found[0]);
  records_.mutable_tokens()->DeleteSubrange(found[0], 1);
  return token;
}

Verdict TrustRegistry::Join(const v1::TrustMember& member, int64_t now_unix_s) {
  const std::string who = absl::StrCat(member.role(), "/", member.name());
  v1::TrustMember* known = Find(member.role(), member.name());
  const bool again = known != nullptr && known->revoked_unix_s() == 0 &&
                     known->token() == member.token() && known->key_digest() == member.key_digest();
  Verdict verdict = CheckToken(member.token(), member.role(), now_unix_s);
  if (again && verdict.denial == v1::TRUST_DENIAL_TOKEN_USED) verdict = {};
  if (!verdict.ok()) return verdict;
  if (known != nullptr && known->revoked_unix_s() == 0 &&
      known->key_digest() != member.key_digest()) {
    return {v1::TRUST_DENIAL_NAME,
            absl::StrCat(who,
                         " has joined already, with another key: take another name, or "
                         "`atoll revoke ",
                         member.name(), "` first")};
  }
  if (known != nullptr && known->revoked_unix_s() != 0 &&
      known->key_digest() == member.key_digest()) {
    return {v1::TRUST_DENIAL_REVOKED,
            absl::StrCat(who,
                         " was revoked with this key: delete its certificate's folder "
                         "(STATE_DIR/identity) and join again, with new keys")};
  }
  if (known != nullptr && FindToken(member.token())->created_unix_s() < known->revoked_unix_s()) {
    return {
        v1::TRUST_DENIAL_REVOKED,
        absl::StrCat(who, " was revoked on ", FormatUtc(known->revoked_unix_s()), " by ",
                     known->revoked_by(), "; a token that is made after that lets it in again")};
  }
  const std::string problem =
      CurveKeyProblem({member.role(), member.name()}, member.curve_public_key());
  if (!problem.empty()) return {v1::TRUST_DENIAL_NAME, problem};
  if (known == nullptr) {
    PruneMembers(now_unix_s);
    if (records_.members_size() >= kMembersMax) {
      return {v1::TRUST_DENIAL_NAME, absl::StrCat("the cluster has ", kMembersMax,
                                                  " members whose certificates are valid")};
    }
    known = Add(member.role(), member.name());
  }
  if (known->curve_public_key() != member.curve_public_key()) {
    RevokeCurveKey({member.role(), member.name()}, known->curve_public_key());
  }
  v1::TrustMember joined = member;
  KeepRevocation(*known, &joined);
  *known = joined;
  if (!member.curve_public_key().empty()) {
    curve_key_owners_[member.curve_public_key()] = {member.role(), member.name()};
  }
  if (again) return {};
  for (v1::TrustToken& token : *records_.mutable_tokens()) {
    if (token.id() != member.token()) continue;
    token.set_uses_left(token.uses_left() - 1);
    token.add_members(who);
  }
  return {};
}

void TrustRegistry::NoteRenewal(const Identity& identity, int64_t until_unix_s) {
  v1::TrustMember* known = Find(std::string(RoleName(identity.role)), identity.name);
  if (known != nullptr) known->set_expires_unix_s(until_unix_s);
}

std::string TrustRegistry::FindCurveKey(const Identity& identity) const {
  const v1::TrustMember* member = Find(RoleName(identity.role), identity.name);
  return member == nullptr ? "" : member->curve_public_key();
}

bool TrustRegistry::NoteCurveKey(const Identity& identity, const std::string& curve_public_key) {
  const std::string role(RoleName(identity.role));
  v1::TrustMember* known = Find(role, identity.name);
  if (known != nullptr && known->curve_public_key() == curve_public_key) return false;
  if (curve_public_key.empty() ||
      !CurveKeyProblem({role, identity.name}, curve_public_key).empty()) {
    return false;
  }
  if (known == nullptr) {
    if (records_.members_size() >= kMembersMax) return false;
    known = Add(role, identity.name);
  }
  if (known->revoked_unix_s() != 0) return false;
  const MemberKey member{role, identity.name};
  if (OwnsCurveKey(member, known->curve_public_key())) {
    curve_key_owners_.erase(known->curve_public_key());
  }
  known->set_curve_public_key(curve_public_key);
  curve_key_owners_[curve_public_key] = member;
  return true;
}

absl::StatusOr<std::vector<v1::TrustMember>> TrustRegistry::Revoke(const std::string& name,
                                                                   const std::string& role,
                                                                   const std::string& by,
                                                                   int64_t now_unix_s) {
  if (!role.empty()) {
    ATOLL_ASSIGN_OR_RETURN(const Role known, RoleFromName(role));
    if (known == Role::kCoordinator) {
      return absl::InvalidArgumentError(
          "a coordinator is not revoked: make a new authority by `atoll init`");
    }
    if (Find(role, name) == nullptr) {  // its certificate was made otherwise
      if (name.empty() || name.size() > 64 || records_.members_size() >= kMembersMax) {
        return absl::InvalidArgumentError("name: must be from 1 to 64 letters");
      }
      Add(role, name);
    }
  }
  std::vector<v1::TrustMember> revoked;
  for (int i = 0; i < records_.members_size(); ++i) {
    v1::TrustMember& member = *records_.mutable_members(i);
    if (member.name() != name || (!role.empty() && member.role() != role)) continue;
    if (member.revoked_unix_s() == 0) {
      member.set_revoked_unix_s(now_unix_s);
      member.set_revoked_by(by);
      revoked_.insert(i);
      RevokeCurveKey({member.role(), member.name()}, member.curve_public_key());
    }
    revoked.push_back(member);
  }
  if (revoked.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "no member or user has joined as ", name,
        "; with --role a certificate of that name that was made otherwise is refused too"));
  }
  return revoked;
}

v1::ClientKeys TrustRegistry::Keys() const {
  v1::ClientKeys keys;
  for (const v1::TrustMember& member : records_.members()) {
    // Servers fetch shards that move from each other.
    const bool uses_links = member.role() == "worker" || member.role() == "operator" ||
                            member.role() == RoleName(Role::kParameterServer);
    if (member.revoked_unix_s() == 0 && uses_links && !member.curve_public_key().empty()) {
      keys.add_allowed(member.curve_public_key());
    }
  }
  *keys.mutable_revoked() = records_.revoked_curve_keys();
  return keys;
}

google::protobuf::RepeatedPtrField<v1::RefusedHolder> TrustRegistry::Refused(
    int64_t now_unix_s) const {
  google::protobuf::RepeatedPtrField<v1::RefusedHolder> refused;
  const auto add = [&](const v1::TrustMember& member, int64_t revoked_unix_s, const std::string& by,
                       int64_t expires_unix_s, const std::string& key_digest) {
    if (revoked_unix_s == 0 || (expires_unix_s != 0 && expires_unix_s < now_unix_s)) return;
    v1::RefusedHolder* holder = refused.Add();
    holder->set_role(member.role());
    holder->set_name(member.name());
    holder->set_revoked_unix_s(revoked_unix_s);
    holder->set_revoked_by(by);
    holder->set_key_digest(key_digest);
  };
  for (const int index : revoked_) {
    const v1::TrustMember& member = records_.members(index);
    add(member, member.revoked_unix_s(), member.revoked_by(), LastExpiry(member), "");
    if (member.revoked_unix_s() != 0) continue;
    add(member, member.former_revoked_unix_s(), member.former_revoked_by(),
        member.former_expires_unix_s(), member.key_digest());
  }
  return refused;
}

const v1::TrustMember* TrustRegistry::Find(absl::string_view role, const std::string& name) const {
  const auto index = indices_.find({std::string(role), name});
  return index == indices_.end() ? nullptr : &records_.members(index->second);
}

v1::TrustMember* TrustRegistry::Find(absl::string_view role, const std::string& name) {
  const auto index = indices_.find({std::string(role), name});
  return index == indices_.end() ? nullptr : records_.mutable_members(index->second);
}

v1::TrustMember* TrustRegistry::Add(absl::string_view role, const std::string& name) {
  indices_[{std::string(role), name}] = records_.members_size();
  v1::TrustMember* member = records_.add_members();
  member->set_role(std::string(role));
  member->set_name(name);
  return member;
}

void TrustRegistry::Prune(int64_t now_unix_s) {
  auto* tokens = records_.mutable_tokens();
  tokens->erase(std::remove_if(tokens->begin(), tokens->end(),
                               [&](const v1::TrustToken& token) {
                                 return token.expires_unix_s() + kKeptAfterExpiryS < now_unix_s;
                               }),
                tokens->end());
}

void TrustRegistry::PruneMembers(int64_t now_unix_s) {
  auto* members = records_.mutable_members();
  // A clock that was ahead for a moment leaves no wrong conclusion: a revocation stays while there
  // is room, and what else is forgotten comes again with the member.
  const bool full = members->size() >= kMembersMax;
  const auto kept_end =
      std::remove_if(members->begin(), members->end(), [&](const v1::TrustMember& member) {
        const bool revoked = member.revoked_unix_s() != 0 || member.former_revoked_unix_s() != 0;
        // 0: its certificate was made otherwise, and its date is not known.
        return member.expires_unix_s() != 0 && (full || !revoked) &&
               member.expires_unix_s() + kMemberKeptAfterExpiryS < now_unix_s;
      });
  if (kept_end == members->end()) return;
  members->erase(kept_end, members->end());
  IndexMembers();
}

bool TrustRegistry::OwnsCurveKey(const MemberKey& member, const std::string& key) const {
  const auto owner = curve_key_owners_.find(key);
  return owner != curve_key_owners_.end() && owner->second == member;
}

std::string TrustRegistry::CurveKeyProblem(const MemberKey& member, const std::string& key) const {
  if (key.empty() || OwnsCurveKey(member, key)) return "";
  if (!IsCurveKey(key)) return "the CURVE key is not a Z85 key of 40 letters";
  const std::string remedy =
      ": delete curve.key beside the certificate (STATE_DIR/identity), and a new one is made";
  if (const auto owner = curve_key_owners_.find(key); owner != curve_key_owners_.end()) {
    return absl::StrCat("the CURVE key is that of ", owner->second.first, "/", owner->second.second,
                        remedy);
  }
  if (Contains(records_.revoked_curve_keys(), key)) {
    return absl::StrCat("the CURVE key is revoked", remedy);
  }
  return "";
}

void TrustRegistry::RevokeCurveKey(const MemberKey& member, const std::string& key) {
  // One that another member holds stays that member's.
  if (!OwnsCurveKey(member, key)) return;
  curve_key_owners_.erase(key);
  auto* keys = records_.mutable_revoked_curve_keys();
  if (key.empty() || Contains(*keys, key)) return;
  if (keys->size() >= kRevokedKeysMax) keys->DeleteSubrange(0, 1);
  *keys->Add() = key;
}

}  // namespace atl
