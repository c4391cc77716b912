// A handler of tensors for tests and benchmarks: it stages what it is configured to and serves what
// it holds. Its calls answer at once, or record the token for the test to answer.

#ifndef ATOLL_COMMON_NET_TESTING_TEST_HANDLER_H_
#define ATOLL_COMMON_NET_TESTING_TEST_HANDLER_H_

#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "common/net/codec.h"
#include "common/net/tensor/tensor_client.h"
#include "common/net/tensor/tensor_server.h"
#include "tests/catch/limits.h"

namespace atl {

using Values = std::shared_ptr<const std::vector<float>>;

// The numbers of what was encoded as fp32 or bf16.
inline std::vector<float> Decoded(Encoding encoding, std::span<const std::byte> bytes) {
  const auto width = static_cast<size_t>(BytesPerElement(encoding));
  std::vector<uint32_t> bits(bytes.size() / width);
  for (size_t i = 0; i < bits.size(); ++i) {
    std::memcpy(&bits[i], bytes.data() + i * width, width);
    if (width == 2) bits[i] <<= 16;
  }
  std::vector<float> values(bits.size());
  if (!bits.empty()) std::memcpy(values.data(), bits.data(), bits.size() * sizeof(float));
  return values;
}

class TestHandler : public TensorHandler {
 public:
  absl::Status AdmitPush(const PushId& id, Encoding, int64_t) override {
    std::lock_guard lock(mutex_);
    ++admissions_;
    if (!refusal_.ok()) return refusal_;
    return staged_.count(id) > 0 ? absl::AlreadyExistsError("staged") : absl::OkStatus();
  }

  void OnPush(const PushId& id, Encoding encoding, int64_t element_count, Payload payload,
              ReplyToken token) override {
    std::lock_guard lock(mutex_);
    auto values = std::make_shared<std::vector<float>>(element_count);
    if (IsQuantized(encoding)) {
      staged_bytes_[id] = {payload.bytes().begin(), payload.bytes().end()};
    } else {
      *values = Decoded(encoding, payload.bytes());
    }
    deliveries_.push_back(id);
    staged_[id] = std::move(values);
    if (hold_answers_) {
      held_.push_back(token);
    } else {
      server_->AcknowledgePush(token, PushStatus::kStaged);
    }
    changed_.notify_all();
  }

  void OnPull(const PullRequest& request, ReplyToken token) override {
    std::lock_guard lock(mutex_);
    ++pulls_;
    changed_.notify_all();
    const auto& held = slots_[request.slot];
    const auto it = held.find(request.shard);
    if (it == held.end()) {
      return server_->RefusePull(token, PullRefusal::kUnknown, kNoVersion, "no such shard here");
    }
    if (request.version != kNoVersion && request.version != version_) {
      return server_->RefusePull(token, PullRefusal::kNotYet, version_, "the round is open");
    }
    std::span<const float> values = *it->second;
    if (request.elements > 0) {
      values =
          values.subspan(static_cast<size_t>(request.begin), static_cast<size_t>(request.elements));
    }
    server_->ReplyPull(token, version_, values, it->second);
  }

  // Set before the server gets requests.
  void Serve(TensorServer* server) {
    std::lock_guard lock(mutex_);
    server_ = server;
  }
  void Hold(ShardId shard, Values values, Version version) {
    std::lock_guard lock(mutex_);
    slots_[kPullServed][shard] = std::move(values);
    version_ = version;
  }
  // Holds the step that made that version of the one before, in words.
  void HoldStep(ShardId shard, Values words) {
    std::lock_guard lock(mutex_);
    slots_[kPullStep][shard] = std::move(words);
  }
  void HoldAverage(ShardId shard, Values values) {
    std::lock_guard lock(mutex_);
    slots_[kPullAverage][shard] = std::move(values);
  }
  void Refuse(absl::Status refusal) {
    std::lock_guard lock(mutex_);
    refusal_ = std::move(refusal);
  }
  void HoldAnswers(bool hold) {
    std::lock_guard lock(mutex_);
    hold_answers_ = hold;
  }
  // Waits for a push whose answer is held back.
  ReplyToken AwaitHeld() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !held_.empty(); });
    const ReplyToken token = held_.back();
    held_.pop_back();
    return token;
  }
  void AwaitPulls(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pulls_ >= count; });
  }
  Values Staged(const PushId& id) {
    std::lock_guard lock(mutex_);
    const auto it = staged_.find(id);
    return it == staged_.end() ? nullptr : it->second;
  }
  // Returns the bytes of a quantised push as they came.
  std::vector<std::byte> StagedBytes(const PushId& id) {
    std::lock_guard lock(mutex_);
    return staged_bytes_[id];
  }
  size_t deliveries() {
    std::lock_guard lock(mutex_);
    return deliveries_.size();
  }
  int admissions() {
    std::lock_guard lock(mutex_);
    return admissions_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  TensorServer* server_ = nullptr;
  absl::Status refusal_;
  bool hold_answers_ = false;
  std::vector<ReplyToken> held_;
  std::map<PushId, Values> staged_;
  std::map<PushId, std::vector<std::byte>> staged_bytes_;
  std::vector<PushId> deliveries_;
  std::map<int32_t, std::map<ShardId, Values>> slots_;  // as PullRequest::slot
  Version version_ = 0;
  int pulls_ = 0;
  int admissions_ = 0;
};

// The result of a transfer that a test waits for.
template <typename Result>
class Awaited {
 public:
  std::function<void(Result)> Setter() {
    return [state = state_](Result result) {
      std::lock_guard lock(state->mutex);
      state->result = std::move(result);
      ++state->calls;
      state->changed.notify_all();
    };
  }
  Result Get() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->calls > 0; });
    return state_->result;
  }
  int calls() {
    std::lock_guard lock(state_->mutex);
    return state_->calls;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    Result result;
    int calls = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// A server with its handler, and a client of it, on loopback.
struct TestLink {
  explicit TestLink(TensorServerOptions server_options = {},
                    TensorClientOptions client_options = {}) {
    if (server_options.endpoint.empty()) server_options.endpoint = "tcp://127.0.0.1:*";
    server = TensorServer::Create(server_options, &handler).value();
    handler.Serve(server.get());
    address = {server->endpoint(), server_options.security.keys.public_key};
    client = TensorClient::Create(client_options).value();
  }

  Awaited<PushResult> StartPush(const PushId& id, Values values,
                                Encoding encoding = Encoding::kFloat32,
                                Duration timeout = testing::kHangLimit) {
    Awaited<PushResult> result;
    client->Push(address, id, encoding, *values, values, timeout, result.Setter());
    return result;
  }
  PushResult Push(const PushId& id, Values values, Encoding encoding = Encoding::kFloat32,
                  Duration timeout = testing::kHangLimit) {
    return StartPush(id, std::move(values), encoding, timeout).Get();
  }
  Awaited<PullResult> StartPull(const PullRequest& request, std::span<float> destination,
                                Duration timeout = testing::kHangLimit) {
    Awaited<PullResult> result;
    client->Pull(address, request, destination, timeout, result.Setter());
    return result;
  }
  PullResult Pull(const PullRequest& request, std::span<float> destination,
                  Duration timeout = testing::kHangLimit) {
    return StartPull(request, destination, timeout).Get();
  }

  TestHandler handler;
  std::unique_ptr<TensorServer> server;
  ServerAddress address;
  std::unique_ptr<TensorClient> client;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TESTING_TEST_HANDLER_H_
