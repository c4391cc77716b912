#include "cli/trace.h"

#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/pictures/step_picture.h"
#include "cli/text/output.h"
#include "cli/text/trace_text.h"
#include "cli/write_file.h"
#include "common/number_text.h"

namespace atl::cli {
namespace {

std::string Title(const TraceAnswer& answer) {
  std::string title = absl::StrFormat(
      "%s, island %d, step %d: measured %s", answer.job, answer.island, answer.measured.step,
      SecondsText(static_cast<double>(answer.measured.step_ns) * 1e-9));
  if (answer.predicted) {
    absl::StrAppend(&title, ", predicted ",
                    SecondsText(static_cast<double>(answer.predicted->step_ns) * 1e-9));
  }
  return title;
}

absl::Status Run(const Global& global, const std::string& job, const TraceFlags& flags) {
  v1::TraceRequest request;
  if (flags.island >= 0) request.set_island(flags.island);
  request.set_timeout_ms(flags.timeout_s * 1000);
  ATOLL_ASSIGN_OR_RETURN(const auto client, Client::Dial(global.tls, global.coordinator));
  ATOLL_ASSIGN_OR_RETURN(*request.mutable_job(), client->FindJob(job));
  ATOLL_ASSIGN_OR_RETURN(const v1::TraceReply reply, client->Trace(request));
  ATOLL_ASSIGN_OR_RETURN(const TraceAnswer answer, ToAnswer(reply));
  std::vector<StepView> views;
  if (answer.predicted) views.push_back({"predicted", &*answer.predicted});
  views.push_back({"measured", &answer.measured});
  // First what cannot fail: a step is not recorded twice.
  std::cout << (global.structured ? Document(reply) : TraceText(answer)) << std::flush;
  if (!flags.out.empty()) ATOLL_RETURN_IF_ERROR(WriteFile(flags.out, StepsAsPerfetto(views)));
  if (!flags.svg.empty()) {
    ATOLL_RETURN_IF_ERROR(WriteFile(flags.svg, StepsAsSvg({{Title(answer), views}})));
  }
  return absl::OkStatus();
}

}  // namespace

int Trace(const Global& global, const std::string& job, const TraceFlags& flags) {
  if (flags.timeout_s < 1 || flags.timeout_s > 300) {
    return FailUsage(
        absl::StrCat("--timeout ", flags.timeout_s, ": must be from 1 to 300 seconds"));
  }
  return ExitCode(Run(global, job, flags));
}

}  // namespace atl::cli
