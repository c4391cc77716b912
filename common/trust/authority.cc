#include "common/trust/authority.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/paths.h"

namespace atl {
namespace {

constexpr int64_t kDayS = 86400;
constexpr int64_t kAuthorityLifetimeS = 3653 * kDayS;
constexpr int64_t kCoordinatorLifetimeS = 365 * kDayS;

std::string CertificatePath(const std::string& path) { return path + "/authority.pem"; }
std::string KeyPath(const std::string& path) { return path + "/authority.key"; }
std::string HostsPath(const std::string& path) { return path + "/hosts"; }

}  // namespace

absl::Status CheckHostName(const std::string& host) {
  const bool good =
      !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
               c == ':';
      });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", host.substr(0, 100), "\": must be a host's name or address, without port"));
}

absl::StatusOr<bool> AuthorityFolder::Exists() const {
  ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(CertificatePath(path_)));
  return found.has_value();
}

absl::Status AuthorityFolder::Make(const std::string& cluster,
                                   const std::vector<std::string>& hosts,
                                   int64_t now_unix_s) const {
  ATOLL_ASSIGN_OR_RETURN(const bool there, Exists());
  if (there) {
    return absl::AlreadyExistsError(absl::StrCat(path_, ": holds an authority already"));
  }
  ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(path_));
  if (chmod(path_.c_str(), 0700) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path_, ": cannot be closed to other users"));
  }
  ATOLL_ASSIGN_OR_RETURN(
      const KeyAndCertificate made,
      MakeAuthority(cluster, now_unix_s - kBackdatedS, now_unix_s + kAuthorityLifetimeS));
  ATOLL_RETURN_IF_ERROR(WriteFileWithMode(KeyPath(path_), made.key, 0600));
  // Last but for what can be derived: with it the folder counts.
  ATOLL_RETURN_IF_ERROR(WriteFileWithMode(CertificatePath(path_), made.certificate, 0644));
  return AddHosts(hosts, now_unix_s);
}

absl::StatusOr<KeyAndCertificate> AuthorityFolder::Read() const {
  struct stat info {};
  if (stat(KeyPath(path_).c_str(), &info) != 0) return absl::ErrnoToStatus(errno, KeyPath(path_));
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        KeyPath(path_), ": others than its owner may read it; chmod 600 ", KeyPath(path_)));
  }
  KeyAndCertificate authority;
  ATOLL_ASSIGN_OR_RETURN(authority.key, ReadPemFile(KeyPath(path_)));
  ATOLL_ASSIGN_OR_RETURN(authority.certificate, ReadPemFile(CertificatePath(path_)));
  return authority;
}

absl::Status AuthorityFolder::AddHosts(const std::vector<std::string>& hosts,
                                       int64_t now_unix_s) const {
  std::vector<std::string> all;
  if (const auto known = ReadPemFile(HostsPath(path_)); known.ok()) {
    all = absl::StrSplit(*known, '\n', absl::SkipEmpty());
  } else if (!absl::IsNotFound(known.status())) {
    return known.status();
  }
  for (const std::string& host : hosts) {
    ATOLL_RETURN_IF_ERROR(CheckHostName(host));
    if (std::find(all.begin(), all.end(), host) == all.end()) all.push_back(host);
  }
  ATOLL_RETURN_IF_ERROR(WriteFileWithMode(HostsPath(path_), absl::StrJoin(all, "\n") + "\n", 0644));
  return SignCoordinator(now_unix_s);
}

absl::Status AuthorityFolder::SignCoordinator(int64_t now_unix_s) const {
  ATOLL_ASSIGN_OR_RETURN(const KeyAndCertificate authority, Read());
  ATOLL_ASSIGN_OR_RETURN(const std::string hosts, ReadPemFile(HostsPath(path_)));
  ATOLL_ASSIGN_OR_RETURN(const IdentityFolder::Keys keys, coordinator().MakeKeys());
  ATOLL_ASSIGN_OR_RETURN(const std::string request, MakeRequest(keys.key));
  CertificateContents contents;
  contents.identity = {Role::kCoordinator, "coordinator"};
  contents.hosts = absl::StrSplit(hosts, '\n', absl::SkipEmpty());
  contents.from_unix_s = now_unix_s - kBackdatedS;
  contents.until_unix_s = now_unix_s + kCoordinatorLifetimeS;
  ATOLL_ASSIGN_OR_RETURN(const std::string signed_pem, SignRequest(authority, request, contents));
  // With the authority behind it, for joiners, who know its fingerprint alone.
  return coordinator().Store(authority.certificate, signed_pem + authority.certificate);
}

absl::Status AuthorityFolder::CheckDates(int64_t now_unix_s) const {
  ATOLL_ASSIGN_OR_RETURN(const KeyAndCertificate authority, Read());
  ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(authority.certificate));
  if (facts.from_unix_s <= now_unix_s && now_unix_s <= facts.until_unix_s) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(CertificatePath(path_), ": is valid from ", FormatUtc(facts.from_unix_s), " to ",
                   FormatUtc(facts.until_unix_s), ", and this machine's clock says ",
                   FormatUtc(now_unix_s), ": set the clock right"));
}

absl::Status AuthorityFolder::RenewCoordinator(int64_t now_unix_s) const {
  ATOLL_RETURN_IF_ERROR(CheckDates(now_unix_s));
  ATOLL_ASSIGN_OR_RETURN(const bool there, coordinator().Exists());
  if (there) {
    ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, coordinator().Certificate());
    if (facts.from_unix_s <= now_unix_s &&
        facts.until_unix_s - now_unix_s > kCoordinatorLifetimeS / 2) {
      return absl::OkStatus();
    }
  }
  return SignCoordinator(now_unix_s);
}

absl::Status AuthorityFolder::Issue(const Identity& identity, const IdentityFolder& folder,
                                    int64_t now_unix_s, int64_t lifetime_s) const {
  ATOLL_ASSIGN_OR_RETURN(const KeyAndCertificate authority, Read());
  ATOLL_ASSIGN_OR_RETURN(const IdentityFolder::Keys keys, folder.MakeKeys());
  ATOLL_ASSIGN_OR_RETURN(const std::string request, MakeRequest(keys.key));
  CertificateContents contents{identity, {}, keys.curve_public_key};
  contents.from_unix_s = now_unix_s - kBackdatedS;
  contents.until_unix_s = now_unix_s + lifetime_s;
  ATOLL_ASSIGN_OR_RETURN(const std::string signed_pem, SignRequest(authority, request, contents));
  return folder.Store(authority.certificate, signed_pem);
}

}  // namespace atl
