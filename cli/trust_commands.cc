#include "cli/trust_commands.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/client.h"
#include "cli/confirm.h"
#include "cli/contexts.h"
#include "cli/text/output.h"
#include "cli/text/render.h"
#include "common/files.h"
#include "common/member_defaults.h"
#include "common/paths.h"
#include "common/protocol/mark_file.h"
#include "common/trust/authority.h"
#include "common/trust/member_access.h"
#include "common/trust/records.h"
#include "common/trust/token.h"

namespace atl::cli {
namespace {

constexpr int64_t kOperatorLifetimeS = 90 * 86400;
constexpr Duration kJoinPatience = std::chrono::seconds(30);
constexpr size_t kIdCharacters = 12;
constexpr absl::Duration kTtlMax = absl::Hours(30 * 24);
constexpr int kUsesMax = 10'000;

int64_t Now() { return absl::ToUnixSeconds(absl::Now()); }

std::string FormatDate(int64_t unix_s) {
  return unix_s == 0 ? "-"
                     : absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixSeconds(unix_s),
                                        absl::LocalTimeZone());
}

std::string LoginName() {
  const passwd* user = getpwuid(geteuid());
  return user == nullptr ? "operator" : user->pw_name;
}

// By which a coordinator on this machine is dialled without more ado.
std::vector<std::string> OwnHosts() {
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "::1"};
  if (const std::string name = HostName(); CheckHostName(name).ok()) hosts.push_back(name);
  return hosts;
}

// The daemon reads what its administrator made: what is in the folder belongs to the folder's
// owner.
absl::Status ChownToStateDirOwner(const std::string& state_dir, const std::string& folder) {
  struct stat info {};
  if (geteuid() != 0) return absl::OkStatus();
  if (stat(state_dir.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, state_dir);
  std::error_code error;
  std::vector<std::string> paths = {folder};
  for (std::filesystem::recursive_directory_iterator entry(folder, error), end;
       !error && entry != end; entry.increment(error)) {
    paths.push_back(entry->path().string());
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat(folder, ": cannot be listed: ", error.message()));
  }
  for (const std::string& path : paths) {
    if (lchown(path.c_str(), info.st_uid, info.st_gid) != 0) {
      return absl::UnavailableError(
          absl::StrCat(path, ": cannot be given to the owner of ", state_dir));
    }
  }
  return absl::OkStatus();
}

absl::Status MakeOrExtend(const InitFlags& flags, const AuthorityFolder& authority) {
  std::vector<std::string> hosts = OwnHosts();
  hosts.insert(hosts.end(), flags.hosts.begin(), flags.hosts.end());
  ATOLL_ASSIGN_OR_RETURN(const bool has_authority, authority.Exists());
  if (has_authority) {
    return flags.hosts.empty() ? absl::OkStatus() : authority.AddHosts(hosts, Now());
  }
  if (!flags.cluster.empty() && !IsClusterId(flags.cluster)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cluster ", flags.cluster, ": must be 16 of 0-9 and a-f"));
  }
  // A coordinator that has run keeps its cluster.
  ATOLL_ASSIGN_OR_RETURN(const ClusterMark mark, ReadClusterMark(RealFiles(), flags.state_dir));
  const ClusterId& begun = mark.cluster;
  if (!flags.cluster.empty() && !begun.empty() && flags.cluster != begun) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cluster ", flags.cluster, ": ", flags.state_dir, " is of cluster ", begun));
  }
  ATOLL_ASSIGN_OR_RETURN(const auto state, FindPath(flags.state_dir + "/coordinator.db"));
  if (state && begun.empty() && flags.cluster.empty()) {  // of a version before the mark
    return absl::FailedPreconditionError(
        absl::StrCat(flags.state_dir,
                     ": does not say of which cluster it is: start its coordinator "
                     "once, which writes that, or name the id by --cluster"));
  }
  const ClusterId id = flags.cluster.empty() ? begun : flags.cluster;
  return authority.Make(id.empty() ? NewClusterId() : id, hosts, Now());
}

