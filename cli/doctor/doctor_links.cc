#include "cli/doctor/doctor_links.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/net/relay/words.h"
#include "common/net/security.h"
#include "common/net/tensor/tensor_client.h"
#include "common/plural.h"

namespace atl::cli {
namespace {

constexpr Duration kMeasureFor = std::chrono::seconds(1);  // in each direction
constexpr size_t kSitesMeasured = 16;
constexpr double kSlowBytesPerS = 12.5e6;  // 100 Mbit/s
constexpr double kModelBytes = 1e9;
constexpr double kClockWarningMs = 1000;
constexpr double kClockProblemMs = 60'000;

std::string Address(const std::string& endpoint) {
  return std::string(absl::StripPrefix(endpoint, "tcp://"));
}

double Megabits(double bytes_per_s) { return bytes_per_s * 8 / 1e6; }

struct Site {
  const v1::Member* server = nullptr;
  const v1::Member* worker = nullptr;  // that other workers reach
};

std::map<std::string, Site> SitesIn(const v1::ClusterStatus& status) {
  std::map<std::string, Site> sites;
  for (const v1::Member& member : status.members()) {
    if (!member.attached()) continue;
    Site& site = sites[member.site()];
    if (member.kind() == "paramserver" && site.server == nullptr) site.server = &member;
    if (member.peer_endpoint().empty() || site.worker != nullptr) continue;
    site.worker = &member;
  }
  return sites;
}

absl::StatusOr<std::unique_ptr<TensorClient>> MakeClient(const Global& global) {
  TensorClientOptions options;
  options.security.allow_plaintext_beyond_loopback = global.tls.insecure;
  ATOLL_ASSIGN_OR_RETURN(options.security.keys, ReadCurveKey(global.curve_key_path));
  return TensorClient::Create(options);
}

}  // namespace

Finding CheckWays(const std::string& check, const std::string& endpoint) {
  const std::vector<LinkWay> ways = ReadLinkWays(endpoint);
  Finding finding = CheckRoute(check, Address(ways[0].endpoint));
  for (const LinkWay& way : ways) {
    if (finding.level != Level::kProblem || way.word.empty()) continue;
    if (way.at_own_relay()) {
      finding.level = Level::kWarning;
      absl::StrAppend(&finding.found, "; it connects itself to those that cannot reach it");
      finding.remedy = "nothing to do, unless it cannot reach some of them: see atoll status";
      continue;
    }
    if (CheckRoute(check, Address(way.endpoint)).level == Level::kProblem) continue;
    finding.level = Level::kWarning;
    absl::StrAppend(&finding.found, "; links go through the relay ", Address(way.endpoint));
    finding.remedy = "where the relay is too slow, open the member's port for connections";
  }
  return finding;
}

Finding CheckClock(double ahead_ms, double within_ms) {
  const double off_ms = std::max(0.0, std::abs(ahead_ms) - within_ms);
  Finding finding{
      Level::kOk, "clock",
      absl::StrFormat("%.0f ms %s the coordinator's, to within %.0f ms", std::abs(ahead_ms),
                      ahead_ms < 0 ? "ahead of" : "behind", within_ms),
      ""};
  if (off_ms < kClockWarningMs) return finding;
  finding.level = off_ms < kClockProblemMs ? Level::kWarning : Level::kProblem;
  finding.remedy =
      "set both clocks by NTP (apt-get install systemd-timesyncd; timedatectl): certificates and "
      "tokens have dates, and logs are compared by time";
  return finding;
}

Finding RatesFinding(const std::string& site, const absl::StatusOr<LinkRates>& rates) {
  const std::string check = absl::StrCat("bandwidth to ", site);
  if (!rates.ok()) {
    const std::string why(rates.status().message());
    if (absl::IsDataLoss(rates.status())) {
      return {Level::kProblem, check, why,
              "lower this machine's MTU to that of the path (ip link set mtu 1400), or set "
              "net.ipv4.tcp_mtu_probing=1"};
    }
    if (!absl::IsDeadlineExceeded(rates.status())) {
      return {Level::kWarning, check, why,
              "join the cluster by a token (atoll join), which makes a key; see docs/trust.md"};
    }
    return {Level::kProblem, check, why, "is the server busy or stopped?"};
  }
  Finding finding{
      Level::kOk, check,
      absl::StrFormat("%.0f Mbit/s there, %.0f Mbit/s back", Megabits(rates->push_bytes_per_s),
                      Megabits(rates->pull_bytes_per_s)),
      ""};
  const double slower = std::min(rates->push_bytes_per_s, rates->pull_bytes_per_s);
  if (slower < kSlowBytesPerS) {
    finding.level = Level::kWarning;
    finding.remedy = absl::StrFormat(
        "1 GB of parameters take %.0f s: leave [outer] steps_per_round out, or raise it, and "
        "quantise "
        "pushes and pulls ([outer] push_encoding, pull_encoding)",
        kModelBytes / slower);
  }
  return finding;
}

std::vector<Finding> CheckSites(const Global& global, const v1::ClusterStatus& status,
                                bool bandwidth) {
  std::vector<Finding> findings;
  const std::map<std::string, Site> sites = SitesIn(status);
  const auto client = MakeClient(global);
  size_t measured = 0;
  const auto servers = std::count_if(
      sites.begin(), sites.end(), [](const auto& entry) { return entry.second.server != nullptr; });
  if (bandwidth && servers > 0) {
    std::cerr << "atoll doctor: measures the bandwidth to "
              << CountText(std::min<int64_t>(servers, kSitesMeasured), "site")
              << ": 1 s each way as fast as the link is, 125 MB on a link of 1 Gbit/s; "
                 "--no-bandwidth leaves that out\n";
  }
  for (const auto& [name, site] : sites) {
    const std::string text = name.empty() ? "members without a site" : absl::StrCat("site ", name);
    if (++measured > kSitesMeasured) {
      findings.push_back({Level::kOk, absl::StrCat("bandwidth to ", text),
                          absl::StrCat("not measured: ", kSitesMeasured, " other sites were"), ""});
    } else if (site.server != nullptr && !bandwidth) {
      findings.push_back({Level::kOk, absl::StrCat("bandwidth to ", text),
                          "not measured, as --no-bandwidth says", ""});
    } else if (site.server != nullptr) {
      const ServerAddress server{site.server->endpoint(), site.server->public_key()};
      findings.push_back(RatesFinding(
          text, client.ok() ? MeasureLink(**client, server, kMeasureFor) : client.status()));
    } else if (site.worker != nullptr) {
      const std::string worker = absl::StrCat(text, ", worker ", site.worker->name());
      findings.push_back(CheckWays(worker, site.worker->peer_endpoint()));
      for (const std::string& endpoint : site.worker->more_peer_endpoints()) {
        findings.push_back(CheckWays(worker, endpoint));
      }
    }
  }
  return findings;
}

}  // namespace atl::cli
