
#include "absl/strings/str_cat.h"
#include "cli/text/render.h"
#include "common/plural.h"

namespace atl::cli {
namespace {

std::string PlaceText(const v1::RehearsedSpread& spread, double value) {
  if (value < spread.low()) return "below";
  return spread.high() > 0 && value > spread.high() ? "above" : "inside";
}

}  // namespace

std::string RehearsedText(const v1::Job& job) {
  const v1::RehearsedSpec& rehearsed = job.spec().rehearsed();
  if (rehearsed.runs() == 0) return "";
  const auto spread_text = [](const v1::RehearsedSpread& spread, const auto& text) {
    return absl::StrCat(text(spread.low()), " to ",
                        spread.high() > 0 ? text(spread.high()) : "never seen");
  };
  const v1::JobSummary& s = job.summary();
  std::string out =
      absl::StrCat("rehearsed, 5 to 95% of ", CountText(rehearsed.runs(), "run"), ": ",
                   spread_text(rehearsed.tokens_per_s(), Count), " ", TokenUnit(s), "/s");
  // Rates since the submission, as a rehearsal has them, without pauses.
  double rate = 0;
  if (s.mean_tokens_per_s() > 0 && s.started_unix_ms() > 0 && s.tokens_committed() > 0) {
    const auto tokens = static_cast<double>(s.tokens_committed());
    const auto began_s = static_cast<double>(s.started_unix_ms() - s.submitted_unix_ms()) / 1e3;
    rate = tokens / (tokens / s.mean_tokens_per_s() + began_s);
    absl::StrAppend(&out, ", now ", Count(rate), " (", PlaceText(rehearsed.tokens_per_s(), rate),
                    ")");
  }
  if (rehearsed.finish_s().low() <= 0) return out;
  absl::StrAppend(&out, "; finish after ", spread_text(rehearsed.finish_s(), Seconds));
  if (rate <= 0 || s.state() == v1::JOB_STATE_FAILED || s.state() == v1::JOB_STATE_CANCELLED) {
    return out;
  }
  const double finish =
      s.state() == v1::JOB_STATE_DONE
          ? static_cast<double>(s.ended_unix_ms() - s.submitted_unix_ms() - s.paused_ms()) / 1e3
          : static_cast<double>(s.tokens_budget()) / rate;
  return absl::StrCat(out, s.state() == v1::JOB_STATE_DONE ? ", was " : ", at this rate ",
                      Seconds(finish), " (", PlaceText(rehearsed.finish_s(), finish), ")");
}

}  // namespace atl::cli