// Checks what `init` is given, before it writes anything.
absl::Status CheckInit(const InitFlags& flags, const std::string& person,
                       const AuthorityFolder& authority, const IdentityFolder& own) {
  for (const std::string& host : flags.hosts) {
    ATOLL_RETURN_IF_ERROR(Annotate(CheckHostName(host), "--host"));
  }
  ATOLL_RETURN_IF_ERROR(Annotate(CheckUserName(person), "--name"));
  ATOLL_RETURN_IF_ERROR(Annotate(CheckContextName(flags.context), "--context"));
  ATOLL_ASSIGN_OR_RETURN(const bool is_own, own.Exists());
  if (is_own) {
    ATOLL_ASSIGN_OR_RETURN(const CertificateFacts known, own.Authority());
    std::string fingerprint;
    ATOLL_ASSIGN_OR_RETURN(const bool has_authority, authority.Exists());
    if (has_authority) {
      ATOLL_ASSIGN_OR_RETURN(const KeyAndCertificate made, authority.Read());
      ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(made.certificate));
      fingerprint = facts.fingerprint;
    }
    if (fingerprint != known.fingerprint) {
      return absl::AlreadyExistsError(
          absl::StrCat("--context ", flags.context, ": is of cluster ", known.cluster,
                       "; name another --context, or remove ", own.path()));
    }
  }
  const auto records = ReadTrustRecords(authority.RegistryPath());
  if (absl::IsNotFound(records.status())) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(records.status());
  for (const v1::TrustMember& member : records->members()) {
    if (member.role() == RoleName(Role::kOperator) && member.name() == person &&
        member.revoked_unix_s() != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("--name ", person, ": operator ", person, " was revoked on ",
                       FormatDate(member.revoked_unix_s()), "; take another name"));
    }
  }
  return absl::OkStatus();
}

absl::Status RunInit(InitFlags flags) {
  if (flags.state_dir.empty()) flags.state_dir = "/var/lib/atoll-coordinator";
  if (flags.context.empty()) flags.context = "default";
  const AuthorityFolder authority(flags.state_dir + "/trust");
  const std::string person = flags.person.empty() ? LoginName() : flags.person;
  const IdentityFolder own = ContextFolder(flags.context);
  ATOLL_RETURN_IF_ERROR(CheckInit(flags, person, authority, own));
  ATOLL_RETURN_IF_ERROR(MakeOrExtend(flags, authority));
  ATOLL_RETURN_IF_ERROR(authority.Issue({Role::kOperator, person}, own, Now(), kOperatorLifetimeS));
  ATOLL_RETURN_IF_ERROR(ChownToStateDirOwner(flags.state_dir, authority.path()));
  const std::string host = flags.hosts.empty() ? "127.0.0.1" : flags.hosts.front();
  const std::string at = absl::StrCat(
      host.find(':') == std::string::npos ? host : absl::StrCat("[", host, "]"), ":", flags.port);
  ATOLL_RETURN_IF_ERROR(AddContext(flags.context, at));
  ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, own.Authority());
  std::cout << "cluster " << facts.cluster << ": its authority is in " << authority.path()
            << ", which only the coordinator may read\n"
            << "operator " << person << ": context " << flags.context << " in " << ConfigPath()
            << "\n"
            << "next: start the coordinator with --state-dir=" << flags.state_dir
            << " --listen=" << at << ", then atoll token create --role worker\n";
  return absl::OkStatus();
}

// Where a user's programs keep state.
std::string UserStateFolder() {
  const char* base = std::getenv("XDG_STATE_HOME");
  if (base != nullptr && *base == '/') return absl::StrCat(base, "/atoll");
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "" : home, "/.local/state/atoll");
}

