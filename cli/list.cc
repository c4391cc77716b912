#include "cli/list.h"

#include <algorithm>
#include <functional>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/text/render.h"

namespace atl::cli {
namespace {

constexpr int kDaysMax = 100'000;

using Less = std::function<bool(const v1::JobSummary&, const v1::JobSummary&)>;

template <class Get>
Less By(Get get) {
  return [get](const v1::JobSummary& a, const v1::JobSummary& b) { return get(a) < get(b); };
}

const std::map<std::string, Less>& Orders() {
  static const auto* const orders = new std::map<std::string, Less>{
      {"submitted", By([](const v1::JobSummary& s) { return s.submitted_unix_ms(); })},
      {"age", By([](const v1::JobSummary& s) { return -s.submitted_unix_ms(); })},
      {"job", By([](const v1::JobSummary& s) { return s.job(); })},
      {"state", By([](const v1::JobSummary& s) { return s.state(); })},
      {"version", By([](const v1::JobSummary& s) { return s.version(); })},
      {"loss", By([](const v1::JobSummary& s) { return ShownLoss(s); })},
      {"validation", By([](const v1::JobSummary& s) { return s.validation_loss(); })},
      {"speed", By([](const v1::JobSummary& s) { return ShownSpeed(s); })}};
  return *orders;
}

}  // namespace

std::vector<std::string> ListStates() {
  std::vector<std::string> names;
  for (int s = v1::JOB_STATE_QUEUED; s <= v1::JobState_MAX; ++s) {
    names.push_back(StateName(static_cast<v1::JobState>(s)));
  }
  return names;
}

std::vector<std::string> ListSortKeys() {
  std::vector<std::string> keys;
  for (const auto& [key, order] : Orders()) keys.push_back(key);
  return keys;
}

v1::ListReply Select(const v1::ListReply& all, const std::vector<std::string>& states,
                     const std::string& sort, bool reverse, int64_t newest) {
  std::vector<v1::JobSummary> jobs;
  for (const v1::JobSummary& job : all.jobs()) {
    const bool wanted = states.empty() || std::find(states.begin(), states.end(),
                                                    StateName(job.state())) != states.end();
    if (wanted) jobs.push_back(job);
  }
  // A page lists all jobs that have not ended, which may be older than those of the next one.
  std::stable_sort(jobs.begin(), jobs.end(), Orders().find("submitted")->second);
  if (newest > 0 && static_cast<int64_t>(jobs.size()) > newest) {
    jobs.erase(jobs.begin(), jobs.end() - newest);
  }
  const auto order = Orders().find(sort);
  if (order != Orders().end()) std::stable_sort(jobs.begin(), jobs.end(), order->second);
  if (reverse) std::reverse(jobs.begin(), jobs.end());
  v1::ListReply selected;
  *selected.mutable_orphans() = all.orphans();
  selected.set_before(newest == 0 ? all.before() : 0);
  for (v1::JobSummary& job : jobs) *selected.add_jobs() = std::move(job);
  return selected;
}

absl::StatusOr<int64_t> ParseSince(const std::string& text, int64_t now_ms) {
  if (text.empty()) return 0;
  // Days, which Abseil has not.
  int days = 0;
  absl::string_view rest = text;
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits < text.size() && text[digits] == 'd' &&
      absl::SimpleAtoi(text.substr(0, digits), &days) && days < kDaysMax) {
    rest.remove_prefix(digits + 1);
  } else {
    days = 0;
  }
  absl::Duration before;
  if (days > 0 && rest.empty()) rest = "0s";
  if (absl::ParseDuration(rest, &before) && before >= absl::ZeroDuration()) {
    return std::max<int64_t>(0,
                             now_ms - absl::ToInt64Milliseconds(before + days * absl::Hours(24)));
  }
  absl::Time at;
  std::string error;
  if (absl::ParseTime(absl::RFC3339_full, text, &at, &error) ||
      absl::ParseTime("%Y-%m-%d", text, absl::LocalTimeZone(), &at, &error)) {
    return absl::ToUnixMillis(at);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--since ", text,
                   ": a time back such as 10m, 1h30m or 2d, or a time such as "
                   "2026-11-22T10:00:00Z or 2026-11-22"));
}

}  // namespace atl::cli
