#include "common/trust/signed_push.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "common/trust/pki.h"

namespace atl {

std::string DigestPart(Encoding encoding, std::span<const std::byte> bytes) {
  return Sha256({absl::StrCat("encoding ", static_cast<int>(encoding), "\n"),
                 {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
}

std::string DigestPush(const std::vector<PartDigest>& parts,
                       const std::vector<int64_t>& expert_tokens) {
  std::string text;
  for (const PartDigest& part : parts) {
    absl::StrAppend(&text, part.shard, " ", part.begin, " ", part.elements, " ",
                    absl::BytesToHexString(part.digest), "\n");
  }
  if (!expert_tokens.empty()) {
    absl::StrAppend(&text, "experts ", absl::StrJoin(expert_tokens, " "), "\n");
  }
  return Sha256(text);
}

std::string MakeSignedText(const JobId& job, const ContributionId& contribution,
                           const std::vector<PositionRange>& consumed,
                           const PushSignature& signature) {
  const std::string positions =
      absl::StrJoin(consumed, " ", [](std::string* out, const PositionRange& range) {
        absl::StrAppend(out, range.begin, "-", range.end);
      });
  return absl::StrCat("atoll contribution\njob ", job, "\nisland ", contribution.island,
                      "\ngeneration ", contribution.generation, "\nincarnation ",
                      contribution.incarnation, "\nbase version ", contribution.base_version,
                      "\npositions ", positions, "\ndigest ",
                      absl::BytesToHexString(signature.digest), "\nplan ", signature.plan_number,
                      "\nbuild ", absl::CEscape(signature.build), "\n");
}

absl::Status SignPush(const std::string& key_pem, PushRequest* request) {
  PushSignature& signature = *request->signature;
  signature.digest = DigestPush(request->parts, request->expert_tokens);
  ATOLL_ASSIGN_OR_RETURN(signature.signature,
                         SignText(key_pem, MakeSignedText(request->job, request->contribution,
                                                          request->consumed, signature)));
  return absl::OkStatus();
}

}  // namespace atl