absl::Status RunInitDev(const InitFlags& flags) {
  const std::string context = flags.context.empty() ? "dev" : flags.context;
  ATOLL_RETURN_IF_ERROR(Annotate(CheckContextName(context), "--context"));
  ATOLL_ASSIGN_OR_RETURN(const bool has_context, ContextFolder(context).Exists());
  if (has_context) {
    return absl::AlreadyExistsError(
        absl::StrCat("--context ", context, ": is of a cluster with certificates; name another"));
  }
  const std::string folder = flags.state_dir.empty() ? UserStateFolder() : flags.state_dir;
  const AuthorityFolder authority(folder + "/coordinator/trust");
  ATOLL_ASSIGN_OR_RETURN(const bool has_authority, authority.Exists());
  if (has_authority) {
    return absl::FailedPreconditionError(
        absl::StrCat("--state-dir ", folder, ": is of a cluster with certificates; name another"));
  }
  const std::string address = absl::StrCat("127.0.0.1:", flags.port);
  ATOLL_RETURN_IF_ERROR(AddContext(context, address));
  const std::string at = address == kDefaultCoordinator ? "" : " --coordinator=" + address;
  std::cout << "context " << context << ": " << address
            << ", without certificates, for programs of this machine alone\n"
            << "next, each in a terminal of its own:\n"
            << "  atoll-coordinator --state-dir=" << folder << "/coordinator --listen=" << address
            << " --http-listen=127.0.0.1:7080\n"
            << "  atoll-paramserver --state-dir=" << folder << "/paramserver" << at << "\n"
            << "  atoll-worker --state-dir=" << folder << "/worker" << at << "\n"
            << "then: atoll submit job.toml --watch\n";
  return absl::OkStatus();
}

// How a token for this role is used.
void AppendUse(std::string* out, const std::string& role) {
  const bool person = role == RoleName(Role::kOperator) || role == RoleName(Role::kViewer);
  absl::StrAppend(out, person ? "atoll join TOKEN --role " : "atoll-", role,
                  person ? "" : " --join TOKEN");
}

