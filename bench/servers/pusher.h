// Pushes and pulls of one island without a model: real bytes to real parameter servers, by the
// client and within the limits of a worker.

#ifndef ATOLL_BENCH_SERVERS_PUSHER_H_
#define ATOLL_BENCH_SERVERS_PUSHER_H_

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "common/net/tensor/tensor_client.h"
#include "common/protocol/control.h"

namespace atl::bench {

// Prints a line for every transfer and for every batch of transfers that ends, times in seconds of
// the machine's steady clock:
//   push <begin> <end> <bytes>
//   pushed <island> <begin> <end> <bytes>      all that was granted at a time
//   pulled <island> <begin> <end> <bytes>
// Thread-safe.
class Pusher {
 public:
  Pusher(IslandId island, TensorClientOptions options);

  // Once, however often it is called with the same push; a failed one may be pushed again.
  void Push(const ShardPlacement& at, const PushId& push, Encoding encoding);
  // All shards that were pushed, as fp32.
  void Pull(Version version);

 private:
  struct Transfer {
    ShardPlacement at;
    PushId push;
    Encoding encoding = Encoding::kFloat32;
    bool is_pull = false;
  };
  struct Batch {
    double begin_s = 0;
    int64_t bytes = 0;
  };

  void StartSome();
  void Start(const Transfer& transfer);
  void Ended(const Transfer& transfer, double begin_s, const absl::Status& status);
  std::span<const std::byte> Encoded(Encoding encoding, int64_t elements);

  const IslandId island_;
  std::mutex mutex_;  // guards all below
  std::shared_ptr<std::vector<float>> values_ = std::make_shared<std::vector<float>>();
  std::shared_ptr<std::vector<std::byte>> encoded_ = std::make_shared<std::vector<std::byte>>();
  std::vector<float> pulled_;  // of all pulls: what comes is not looked at, but has a place
  std::map<ShardId, ShardPlacement> shards_;
  std::set<PushId> known_;
  std::deque<Transfer> waiting_;
  int running_ = 0;
  Batch batch_;
  std::unique_ptr<TensorClient> client_;  // last: its thread uses what is above
};

}  // namespace atl::bench

#endif  // ATOLL_BENCH_SERVERS_PUSHER_H_
