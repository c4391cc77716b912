#include "worker/pipeline/adapter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/number_text.h"

namespace atl::worker {
namespace {

constexpr int kWindow = 20;
constexpr size_t kReasonMax = 1000;  // longer ones get no more added
constexpr double kHysteresis = 0.25;
constexpr double kWaitMin = 0.03;     // of the work; less waiting is let be
constexpr double kWaitCost = 0.125;   // of the waiting, that chunks may cost
constexpr double kWaitGainMin = 0.1;  // of the waiting, that a doubling has to end
constexpr int kPatienceMax = 512;     // steps
constexpr double kGainMin = 0.02;     // of the passage; less is not worth a change
constexpr int kSaturatedWindows = 2;  // to set it, and to clear it
constexpr double kRelieved = 0.75;    // link's share of the work below which it is not saturated

bool Apart(double now, double before) {
  return std::abs(now - before) > kHysteresis * std::max(before, 1e-12);
}

}  // namespace

void LinearFit::Add(double x, double y) {
  const auto [it, is_new] = means_.try_emplace(x, y);
  if (!is_new && Apart(y, it->second)) {
    // Measurements at other sizes are of another time. The base is taken to have stayed.
    const double base = std::min(base_, y);
    for (auto& [size, mean] : means_) mean = base + (y - base) / x * size;
  } else if (!is_new) {
    it->second = 0.5 * (it->second + y);
  }
  double mean_x = 0, mean_y = 0;
  for (const auto& [size, mean] : means_) mean_x += size, mean_y += mean;
  mean_x /= static_cast<double>(means_.size());
  mean_y /= static_cast<double>(means_.size());
  double xx = 0, xy = 0;
  for (const auto& [size, mean] : means_) {
    xx += (size - mean_x) * (size - mean_x);
    xy += (size - mean_x) * (mean - mean_y);
  }
  // With one size base and slope cannot be separated: all of it is slope, so that sizes get tried.
  slope_ = xx > 0 ? std::max(0.0, xy / xx) : mean_y / mean_x;
  base_ = mean_y - slope_ * mean_x;
  if (base_ >= 0) return;
  base_ = 0;
  slope_ = mean_y / mean_x;
}

Adapter::Adapter(StageLinkSetup setup) : setup_(std::move(setup)) {}

double Adapter::bandwidth_bytes_per_s() const { return link_.slope() > 0 ? 1 / link_.slope() : 0; }

void Adapter::OnCompute(int64_t rows, double seconds) {
  if (rows <= 0 || !(seconds > 0)) return;
  Sum& sum = computes_[rows];
  sum.value += seconds;
  ++sum.count;
}

void Adapter::OnWork(double seconds, double waited_seconds) {
  if (!(seconds > 0)) return;
  work_.value += seconds;
  wait_.value += waited_seconds;
  ++work_.count;
}

bool Adapter::OnMessage(int64_t bytes, double seconds) {
  if (bytes <= 0 || !(seconds > 0)) return false;
  Sum& sum = messages_[bytes];
  sum.value += seconds;
  sum.least = sum.count == 0 ? seconds : std::min(sum.least, seconds);
  ++sum.count;
  if (bytes > best_.bytes || (bytes == best_.bytes && seconds < best_.seconds)) {
    best_ = {bytes, seconds};
  }
  return ++messages_seen_ >= kWindow && EndWindow();
}

bool Adapter::EndWindow() {
  double seconds = 0;
  for (const auto& [bytes, sum] : messages_) {
    link_.Add(static_cast<double>(bytes), sum.least);
    seconds += sum.value;
  }
  for (const auto& [rows, sum] : computes_) {
    compute_.Add(static_cast<double>(rows), sum.value / sum.count);
  }
  const bool stepped = work_.count > 0;
  if (stepped) {
    const double work = work_.value / work_.count;
    work_seconds_ = work_seconds_ == 0 ? work : 0.5 * (work_seconds_ + work);
    wait_seconds_ = wait_.value / work_.count;
  }
  message_seconds_ = seconds / messages_seen_;
  window_ = setup_.next_window ? setup_.next_window() : window_ + 1;
  quickest_ = std::exchange(best_, {});
  messages_.clear();
  computes_.clear();
  messages_seen_ = 0;
  work_ = wait_ = Sum();
  const bool saturation = stepped && CheckSaturation();
  const bool decided = Decide();
  return (stepped && RaiseChunks()) || decided || saturation;
}

void Adapter::AddReason(std::string reason) {
  if (!std::exchange(has_reason_, true)) {
    reason_ = std::move(reason);
  } else if (reason_.size() < kReasonMax) {
    absl::StrAppend(&reason_, "; ", reason);
  }
}

double Adapter::EstimatePassageTime(int chunks) const {
  const double rows = static_cast<double>(setup_.rows) / chunks;
  const double bytes = rows * static_cast<double>(setup_.bytes_per_row);
  const double compute = compute_.at(rows);
  return 2 * compute + link_.at(bytes) + (chunks - 1) * std::max(compute, link_.slope() * bytes);
}

int Adapter::Best(int now) const {
  const auto limit = static_cast<int>(std::min<int64_t>(setup_.max_chunks, setup_.rows));
  int best = now;
  for (const int k : {now / 2, 2 * now}) {
    if (k < 1 || k > limit) continue;
    if (EstimatePassageTime(k) < (1 - kGainMin) * EstimatePassageTime(best)) best = k;
  }
  return best;
}

bool Adapter::RaiseChunks() {
  const int before = steady_;
  const double waited = wait_seconds_;
  const bool waits = waited > kWaitMin * work_seconds_;
  calm_ = waits ? 0 : calm_ + 1;
  const bool no_gain = wait_before_ > 0 && waited > (1 - kWaitGainMin) * wait_before_;
  const bool affordable = compute_.sizes() > 1 && 2 * steady_ <= fill_ &&
                          (2 * steady_ - 1) * compute_.base() < kWaitCost * waited;
  wait_before_ = 0;
  if (no_gain) {
    steady_ = std::max(1, steady_ / 2);
    wait_without_gain_ = waited;
  } else if (waits && affordable &&
             (wait_without_gain_ == 0 || Apart(waited, wait_without_gain_))) {
    steady_ *= 2;
    wait_before_ = waited;
    wait_without_gain_ = 0;
    if (std::exchange(halved_, false)) patience_ = std::min(2 * patience_, kPatienceMax);
  } else if (steady_ > 1 && calm_ >= patience_) {
    steady_ /= 2;
    calm_ = 0;
    halved_ = true;
  }
  if (steady_ == before) return false;
  AddReason(
      absl::StrFormat("%d chunks between fill and drain (%d before): %.1f ms of waiting a "
                      "micro-batch of %.1f ms of work%s",
                      steady_, before, 1e3 * waited, 1e3 * work_seconds_,
                      no_gain ? ", no less than with fewer chunks" : ""));
  return true;
}

bool Adapter::Moved() const {
  const auto rows = static_cast<double>(setup_.rows);
  return link_.sizes() + compute_.sizes() > chosen_sizes_ ||
         Apart(link_.at(rows * static_cast<double>(setup_.bytes_per_row)), chosen_link_) ||
         Apart(compute_.at(rows), chosen_compute_);
}

bool Adapter::Decide() {
  if (compute_.sizes() == 0 || !Moved()) return false;
  const auto rows = static_cast<double>(setup_.rows);
  const double link = link_.at(rows * static_cast<double>(setup_.bytes_per_row));
  const int fill = Best(fill_);
  const int steady = std::min(steady_, fill);
  chosen_link_ = link;
  chosen_compute_ = compute_.at(rows);
  chosen_sizes_ = link_.sizes() + compute_.sizes();
  if (fill == fill_ && steady == steady_) return false;
  chosen_sizes_ = 0;  // one step of two: consider it again after the next window
  if (steady != steady_) wait_before_ = 0;
  AddReason(absl::StrFormat(
      "%d chunks in fill and drain (%d before), %d between (%d before): a micro-batch computes "
      "%.1f ms and travels %.1f ms, %.1f of them latency",
      fill, fill_, steady, steady_, 1e3 * chosen_compute_, 1e3 * link, 1e3 * link_.base()));
  fill_ = fill;
  steady_ = steady;
  return true;
}

bool Adapter::CheckSaturation() {
  const double busy = link_.slope() * static_cast<double>(setup_.rows * setup_.bytes_per_row);
  if (work_seconds_ == 0) return false;
  const bool over = busy > (saturated_ ? kRelieved : 1) * work_seconds_;
  contrary_windows_ = over == saturated_ ? 0 : contrary_windows_ + 1;
  if (contrary_windows_ < kSaturatedWindows) return false;
  contrary_windows_ = 0;
  saturated_ = over;
  AddReason(absl::StrCat(over ? "saturated: " : "no longer saturated: ", SecondsText(busy),
                         " of bytes a micro-batch, ", SecondsText(work_seconds_), " of work"));
  return true;
}

}  // namespace atl::worker
