// Calls that watch a job or the cluster and never read an answer. For benchmarks; includes gRPC.

#ifndef ATOLL_BENCH_MEMBERS_WATCHERS_H_
#define ATOLL_BENCH_MEMBERS_WATCHERS_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <memory>

#include "common/ids.h"
#include "proto/coordinator.grpc.pb.h"

namespace atl::bench {

// Exists as long as the process: a call without a read does not end.
class JobWatcher : public grpc::ClientReadReactor<v1::Job> {
 public:
  JobWatcher(const std::shared_ptr<grpc::Channel>& channel, const JobId& job)
      : stub_(v1::Jobs::NewStub(channel)) {
    request_.set_job(job);
    request_.set_interval_ms(100);
    stub_->async()->Watch(&context_, &request_, this);
    StartCall();
  }

 private:
  const std::unique_ptr<v1::Jobs::Stub> stub_;
  grpc::ClientContext context_;
  v1::WatchRequest request_;
};

// Likewise.
class ClusterWatcher : public grpc::ClientReadReactor<v1::ClusterStatus> {
 public:
  explicit ClusterWatcher(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Status::NewStub(channel)) {
    request_.set_interval_ms(100);
    stub_->async()->Watch(&context_, &request_, this);
    StartCall();
  }

 private:
  const std::unique_ptr<v1::Status::Stub> stub_;
  grpc::ClientContext context_;
  v1::StatusRequest request_;
};

}  // namespace atl::bench

#endif  // ATOLL_BENCH_MEMBERS_WATCHERS_H_
