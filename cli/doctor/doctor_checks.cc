#include "cli/doctor/doctor_checks.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/bytes_text.h"
#include "common/number_text.h"
#include "common/plural.h"
#include "common/trust/authority.h"
#include "common/trust/identity_folder.h"
#include "common/trust/pki.h"

namespace atl::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kConnectTimeoutMs = 3000;
constexpr int kTries = 5;
constexpr int64_t kLeastMemoryBytes = int64_t{1} << 30;
constexpr rlim_t kLeastFiles = 4096;
constexpr int64_t kLeastDiskBytes = int64_t{10} << 30;
constexpr double kSlowSyncMs = 50;
constexpr int kStandardMtu = 1500;
constexpr int64_t kFewDays = 14;

double MsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::string ByText(const std::string& by) { return by.empty() ? "" : absl::StrCat(", by ", by); }

struct Addresses {
  std::shared_ptr<addrinfo> list;
  std::string error;
};

Addresses Resolve(const std::string& address, bool to_listen) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return {nullptr, std::string(parsed.status().message())};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  if (to_listen) hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const int code =
      getaddrinfo(parsed->host.c_str(), absl::StrCat(parsed->port).c_str(), &hints, &list);
  if (code != 0) return {nullptr, gai_strerror(code)};
  return {std::shared_ptr<addrinfo>(list, freeaddrinfo), ""};
}

class Socket {
 public:
  explicit Socket(const addrinfo& address)
      : fd_(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

  // Empty, or why there is no connection.
  std::string Connect(const addrinfo& address) {
    if (connect(fd_, address.ai_addr, address.ai_addrlen) == 0) return "";
    if (errno != EINPROGRESS) return std::strerror(errno);
    pollfd wait{fd_, POLLOUT, 0};
    if (poll(&wait, 1, kConnectTimeoutMs) <= 0) {
      return absl::StrCat("no answer within ", kConnectTimeoutMs / 1000, " s");
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? "" : std::strerror(error);
  }

 private:
  const int fd_;
};

std::optional<int> ReadMtu(int fd, int family) {
  int mtu = 0;
  socklen_t size = sizeof(mtu);
  const bool v6 = family == AF_INET6;
  if (getsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MTU : IP_MTU, &mtu, &size) != 0) {
    return std::nullopt;
  }
  return mtu;
}

// The median time of writing a page and making it durable, in ms; or the error.
absl::StatusOr<double> SyncMs(const std::string& folder) {
  const std::string path = folder + "/.atoll-doctor";
  const int file = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return absl::UnavailableError(std::strerror(errno));
  unlink(path.c_str());
  std::vector<double> times;
  const std::string page(4096, 'a');
  bool good = true;
  for (int i = 0; good && i < kTries; ++i) {
    const Clock::time_point begin = Clock::now();
    good = write(file, page.data(), page.size()) == static_cast<ssize_t>(page.size()) &&
           fsync(file) == 0;
    times.push_back(MsSince(begin));
  }
  const int error = errno;
  close(file);
  if (!good) return absl::UnavailableError(std::strerror(error));
  std::nth_element(times.begin(), times.begin() + kTries / 2, times.end());
  return times[kTries / 2];
}

}  // namespace

Finding CheckCpu(const MachineLimits& limits) {
  const std::string cpus =
      absl::StrCat(CountText(limits.cpus, "core"), ByText(limits.cpus_by), ", ");
  if (__builtin_cpu_supports("avx512f")) return {Level::kOk, "CPU", cpus + "AVX-512", ""};
  if (__builtin_cpu_supports("avx2")) return {Level::kOk, "CPU", cpus + "AVX2", ""};
  return {Level::kWarning, "CPU", cpus + "no AVX2", "training on this CPU is several times slower"};
}

Finding CheckMemory(const MachineLimits& limits) {
  Finding finding{Level::kOk, "memory",
                  absl::StrCat(BytesText(limits.memory_bytes), ByText(limits.memory_by)), ""};
  if (limits.memory_bytes < kLeastMemoryBytes) {
    finding.level = Level::kWarning;
    finding.remedy = "only very small models fit; give it more, or lower --memory-bytes";
  }
  return finding;
}

Finding CheckFileLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max >= kLeastFiles) {
    return {Level::kOk, "open files", absl::StrCat("up to ", limit.rlim_max), ""};
  }
  return {
      Level::kProblem, "open files", absl::StrCat("at most ", limit.rlim_max),
      absl::StrCat("raise the limit to ", kLeastFiles, ": LimitNOFILE in the unit, or ulimit -n")};
}

Finding CheckFolder(const std::string& folder) {
  const std::string check = absl::StrCat("folder ", folder);
  struct statvfs space {};
  if (statvfs(folder.c_str(), &space) != 0) {
    return {Level::kProblem, check, std::strerror(errno), "make it, or name another one"};
  }
  const int64_t free_bytes =
      static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  const absl::StatusOr<double> sync_ms = SyncMs(folder);
  if (!sync_ms.ok()) {
    return {Level::kProblem, check, absl::StrCat("cannot be written: ", sync_ms.status().message()),
            "run this as the daemon's user, and give that user the folder"};
  }
  Finding finding{Level::kOk, check,
                  absl::StrCat(BytesText(free_bytes), " free, a durable write takes ",
                               SecondsText(*sync_ms / 1e3)),
                  ""};
  if (free_bytes < kLeastDiskBytes) {
    finding.level = Level::kWarning;
    finding.remedy = "checkpoints, logs and snapshots need several times the model's size";
  } else if (*sync_ms > kSlowSyncMs) {
    finding.level = Level::kWarning;
    finding.remedy = "every decision and push waits for the disk; use a faster one";
  }
  return finding;
}

