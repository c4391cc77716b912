// gRPC: streams of 1 MB of bytes in protobuf messages, put together in one buffer at the other end.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bench/dataplane/peer.h"
#include "bench/dataplane/stream.grpc.pb.h"
#include "common/check.h"

namespace atl::bench {
namespace {

// Sends `bytes` of `data` through `writer` in chunks.
template <typename Writer>
void WriteChunks(Writer& writer, const std::string& data, int64_t bytes) {
  Chunk chunk;
  for (int64_t offset = 0; offset < bytes; offset += kChunkBytes) {
    chunk.set_data(data.data() + offset, std::min(kChunkBytes, bytes - offset));
    ATOLL_CHECK(writer.Write(chunk));
  }
}

template <typename Reader>
int64_t ReadChunks(Reader& reader, std::string& data) {
  Chunk chunk;
  int64_t offset = 0;
  while (reader.Read(&chunk)) {
    ATOLL_CHECK(offset + chunk.data().size() <= data.size());
    std::memcpy(data.data() + offset, chunk.data().data(), chunk.data().size());
    offset += static_cast<int64_t>(chunk.data().size());
  }
  return offset;
}

class GrpcServer : public Server, public Streams::Service {
 public:
  GrpcServer() : data_(kTotalBytes, 'a') {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ATOLL_CHECK(server_ != nullptr);
  }
  int port() const override { return port_; }

  grpc::Status Push(grpc::ServerContext*, grpc::ServerReader<Chunk>* reader,
                    Amount* amount) override {
    amount->set_bytes(ReadChunks(*reader, data_));
    return grpc::Status::OK;
  }
  grpc::Status Pull(grpc::ServerContext*, const Amount* amount,
                    grpc::ServerWriter<Chunk>* writer) override {
    WriteChunks(*writer, data_, amount->bytes());
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::string data_;
  std::unique_ptr<grpc::Server> server_;
};

class GrpcClient : public Client {
 public:
  explicit GrpcClient(int port)
      : data_(kTotalBytes, 'b'),
        stub_(Streams::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                   grpc::InsecureChannelCredentials()))) {}

  void Round(const Load& load) override {
    const int64_t bytes = load.tensor_bytes() * load.count;
    {
      grpc::ClientContext context;
      Amount taken;
      auto writer = stub_->Push(&context, &taken);
      WriteChunks(*writer, data_, bytes);
      writer->WritesDone();
      ATOLL_CHECK(writer->Finish().ok() && taken.bytes() == bytes);
    }
    grpc::ClientContext context;
    Amount wanted;
    wanted.set_bytes(bytes);
    auto reader = stub_->Pull(&context, wanted);
    ATOLL_CHECK(ReadChunks(*reader, data_) == bytes);
    ATOLL_CHECK(reader->Finish().ok());
  }

 private:
  std::string data_;
  std::unique_ptr<Streams::Stub> stub_;
};

}  // namespace

std::unique_ptr<Server> MakeGrpcServer() { return std::make_unique<GrpcServer>(); }
std::unique_ptr<Client> MakeGrpcClient(int port) { return std::make_unique<GrpcClient>(port); }

}  // namespace atl::bench
