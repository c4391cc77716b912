// Into how many chunks the messages of one stage link are cut: the rule of SpanTrain's adapter,
// with what it leaves open decided. Pure: measurements in, decisions with their reasons out. A
// stage link is one direction between two devices of neighbouring stages; its sender decides alone.
//
// A micro-batch of N sequences that goes in k chunks of n = N / k has passed the stage link after
//
//   compute(n) + l + n x + compute(n) + (k - 1) max(compute(n), n x)
//
// (the first chunk on both sides of the link, then the others at the pace of the slower one), where
// compute(n) = a + c n and the message's time l + n x are lines fitted to what was measured, n in
// chunks of different size. Latency counts once: messages do not wait for each other's arrival.
// `a`, what cutting costs the devices, is what keeps chunks from becoming ever smaller.
//
// - In the fill and the drain of a step, where this time is exposed, k is whichever of k/2, k and
//   2k makes it least.
// - In steady state chunks help only where the stage waits for messages, and no formula gives their
//   gain: schedules hide waiting behind other work. So from one chunk on their number is doubled,
//   at most to that of fill and drain, while waiting takes more than 3% of the work and cutting
//   costs less than an eighth of it (there are two ends and two directions). A doubling that did
//   not end a tenth of the waiting is undone, and tried again when there is more or less of it by
//   a quarter. After 8 steps with hardly any waiting the number is halved; if waiting comes back,
//   the next time after twice as many.
// - Measurements come in windows of 20 messages, averaged with weights that halve per window. Of a
//   window's messages of one size the quickest counts: others waited behind the chunk before. A
//   number is considered again only if they moved by more than 25% since it was chosen, or a size
//   was tried for the first time: noise changes nothing.
// - A link that takes longer for a micro-batch's bytes than its stage for all work on it (F, B and
//   W) in two windows of different steps is saturated; and not any more when it takes less than
//   three quarters of it, as often. No chunks help; the island's leader sends a replan request.
// - What has no bytes, no rows or took no time is no measurement.

#ifndef ATOLL_WORKER_PIPELINE_ADAPTER_H_
#define ATOLL_WORKER_PIPELINE_ADAPTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace atl::worker {

struct StageLinkSetup {
  std::string from, to;  // devices
  bool gradient = false;
  int64_t rows = 0;  // N of a full micro-batch
  int64_t bytes_per_row = 0;
  int max_chunks = 1;  // a power of two
  // Gives each window its number; unset: 1, 2, ...
  std::function<int64_t()> next_window;
};

// A message that has arrived.
struct SeenMessage {
  int64_t bytes = 0;  // 0: none
  double seconds = 0;
};

// The phase of a step in which a message leaves. Exposed are activations until the stage's first B,
// and of those micro-batches whose B comes after its last F; and gradients after its last F.
enum class StepPhase : uint8_t { kFillOrDrain, kSteady };

// y = base + slope * x, both at least 0, through the means of what was seen at each x.
class LinearFit {
 public:
  // The mean of some measurements at x, for half of the weight of all at this x. One that is more
  // than 25% off what x had so far moves the slope at once, and with it what other sizes had.
  void Add(double x, double y);
  double at(double x) const { return base_ + slope_ * x; }
  double base() const { return base_; }
  double slope() const { return slope_; }
  int sizes() const { return static_cast<int>(means_.size()); }

 private:
  std::map<double, double> means_;
  double base_ = 0, slope_ = 0;
};

class Adapter {
 public:
  explicit Adapter(StageLinkSetup setup);

  // A chunk was computed for this stage link (F for activations, B for gradients).
  void OnCompute(int64_t rows, double seconds);
  // Notes one step: F, B and W of one full micro-batch took so long, and in steady state it was
  // waited for so long.
  void OnWork(double seconds, double waited_seconds);
  // Starts a new step: reasons after it are of that step.
  void BeginStep() { has_reason_ = false; }
  // A message arrived, so long after its first byte left. Returns whether something worth a log
  // stage link changed: a number of chunks, or saturation; then reason() says why.
  bool OnMessage(int64_t bytes, double seconds);

  int chunks(StepPhase phase) const { return phase == StepPhase::kSteady ? steady_ : fill_; }
  bool saturated() const { return saturated_; }
  // Returns the reasons of all that changed in the newest step in which something did.
  const std::string& reason() const { return reason_; }
  const StageLinkSetup& setup() const { return setup_; }
  // Returns the time of a message in the newest window; 0: none yet.
  double message_seconds() const { return message_seconds_; }
  int64_t window() const { return window_; }  // its number
  // Returns the quickest of the newest window's largest messages: others may have waited for a busy
  // machine.
  const SeenMessage& quickest() const { return quickest_; }
  double bandwidth_bytes_per_s() const;

 private:
  bool EndWindow();
  bool Decide();
  bool CheckSaturation();
  void AddReason(std::string reason);
  int Best(int now) const;
  bool RaiseChunks();
  double EstimatePassageTime(int chunks) const;
  bool Moved() const;

  const StageLinkSetup setup_;
  int fill_ = 1, steady_ = 1;
  bool saturated_ = false;
  std::string reason_;
  bool has_reason_ = false;  // AddReason was called in this step

  // The window under way, by size.
  struct Sum {
    double value = 0, least = 0;
    int count = 0;
  };
  std::map<int64_t, Sum> messages_, computes_;  // by bytes; by rows
  int messages_seen_ = 0;
  SeenMessage best_;
  Sum work_, wait_;  // by step

  LinearFit link_, compute_;
  double work_seconds_ = 0;
  // Waiting in steady state: in the newest steps; before the newest doubling, which is to be judged
  // (0: none is), and after one without effect (0: none was).
  double wait_seconds_ = 0, wait_before_ = 0, wait_without_gain_ = 0;
  int calm_ = 0, patience_ = 8;  // steps in a row with hardly any; after so many chunks are halved
  bool halved_ = false;          // by that, since the newest doubling
  double message_seconds_ = 0;
  int64_t window_ = 0;
  SeenMessage quickest_;
  // Windows in a row, each of another step, that contradict saturated_.
  int contrary_windows_ = 0;
  // Times of a whole micro-batch when the numbers were chosen.
  double chosen_link_ = 0, chosen_compute_ = 0;
  int chosen_sizes_ = 0;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_ADAPTER_H_