absl::Status CreateToken(const Global& global, const TokenFlags& flags, Client& client) {
  absl::Duration ttl;
  if (!absl::ParseDuration(flags.ttl, &ttl) || ttl < absl::Seconds(1) || ttl > kTtlMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ttl ", flags.ttl, ": must be a time such as 30m or 24h, at most 720h"));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string pem, ReadPemFile(global.tls.ca_path));
  ATOLL_ASSIGN_OR_RETURN(const CertificateFacts authority, ReadCertificate(pem));
  // Made here: the secret goes nowhere but to the person who requested it.
  ATOLL_ASSIGN_OR_RETURN(const JoinToken token, NewToken(authority.fingerprint));
  v1::CreateTokenRequest request;
  ATOLL_ASSIGN_OR_RETURN(*request.mutable_key_digest(), TokenKeyDigest(token));
  for (const std::string& role : flags.roles) request.add_roles(role);
  request.set_uses(flags.uses);
  request.set_ttl_s(absl::ToInt64Seconds(ttl));
  ATOLL_ASSIGN_OR_RETURN(const v1::CreateTokenReply reply, client.CreateToken(request));
  const std::string join = absl::StrCat(ToText(token), "@", global.coordinator);
  if (global.structured) {
    std::cout << DocumentLine({{"id", reply.token().id()}, {"join", join}});
    return absl::OkStatus();
  }
  std::cout << join << "\n";
  std::cerr << "for " << absl::StrJoin(flags.roles, " or ") << ", " << flags.uses
            << (flags.uses == 1 ? " time" : " times") << ", until "
            << FormatDate(reply.token().expires_unix_s()) << ": "
            << absl::StrJoin(flags.roles, " or ", AppendUse) << "\n";
  return absl::OkStatus();
}

absl::Status ListTokens(const Global& global, Client& client) {
  ATOLL_ASSIGN_OR_RETURN(const v1::TrustRecords records, client.Trust());
  if (global.structured) {
    std::cout << Document(records);
    return absl::OkStatus();
  }
  Table table({"token", "for", "uses left", "until", "by", "used by"});
  for (const v1::TrustToken& token : records.tokens()) {
    table.Add({token.id().substr(0, kIdCharacters), absl::StrJoin(token.roles(), ","),
               absl::StrCat(token.uses_left()), FormatDate(token.expires_unix_s()),
               token.created_by(), absl::StrJoin(token.members(), ",")});
  }
  std::cout << (table.empty() ? "no tokens; make one with: atoll token create\n" : table.Text());
  return absl::OkStatus();
}

absl::Status RunToken(const Global& global, const TokenFlags& flags) {
  if (global.tls.ca_path.empty()) {
    return absl::FailedPreconditionError(
        "tokens are of a cluster with an authority: `atoll init` makes one, and a certificate for "
        "you");
  }
  ATOLL_ASSIGN_OR_RETURN(const auto client, Client::Dial(global.tls, global.coordinator));
  if (flags.action == "create") return CreateToken(global, flags, *client);
  if (flags.action == "ls") return ListTokens(global, *client);
  if (flags.id.empty()) return absl::InvalidArgumentError("token rm: needs the token's id");
  return client->DeleteToken(flags.id).status();
}

absl::Status RunJoin(const JoinFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const Role role, RoleFromName(flags.role));
  const std::string person = flags.person.empty() ? LoginName() : flags.person;
  ATOLL_RETURN_IF_ERROR(Annotate(CheckUserName(person), "--name"));
  ATOLL_RETURN_IF_ERROR(Annotate(CheckContextName(flags.context), "--context"));
  const IdentityFolder folder = ContextFolder(flags.context);
  ATOLL_ASSIGN_OR_RETURN(const bool there, folder.Exists());
  if (there) {
    return absl::AlreadyExistsError(absl::StrCat(
        folder.path(), ": is there already; name another --context, or remove that folder"));
  }
  ATOLL_RETURN_IF_ERROR(Join({role, person}, folder, flags.address, kJoinPatience));
  ATOLL_ASSIGN_OR_RETURN(const JoinAddress to, ParseJoinAddress(flags.address));
  ATOLL_RETURN_IF_ERROR(AddContext(flags.context, to.coordinator));
  std::cout << "joined as " << flags.role << " " << person << ": context " << flags.context
            << " in " << ConfigPath() << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddInitFlags(CLI::App& app, InitFlags* flags) {
  CLI::Option* dev = app.add_flag(
      "--dev", flags->dev,
      "a cluster of this machine alone, without certificates: prints how to start its daemons");
  app.add_option(
      "--state-dir", flags->state_dir,
      "the coordinator's state folder, by default /var/lib/atoll-coordinator; with --dev: "
      "of all daemons, by default ~/.local/state/atoll");
  app.add_option("--host", flags->hosts,
                 "name or address by which others dial the coordinator, several times; the first "
                 "one is yours")
      ->allow_extra_args(false)
      ->excludes(dev);
  app.add_option("--port", flags->port, "port of the coordinator")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  app.add_option("--cluster", flags->cluster, "id of a cluster whose coordinator's state is lost")
      ->excludes(dev);
  app.add_option("--name", flags->person, "your name as an operator; default: your login name")
      ->excludes(dev);
  app.add_option("--context", flags->context,
                 "name of the cluster in your config.toml; default: default, with --dev: dev");
}

int Init(const Global&, const InitFlags& flags) {
  return ExitCode(flags.dev ? RunInitDev(flags) : RunInit(flags));
}

void AddTokenFlags(CLI::App& app, TokenFlags* flags) {
  app.add_option("ACTION", flags->action, "create, ls or rm")
      ->required()
      ->check(CLI::IsMember({"create", "ls", "rm"}));
  app.add_option("ID", flags->id, "id of the token to delete, or its beginning");
  app.add_option("--role", flags->roles, "worker, paramserver, operator or viewer; several: a,b")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--uses", flags->uses, "number of members that may join with it")
      ->check(CLI::Range(1, kUsesMax))
      ->capture_default_str();
  app.add_option("--ttl", flags->ttl, "validity of the token")->capture_default_str();
}

int TokenCommand(const Global& global, const TokenFlags& flags) {
  return ExitCode(RunToken(global, flags));
}

void AddJoinFlags(CLI::App& app, JoinFlags* flags) {
  app.add_option("TOKEN", flags->address, "TOKEN@HOST:PORT, as `atoll token create` printed it")
      ->required();
  app.add_option("--name", flags->person, "your name; default: your login name");
  app.add_option("--role", flags->role, "operator or viewer")->capture_default_str();
  app.add_option("--context", flags->context, "name of the cluster in your config.toml")
      ->capture_default_str();
}

int JoinCommand(const Global&, const JoinFlags& flags) { return ExitCode(RunJoin(flags)); }

void AddRevokeFlags(CLI::App& app, RevokeFlags* flags) {
  app.add_option("NAME", flags->name, "of a member or person")->required();
  app.add_option("--role", flags->role,
                 "only in this role; also of a certificate that was not got by joining");
  AddYesFlag(app, &flags->yes);
}

int Revoke(const Global& global, const RevokeFlags& flags) {
  const absl::Status confirmed =
      Confirm("revoke",
              absl::StrCat("ends the access of ", flags.role.empty() ? "" : flags.role + "/",
                           flags.name, " at once, for good: it needs a new token to join again"),
              flags.yes);
  if (!confirmed.ok()) return Fail(confirmed, ConfirmExitCode(confirmed));
  const auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return ExitCode(client.status());
  v1::RevokeRequest request;
  request.set_name(flags.name);
  request.set_role(flags.role);
  const auto reply = (*client)->Revoke(request);
  if (!reply.ok()) return ExitCode(reply.status());
  if (global.structured) {
    std::cout << Document(*reply);
    return 0;
  }
  for (const v1::TrustMember& member : reply->members()) {
    std::cout << member.role() << "/" << member.name() << " is revoked\n";
  }
  return 0;
}

int Members(const Global& global) {
  const auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return ExitCode(client.status());
  const auto records = (*client)->Trust();
  if (!records.ok()) return ExitCode(records.status());
  if (global.structured) {
    std::cout << Document(*records);
    return 0;
  }
  Table table({"role", "name", "joined", "certificate until", "revoked", "by"});
  for (const v1::TrustMember& member : records->members()) {
    table.Add({member.role(), member.name(), FormatDate(member.issued_unix_s()),
               FormatDate(member.expires_unix_s()), FormatDate(member.revoked_unix_s()),
               member.revoked_by()});
  }
  std::cout << (table.empty() ? "no certificates: `atoll init` makes the cluster's authority\n"
                              : table.Text());
  return 0;
}

int Audit(const Global& global, int64_t tail) {
  const auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return ExitCode(client.status());
  Table table({"time", "who", "from", "call", "target", "outcome"});
  const absl::Status status = (*client)->Audit(tail, [&](const v1::AuditEntry& entry) {
    if (global.structured) {
      std::cout << DocumentLine(entry);
      return true;
    }
    table.Add({absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(entry.unix_ms()),
                                absl::LocalTimeZone()),
               entry.who().empty() ? "-" : entry.who(), entry.from().empty() ? "-" : entry.from(),
               entry.call(), entry.target(),
               entry.done() ? "done" : absl::StrCat("refused: ", entry.reason())});
    return true;
  });
  if (!global.structured && !table.empty()) std::cout << table.Text();
  if (!global.structured && status.ok() && table.empty()) std::cout << "no actions\n";
  return ExitCode(status);
}

}  // namespace atl::cli
