#include "cli/doctor/doctor.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/client.h"
#include "cli/doctor/doctor_gpu.h"
#include "cli/doctor/doctor_links.h"
#include "cli/text/output.h"
#include "common/net/control/leader.h"
#include "common/version.h"
#include "common/wall_clock.h"

namespace atl::cli {
namespace {

constexpr size_t kServersTried = 16;  // each takes up to 3 s

const char* LevelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
  }
  return "";
}

// Members' and the coordinator's words have no say in how lines end or what a terminal does.
std::string Printable(std::string text) {
  for (char& c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

// The coordinator, its version and clock, the links to the parameter servers that it knows, and the
// bandwidth to each site.
void CheckCluster(const Global& global, bool bandwidth, std::vector<Finding>* findings) {
  const std::vector<std::string> addresses = SplitAddresses(global.coordinator);
  size_t unreachable = 0;
  for (const std::string& address : addresses) {
    findings->push_back(CheckRoute("coordinator", address));
    if (findings->back().level == Level::kProblem) ++unreachable;
  }
  if (unreachable == addresses.size()) return;
  const auto client = Client::Dial(global.tls, global.coordinator);
  const int64_t requested_ms = UnixTimeMs();
  const auto status = client.ok() ? (*client)->Status() : client.status();
  const int64_t answered_ms = UnixTimeMs();
  if (!status.ok()) {
    findings->push_back({Level::kProblem, "status", std::string(status.status().message()),
                         "use the certificate of an operator or viewer"});
    return;
  }
  for (Finding& finding : StatusFindings(*status, requested_ms, answered_ms)) {
    findings->push_back(std::move(finding));
  }
  size_t servers = 0;
  for (const v1::Member& member : status->members()) {
    if (!member.attached() || member.endpoint().empty()) continue;
    if (++servers > kServersTried) continue;
    findings->push_back(
        CheckWays(absl::StrCat("parameter server ", member.name()), member.endpoint()));
  }
  if (servers > kServersTried) {
    findings->push_back({Level::kOk, "other parameter servers",
                         absl::StrCat(servers - kServersTried, " not tried"), ""});
  }
  for (Finding& finding : CheckSites(global, *status, bandwidth)) {
    findings->push_back(std::move(finding));
  }
}

// "1.2.3" -> {1, 2}; nullopt: no version of this form.
std::optional<std::pair<int, int>> ParseRelease(absl::string_view version) {
  const std::vector<absl::string_view> parts = absl::StrSplit(version, '.');
  std::pair<int, int> release;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &release.first) ||
      !absl::SimpleAtoi(parts[1], &release.second)) {
    return std::nullopt;
  }
  return release;
}

}  // namespace

Finding CheckVersion(absl::string_view own, absl::string_view coordinators) {
  if (own == coordinators) return {Level::kOk, "version", std::string(own), ""};
  Finding finding{Level::kProblem, "version",
                  absl::StrCat(own, ", the coordinator has ", coordinators),
                  "install the coordinator's version"};
  const auto ours = ParseRelease(own), theirs = ParseRelease(coordinators);
  if (ours && theirs && ours->first == theirs->first &&
      std::abs(static_cast<int64_t>(ours->second) - theirs->second) <= 1) {
    finding.level = Level::kWarning;
    absl::StrAppend(&finding.found, "; adjacent versions work together");
  }
  return finding;
}

std::vector<Finding> StatusFindings(const v1::ClusterStatus& status, int64_t requested_unix_ms,
                                    int64_t answered_unix_ms) {
  std::vector<Finding> findings;
  findings.push_back(CheckVersion(kSoftwareVersion, status.software_version()));
  if (status.unix_ms() != 0) {  // 0: a coordinator of an older version
    const double middle = 0.5 * static_cast<double>(requested_unix_ms + answered_unix_ms);
    findings.push_back(
        CheckClock(static_cast<double>(status.unix_ms()) - middle,
                   0.5 * static_cast<double>(answered_unix_ms - requested_unix_ms) + 1));
  }
  return findings;
}

std::string FindingsText(const std::vector<Finding>& findings) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.check.size());
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppend(&text, LevelName(finding.level),
                    std::string(9 - std::string(LevelName(finding.level)).size(), ' '),
                    Printable(finding.check), std::string(width + 2 - finding.check.size(), ' '),
                    Printable(finding.found), "\n");
    if (!finding.remedy.empty()) absl::StrAppend(&text, "         -> ", finding.remedy, "\n");
  }
  return text;
}

std::string FindingsJson(const std::vector<Finding>& findings) {
  auto list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"level", LevelName(finding.level)},
                    {"check", finding.check},
                    {"found", finding.found},
                    {"remedy", finding.remedy}});
  }
  // The system's messages may be of any encoding.
  return nlohmann::json{{"findings", list}}.dump(2, ' ', false,
                                                 nlohmann::json::error_handler_t::replace);
}

int Doctor(const Global& global, const DoctorFlags& flags) {
  const bool card = HasNvidiaCard();
  const MachineLimits limits = ReadMachineLimits();
  std::vector<Finding> findings = {CheckCpu(limits), CheckMemory(limits),
                                   CheckFileLimit(), CheckGpu(card),
                                   CheckNccl(card),  CheckFolder(flags.state_dir)};
  for (const std::string& address : flags.listen) findings.push_back(CheckListen(address));
  const int64_t now_unix_s = UnixTimeMs() / 1000;
  for (Finding& finding : CheckIdentities(flags.state_dir, now_unix_s)) {
    findings.push_back(std::move(finding));
  }
  findings.push_back(
      CheckTls("certificates", global.tls, SplitAddresses(global.coordinator)[0], now_unix_s));
  if (findings.back().level != Level::kProblem)
    CheckCluster(global, !flags.no_bandwidth, &findings);
  std::cout << (global.structured ? Document(FindingsJson(findings) + "\n")
                                  : FindingsText(findings));
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.level == Level::kProblem; })
             ? 1
             : 0;
}

}  // namespace atl::cli