Finding CheckListen(const std::string& address) {
  const std::string check = absl::StrCat("listen ", address);
  const Addresses found = Resolve(address, true);
  if (found.list == nullptr) {
    return {Level::kProblem, check, found.error, "write HOST:PORT with an address of this machine"};
  }
  const Socket socket(*found.list);
  const int yes = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(socket.fd(), found.list->ai_addr, found.list->ai_addrlen) == 0 &&
      listen(socket.fd(), 1) == 0) {
    return {Level::kOk, check, "free", ""};
  }
  return {Level::kProblem, check, std::strerror(errno),
          errno == EADDRINUSE ? "another program listens there: choose another port"
                              : "use an address of this machine"};
}

std::vector<Finding> CheckIdentities(const std::string& state_dir, int64_t now_unix_s) {
  std::vector<Finding> findings;
  const auto look = [&](const IdentityFolder& folder) {
    const auto there = folder.Exists();
    if (there.ok() && !*there) return;
    findings.push_back(
        CheckTls("certificates of this daemon", folder.tls(), "localhost:1", now_unix_s));
  };
  look(IdentityFolder(state_dir + "/identity"));
  const AuthorityFolder authority(state_dir + "/trust");
  const auto has_authority = authority.Exists();
  if (has_authority.ok() && !*has_authority) return findings;
  if (const auto read = authority.Read(); !read.ok()) {
    findings.push_back(
        {Level::kProblem, "authority", std::string(read.status().message()), "see docs/trust.md"});
  }
  look(authority.coordinator());
  return findings;
}

Finding CheckTls(const std::string& check, const TlsOptions& tls, const std::string& address,
                 int64_t now_unix_s) {
  const auto credentials = ClientCredentials(tls, address);
  if (!credentials.ok()) {
    return {Level::kProblem, check, std::string(credentials.status().message()),
            "see docs/trust.md"};
  }
  if (tls.cert_path.empty()) return {Level::kOk, check, "none: plaintext", ""};
  Finding finding{Level::kOk, check, "", ""};
  for (const std::string& path : {tls.cert_path, tls.ca_path}) {
    std::ifstream file(path, std::ios::binary);
    const std::string pem{std::istreambuf_iterator<char>(file), {}};
    const auto facts = ReadCertificate(pem);
    if (!facts.ok()) {
      return {Level::kProblem, check, absl::StrCat(path, ": ", facts.status().message()),
              "see docs/trust.md"};
    }
    const int64_t left_s = facts->until_unix_s - now_unix_s;
    const int64_t days = left_s / 86'400;
    absl::StrAppend(&finding.found, finding.found.empty() ? "" : ", ", path,
                    left_s < 0 ? absl::FormatTime(" expired on %Y-%m-%d at %H:%M UTC",
                                                  absl::FromUnixSeconds(facts->until_unix_s),
                                                  absl::UTCTimeZone())
                               : absl::StrCat(" for ", days, days == 1 ? " day" : " days"));
    if (left_s < 0) {
      finding.level = Level::kProblem;
      finding.remedy = path == tls.ca_path
                           ? "make a new authority: every member needs a new certificate"
                           : "join again by a token (atoll join), or replace it";
    } else if (days < kFewDays && finding.level != Level::kProblem) {
      finding.level = Level::kWarning;
      finding.remedy = path == tls.ca_path
                           ? "make a new authority in time: every member needs a new certificate"
                           : "members that joined by a token renew theirs; replace others";
    }
  }
  return finding;
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  absl::string_view host = address.substr(0, colon);
  const absl::string_view port = colon == absl::string_view::npos ? "" : address.substr(colon + 1);
  int number = 0;
  if (!absl::SimpleAtoi(port, &number) || number < 1 || number > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port \"", port, "\": must be from 1 to 65535"));
  }
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return HostPort{std::string(host), static_cast<uint16_t>(number)};
}

Finding CheckRoute(const std::string& what, const std::string& address) {
  const std::string check = absl::StrCat(what, " ", address);
  const Addresses found = Resolve(address, false);
  if (found.list == nullptr) {
    return {Level::kProblem, check, found.error, "correct the name, or the resolver's settings"};
  }
  double best_ms = -1;
  std::optional<int> mtu;
  for (int i = 0; i < kTries; ++i) {
    Socket socket(*found.list);
    const Clock::time_point begin = Clock::now();
    const std::string error = socket.Connect(*found.list);
    if (!error.empty()) {
      return {Level::kProblem, check, error,
              "is it running there, and does a firewall let this machine in?"};
    }
    const double ms = MsSince(begin);
    best_ms = best_ms < 0 ? ms : std::min(best_ms, ms);
    mtu = ReadMtu(socket.fd(), found.list->ai_family);
  }
  Finding finding{Level::kOk, check, SecondsText(best_ms / 1e3) + " round trip", ""};
  if (mtu) absl::StrAppend(&finding.found, ", MTU ", *mtu);
  if (mtu && *mtu < kStandardMtu) {
    finding.level = Level::kWarning;
    finding.remedy = "packets are smaller than usual: check the tunnel's or VPN's MTU";
  }
  return finding;
}

}  // namespace atl::cli
