// Atoll's tensor links, as workers and parameter servers use them.

#include <unistd.h>

#include <array>
#include <latch>
#include <vector>

#include "bench/dataplane/peer.h"
#include "common/check.h"
#include "common/net/relay/relay.h"
#include "common/net/relay/words.h"
#include "common/net/tensor/tensor_client.h"
#include "common/net/tensor/tensor_server.h"

namespace atl::bench {
namespace {

const KeyPair& ServerKeys() {
  static const KeyPair keys = GenerateKeyPair().value();
  return keys;
}
const KeyPair& ClientKeys() {
  static const KeyPair keys = GenerateKeyPair().value();
  return keys;
}

// The relay's, from the server's process to the client's.
const std::array<int, 2>& Secrets() {
  static const std::array<int, 2> ends = [] {
    std::array<int, 2> made;
    ATOLL_CHECK(pipe(made.data()) == 0);
    return made;
  }();
  return ends;
}

constexpr ssize_t kSecretBytes = 64;

// A pulled shard's number is its number of elements.
class BenchServer : public Server, public TensorHandler {
 public:
  void AcceptThrough(const LinkWay& way) { server_->AcceptThrough({way}); }
  explicit BenchServer(const ServerSecurity& security)
      : values_(std::make_shared<std::vector<float>>(kTotalBytes / 2, 1.5f)) {
    server_ =
        TensorServer::Create({.endpoint = "tcp://127.0.0.1:*", .security = security}, this).value();
  }
  int port() const override {
    const std::string& endpoint = server_->endpoint();
    return std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
  }

  absl::Status AdmitPush(const PushId&, Encoding, int64_t) override { return absl::OkStatus(); }
  void OnPush(const PushId&, Encoding, int64_t, Payload, ReplyToken token) override {
    server_->AcknowledgePush(token, PushStatus::kStaged);
  }
  void OnPull(const PullRequest& request, ReplyToken token) override {
    const auto elements = request.elements > 0 ? request.elements : request.shard;
    server_->ReplyPull(token, 1, std::span(*values_).subspan(request.begin, elements), values_);
  }

 private:
  std::shared_ptr<std::vector<float>> values_;
  std::unique_ptr<TensorServer> server_;
};

class BenchClient : public Client {
 public:
  BenchClient(int port, const KeyPair& keys, const std::string& server_key)
      : BenchClient("tcp://127.0.0.1:" + std::to_string(port), keys, server_key) {}
  BenchClient(const std::string& endpoint, const KeyPair& keys, const std::string& server_key)
      : server_{endpoint, server_key},
        values_(std::make_shared<std::vector<float>>(kTotalBytes / 2, 2.5f)) {
    client_ =
        TensorClient::Create({.security = {.keys = keys}, .chunk_bytes = kChunkBytes}).value();
  }

  void Round(const Load& load) override {
    const std::span<float> all(*values_);
    std::latch pushed(load.count), pulled(load.count);
    for (int i = 0; i < load.count; ++i) {
      client_->Push(server_, {"bench", 0, 1, 1, ++round_, i}, load.encoding,
                    all.subspan(i * load.elements, load.elements), values_, std::chrono::minutes(1),
                    [&](PushResult result) {
                      ATOLL_CHECK(result.status.ok(), result.status.ToString());
                      pushed.count_down();
                    });
    }
    pushed.wait();
    const int64_t words = load.tensor_bytes() / 4;  // as many bytes
    for (int i = 0; i < load.count; ++i) {
      client_->Pull(server_, {"bench", 1, static_cast<ShardId>(words)},
                    all.subspan(i * words, words), std::chrono::minutes(1), [&](PullResult result) {
                      ATOLL_CHECK(result.status.ok(), result.status.ToString());
                      pulled.count_down();
                    });
    }
    pulled.wait();
  }

 private:
  ServerAddress server_;
  std::shared_ptr<std::vector<float>> values_;
  std::unique_ptr<TensorClient> client_;
  Version round_ = 0;
};

}  // namespace

std::unique_ptr<Server> MakeTensorServer() {
  return std::make_unique<BenchServer>(ServerSecurity());
}
std::unique_ptr<Client> MakeTensorClient(int port) {
  return std::make_unique<BenchClient>(port, KeyPair(), "");
}
void MakeKeys() {
  ServerKeys();
  ClientKeys();
  Secrets();
}
std::unique_ptr<Server> MakeSealedServer() {
  return std::make_unique<BenchServer>(
      ServerSecurity{.keys = ServerKeys(), .allowed_client_keys = {ClientKeys().public_key}});
}
std::unique_ptr<Client> MakeSealedClient(int port) {
  return std::make_unique<BenchClient>(port, ClientKeys(), ServerKeys().public_key);
}

namespace {

class RelayedServer : public Server {
 public:
  RelayedServer()
      : relay_(Relay::Create("tcp://127.0.0.1:0").value()),
        server_({.keys = ServerKeys(), .allowed_client_keys = {ClientKeys().public_key}}) {
    server_.AcceptThrough(
        {"tcp://" + relay_->address(), MakeRelayWord(relay_->secret(), {true, "server", 1})});
    const std::string& secret = relay_->secret();
    ATOLL_CHECK(write(Secrets()[1], secret.data(), secret.size()) == kSecretBytes);
  }
  int port() const override {
    return std::stoi(relay_->address().substr(relay_->address().rfind(':') + 1));
  }

 private:
  const std::unique_ptr<Relay> relay_;
  BenchServer server_;
};

}  // namespace

std::unique_ptr<Server> MakeRelayedServer() { return std::make_unique<RelayedServer>(); }
std::unique_ptr<Client> MakeRelayedClient(int port) {
  std::string secret(kSecretBytes, '\0');
  ATOLL_CHECK(read(Secrets()[0], secret.data(), secret.size()) == kSecretBytes);
  const std::string word = MakeRelayWord(secret, {false, "server", 1});
  return std::make_unique<BenchClient>(MakeRelayEndpoint("127.0.0.1:" + std::to_string(port), word),
                                       ClientKeys(), ServerKeys().public_key);
}

}  // namespace atl::bench
