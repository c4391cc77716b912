// `atoll doctor`: what will go wrong on this machine before it does, each with its remedy.

#ifndef ATOLL_CLI_DOCTOR_DOCTOR_H_
#define ATOLL_CLI_DOCTOR_DOCTOR_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/commands.h"
#include "cli/doctor/doctor_checks.h"
#include "proto/coordinator.pb.h"

namespace atl::cli {

struct DoctorFlags {
  std::string state_dir = ".";
  std::vector<std::string> listen;  // addresses at which daemons are to listen here
  bool no_bandwidth = false;        // sends nothing but small messages
};

// `App` is CLI::App.
template <class App>
void AddDoctorFlags(App& app, DoctorFlags* flags) {
  app.add_option("--state-dir", flags->state_dir, "folder of a daemon's state")
      ->capture_default_str();
  app.add_option("--listen", flags->listen,
                 "HOST:PORT at which a daemon will listen on this machine");
  app.add_flag(
      "--no-bandwidth", flags->no_bandwidth,
      "do not measure the bandwidth to each site, which takes all of the link for a second "
      "each way");
}

// Prints the findings; exit code 1 if any is a problem.
int Doctor(const Global& global, const DoctorFlags& flags);

// Releases of the coordinator next to one's own work together with it.
Finding CheckVersion(absl::string_view own, absl::string_view coordinators);

// The coordinator's version and clock, by an answer that was requested and came at these times.
std::vector<Finding> StatusFindings(const v1::ClusterStatus& status, int64_t requested_unix_ms,
                                    int64_t answered_unix_ms);

// One line a finding, and one for its remedy.
std::string FindingsText(const std::vector<Finding>& findings);
// A list of objects.
std::string FindingsJson(const std::vector<Finding>& findings);

}  // namespace atl::cli

#endif  // ATOLL_CLI_DOCTOR_DOCTOR_H_
