// Stands between members and their coordinator. Passes on what they say, and between that
// well-formed messages with extreme values, in both directions.

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <iostream>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/protocol/wire.h"
#include "proto/control.grpc.pb.h"
#include "tests/fuzz/cores/extremes.h"

namespace atl::fuzz {
namespace {

constexpr size_t kLearntMax = 512;
constexpr int kTriesMax = 50;      // for one that is not refused
constexpr int kTurnsASecond = 50;  // in which messages are added
// That are in another member's name, or of another cluster: each of them ends a connection.
constexpr double kOfOthers = 0.005;

volatile std::sig_atomic_t ending = 0;

// Messages of one kind as they went, to be changed. Thread-safe.
template <class Wire>
class Source {
 public:
  explicit Source(uint64_t seed) : extremes_(seed) {}

  void Learn(const Wire& message) {
    const std::lock_guard lock(mutex_);
    extremes_.Learn(message);
    if (learnt_.size() < kLearntMax) {
      learnt_.push_back(message);
    } else {
      learnt_[extremes_.rng().Below(kLearntMax)] = message;
    }
  }
  // Returns at most so many others from and to the same ends as `like`, which the receiver does not
  // refuse as they come.
  std::vector<Wire> Make(const Wire& like, int count) {
    const std::lock_guard lock(mutex_);
    std::vector<Wire> changed;
    const int most = learnt_.empty() ? 0 : kTriesMax * count;
    for (int tries = 0; std::ssize(changed) < count && tries < most; ++tries) {
      Wire wire = learnt_[extremes_.rng().Below(learnt_.size())];
      extremes_.Change(&wire);
      if (!extremes_.rng().Chance(kOfOthers)) SetEnds(like, &wire);
      Wire copy = wire;
      if (Decode(&copy).ok()) changed.push_back(std::move(wire));
    }
    return changed;
  }
  void Sent() { ++sent_; }
  int64_t sent() const { return sent_; }

 private:
  // All fields but the message itself.
  static void SetEnds(Wire like, Wire* wire) {
    std::vector<const google::protobuf::FieldDescriptor*> ends;
    for (int i = 0; i < Wire::descriptor()->field_count(); ++i) {
      const auto* field = Wire::descriptor()->field(i);
      if (field->containing_oneof() == nullptr) ends.push_back(field);
    }
    wire->GetReflection()->SwapFields(wire, &like, ends);
  }

  std::mutex mutex_;
  Extremes extremes_;
  std::vector<Wire> learnt_;
  std::atomic<int64_t> sent_ = 0;
};

template <class Service, class Up, class Down>
class Relay : public Service::Service {
 public:
  Relay(std::shared_ptr<grpc::Channel> channel, int extremes, uint64_t seed)
      : stub_(Service::NewStub(std::move(channel))), extremes_(extremes), up_(seed), down_(~seed) {}

  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<Down, Up>* member) override {
    grpc::ClientContext to;
    const auto coordinator = stub_->Attach(&to);
    Way<Up> to_coordinator;
    Way<Down> to_member;
    std::jthread add_down([&](std::stop_token end) { Add(end, *member, to_member, down_); });
    std::jthread add_up([&](std::stop_token end) { Add(end, *coordinator, to_coordinator, up_); });
    std::jthread down([&] {
      Pass(*coordinator, *member, to_member, down_);
      context->TryCancel();  // frees the reader below
    });
    Pass(*member, *coordinator, to_coordinator, up_);
    to.TryCancel();
    context->TryCancel();  // frees writers
    down.join();
    for (std::jthread* adding : {&add_up, &add_down}) {
      adding->request_stop();
      adding->join();
    }
    return coordinator->Finish();
  }
  int64_t sent_up() const { return up_.sent(); }
  int64_t sent_down() const { return down_.sent(); }

 private:
  // One direction of a stream, which takes one message at a time.
  template <class Wire>
  struct Way {
    std::mutex mutex;
    Wire newest;  // that was passed on; guarded by mutex
  };

  template <class From, class To, class Wire>
  void Pass(From& from, To& to, Way<Wire>& way, Source<Wire>& source) {
    Wire message;
    while (from.Read(&message)) {
      {
        const std::lock_guard lock(way.mutex);
        way.newest = message;
        if (!to.Write(message)) return;
      }
      if constexpr (requires { message.has_client_keys(); }) {
        if (message.has_client_keys()) continue;
      }
      source.Learn(message);
    }
  }
  // Until the end, or the stream's.
  template <class To, class Wire>
  void Add(const std::stop_token& end, To& to, Way<Wire>& way, Source<Wire>& source) {
    std::mutex waiting;
    std::condition_variable_any never;
    std::unique_lock wait(waiting);
    while (!end.stop_requested()) {
      {
        const std::lock_guard lock(way.mutex);
        const bool begun = way.newest.ByteSizeLong() > 0;
        for (const Wire& other : source.Make(way.newest, begun ? extremes_ : 0)) {
          if (!to.Write(other)) return;
          source.Sent();
        }
      }
      never.wait_for(wait, end, std::chrono::milliseconds(1000 / kTurnsASecond),
                     [] { return false; });
    }
  }

  const std::unique_ptr<typename Service::Stub> stub_;
  const int extremes_;
  Source<Up> up_;
  Source<Down> down_;
};

}  // namespace
}  // namespace atl::fuzz

int main(int argc, char** argv) {
  CLI::App app("Extreme messages between members and their coordinator");
  std::string listen, coordinator;
  uint64_t seed = 1;
  int extremes = 1;
  app.add_option("--listen", listen, "HOST:PORT for members")->required();
  app.add_option("--coordinator", coordinator, "HOST:PORT")->required();
  app.add_option("--seed", seed, "of what is tried");
  app.add_option("--extremes", extremes, "messages in each of 50 turns a second");
  CLI11_PARSE(app, argc, argv);

  using namespace atl;  // NOLINT
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  const auto channel =
      grpc::CreateCustomChannel(coordinator, grpc::InsecureChannelCredentials(), arguments);
  fuzz::Relay<v1::WorkerControl, v1::FromWorker, v1::ToWorker> workers(channel, extremes, seed);
  fuzz::Relay<v1::ServerControl, v1::FromServer, v1::ToServer> servers(channel, extremes, seed + 1);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.RegisterService(&workers);
  builder.RegisterService(&servers);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::signal(SIGTERM, [](int) { fuzz::ending = 1; });
  while (fuzz::ending == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::cout << "sent coordinator=" << workers.sent_up() + servers.sent_up()
              << " worker=" << workers.sent_down() << " paramserver=" << servers.sent_down()
              << std::endl;
  }
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}
