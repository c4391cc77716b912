// Words that both ends of a tensor link use; see tensor_server.h and tensor_client.h.

#ifndef ATOLL_COMMON_NET_TENSOR_TENSOR_TYPES_H_
#define ATOLL_COMMON_NET_TENSOR_TENSOR_TYPES_H_

#include <cstdint>
#include <mutex>

#include "common/ids.h"
#include "common/time.h"

namespace atl {

// The server's answer to a push. kStaged: this delivery was taken. kDuplicate: an earlier one was,
// this one changes nothing. kRefused: it will not be taken, and the reason says why.
enum class PushStatus : uint8_t { kStaged = 0, kDuplicate = 1, kRefused = 2 };

// A pull's request. Elements travel as fp32. Of the pulls that a server answers connections take
// turns, each with its oldest.
struct PullRequest {
  JobId job;
  // The exact version wanted, or kNoVersion for the newest that the server has.
  Version version = kNoVersion;
  ShardId shard = 0;
  // Elements of the shard: [begin, begin + elements); 0 elements: the whole shard.
  int64_t begin = 0;
  int64_t elements = 0;
  int32_t slot = 0;  // of the outer optimizer's state, from 1 on; or one of those below

  bool operator==(const PullRequest&) const = default;
};

// PullRequest::slot. The parameters as islands hold them; as the server has them, which differ
// where pulls are quantised; and the step that made this version of the former of the one before,
// as it is encoded. Its "elements" are words of 4 bytes of that encoding (EncodedWords), never
// converted; and in such words the averaged moments, as Encoding::kMomentsAlone. kPullAverage: the
// moving average of the parameters.
inline constexpr int32_t kPullServed = 0, kPullTheta = -1, kPullStep = -2, kPullAverage = -3,
                         kPullMoments = -4;

inline constexpr int64_t EncodedWords(Encoding encoding, int64_t elements) {
  return (EncodedBytes(encoding, elements) + 3) / 4;
}

// Pushes and pulls of this job, which is no job's id (those end with a number), measure a link
// (link_probe.h): servers answer them from memory, without their handler.
inline constexpr char kProbeJob[] = "link-probe";
inline constexpr int64_t kProbeElementsMax = int64_t{4} << 20;  // 16 MiB

// The reason why a server does not answer a pull with a tensor. kNotYet: the version is still to
// come. kSuperseded: a newer one has replaced it. kUnknown: no such job or shard here.
enum class PullRefusal : uint8_t { kNotYet = 0, kSuperseded = 1, kUnknown = 2 };

// Counters of one end of a link since it was made. All only grow.
struct LinkCounters {
  int64_t payload_bytes_sent = 0;      // tensor bytes as encoded, repeated ones included
  int64_t payload_bytes_received = 0;  // tensor bytes of chunks that passed every check
  int64_t transfers_done = 0;          // pushes acknowledged and pulls complete
  int64_t transfers_failed = 0;        // refused, cancelled, timed out
  int64_t restarts = 0;                // attempts after the first: lost connection, corrupt chunk
  int64_t frames_refused = 0;          // frames that broke the protocol and were dropped
  double transfer_seconds = 0;         // sum of the durations of the transfers done
};

// An end that counts. Thread-safe.
class CountsTransfers {
 public:
  LinkCounters counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

 protected:
  void Count(int64_t LinkCounters::*counter, int64_t amount = 1) {
    const std::lock_guard lock(mutex_);
    counters_.*counter += amount;
  }
  void CountDone(Duration took) {
    const std::lock_guard lock(mutex_);
    ++counters_.transfers_done;
    counters_.transfer_seconds += Seconds(took);
  }

 private:
  mutable std::mutex mutex_;
  LinkCounters counters_;  // guarded by mutex_
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_TENSOR_TYPES_H_
