// A member's Attach stream, of which the list of keys is read.

#ifndef ATOLL_TESTS_SECURITY_KEY_READER_H_
#define ATOLL_TESTS_SECURITY_KEY_READER_H_

#include <grpcpp/client_context.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <type_traits>

#include "common/protocol/wire.h"
#include "proto/control.grpc.pb.h"
#include "tests/catch/limits.h"
#include "tests/security/cluster.h"

namespace atl {

template <class Service, class Up, class Down>
class KeyReader {
 public:
  KeyReader(const Cluster& cluster, const Identity& self) {
    context_.set_deadline(std::chrono::system_clock::now() + testing::kHangLimit);
    stub_ = Service::NewStub(cluster.Dial(self));
    stream_ = stub_->Attach(&context_);
    Up hello;
    if constexpr (std::is_same_v<Service, v1::WorkerControl>) {
      REQUIRE(Encode(FromWorker{self.name, 1, WorkerHello{}}, &hello).ok());
    } else {
      REQUIRE(Encode(FromServer{self.name, 1, ServerHello{}}, &hello).ok());
    }
    REQUIRE(stream_->Write(hello));
  }
  ~KeyReader() { Stop(); }

  // The next list that comes, if one does before the stream's end.
  bool Next(v1::ClientKeys* keys) {
    Down message;
    while (stream_->Read(&message)) {
      if (!message.has_client_keys()) continue;
      *keys = message.client_keys();
      return true;
    }
    return false;
  }
  void Stop() { context_.TryCancel(); }  // any thread

 private:
  grpc::ClientContext context_;
  std::unique_ptr<typename Service::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<Up, Down>> stream_;
};

using WorkerKeyReader = KeyReader<v1::WorkerControl, v1::FromWorker, v1::ToWorker>;
using ServerKeyReader = KeyReader<v1::ServerControl, v1::FromServer, v1::ToServer>;

}  // namespace atl

#endif  // ATOLL_TESTS_SECURITY_KEY_READER_H_
