// One fake member's stream of the coordinator's keys, over its Attach stream's channel, as members
// have it. For benchmarks; includes gRPC.

#ifndef ATOLL_BENCH_MEMBERS_KEY_STREAM_H_
#define ATOLL_BENCH_MEMBERS_KEY_STREAM_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <memory>

#include "common/net/channel.h"
#include "proto/trust.grpc.pb.h"

namespace atl::bench {

// To be kept until it is done.
class KeyStream : public grpc::ClientReadReactor<v1::ClientKeys> {
 public:
  explicit KeyStream(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Trust::NewStub(channel)) {
    stub_->async()->WatchKeys(&context_, &request_, this);
    StartRead(&keys_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (ok) StartRead(&keys_);
  }
  void OnDone(const grpc::Status&) override { done_ = true; }
  bool done() const { return done_; }

 private:
  const std::unique_ptr<v1::Trust::Stub> stub_;
  grpc::ClientContext context_;
  const v1::WatchKeysRequest request_;
  v1::ClientKeys keys_;
  std::atomic<bool> done_ = false;
};

}  // namespace atl::bench

#endif  // ATOLL_BENCH_MEMBERS_KEY_STREAM_H_
