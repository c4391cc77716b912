#include "coordinator/trust/trust_service.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "common/event_loop.h"
#include "common/logging.h"
#include "coordinator/streams.h"
#include "coordinator/trust/authorizer.h"
#include "coordinator/watchers.h"
#include "proto/trust.grpc.pb.h"

namespace atl {
namespace {

constexpr size_t kKeyListsQueued = 16;  // to one member that does not read; then it comes again
constexpr size_t kKeyStreamsMax = 20'000;
constexpr size_t kAuditEntriesMax = 1'000'000;
constexpr auto kStoreAgain = std::chrono::seconds(1);  // what could not be stored

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

v1::ClientKeys RefusedAlone(const v1::ClientKeys& keys) {
  v1::ClientKeys refused;
  *refused.mutable_refused() = keys.refused();
  return refused;
}
size_t DigestFrom(const v1::ClientKeys& keys) {
  return std::hash<std::string>()(keys.SerializeAsString());
}

}  // namespace

class TrustService::Impl : public v1::Trust::CallbackService {
 public:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  explicit Impl(AccessControl* access) : access_(access) {
    access->on_keys = [this] {
      const std::lock_guard lock(changed_mutex_);
      changed_ = true;
      wake_.notify_one();
    };
    thread_ = std::thread([this] { FollowKeys(); });
  }
  ~Impl() override {
    access_->on_keys = [] {};
    {
      const std::lock_guard lock(changed_mutex_);
      stop_ = true;
      wake_.notify_one();
    }
    thread_.join();
  }

  Unary* Join(Context* context, const v1::JoinRequest* request, v1::JoinReply* reply) override {
    return Answer(context, access_->Join(Caller(context), *request), reply);
  }

  Unary* Renew(Context* context, const v1::RenewRequest* request, v1::RenewReply* reply) override {
    const auto certificate = access_->Renew(Caller(context), request->certificate_request());
    if (certificate.ok()) reply->set_certificate(*certificate);
    return Finish(context, certificate.status());
  }

  Unary* CreateToken(Context* context, const v1::CreateTokenRequest* request,
                     v1::CreateTokenReply* reply) override {
    return Answer(context, access_->CreateToken(Caller(context), *request), reply);
  }

  Unary* DeleteToken(Context* context, const v1::DeleteTokenRequest* request,
                     v1::DeleteTokenReply* reply) override {
    return Answer(context, access_->DeleteToken(Caller(context), request->id()),
                  reply->mutable_token());
  }

  Unary* List(Context* context, const v1::TrustListRequest*, v1::TrustRecords* reply) override {
    *reply = access_->records();
    return Finish(context, absl::OkStatus());
  }

  Unary* Revoke(Context* context, const v1::RevokeRequest* request,
                v1::RevokeReply* reply) override {
    const auto revoked = access_->Revoke(Caller(context), *request);
    if (revoked.ok()) {
      for (const v1::TrustMember& member : *revoked) *reply->add_members() = member;
    }
    return Finish(context, revoked.status());
  }

  grpc::ServerWriteReactor<v1::ClientKeys>* WatchKeys(Context* context,
                                                      const v1::WatchKeysRequest*) override {
    auto stream = KeyStream::Begin();
    KeyStream* const reactor = stream.get();
    const std::lock_guard lock(mutex_);
    streams_.remove_if([](const Watching& one) { return one.stream->ended(); });
    if (streams_.size() >= kKeyStreamsMax) {
      stream->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many members"));
      return reactor;
    }
    const auto identity = Caller(context).identity;
    const bool whole = !identity || identity->role != Role::kWorker;
    const v1::ClientKeys keys = access_->keys(), refused = RefusedAlone(keys);
    stream->Send(whole ? keys : refused, kKeyListsQueued);
    streams_.push_back(
        {std::move(stream), AccessWatch(access_, *context), whole, DigestFrom(refused)});
    return reactor;
  }

  grpc::ServerWriteReactor<v1::AuditEntry>* Audit(Context*,
                                                  const v1::AuditRequest* request) override {
    auto stream = WatchStream<v1::AuditEntry>::Begin();
    auto* const reactor = stream.get();
    const auto entries = access_->audit().Read(request->tail());
    if (entries.ok()) {
      for (const v1::AuditEntry& entry : *entries) stream->Send(entry, kAuditEntriesMax);
    }
    stream->End(ToGrpc(entries.status()));
    return reactor;
  }

  void EndRevoked() {
    const std::lock_guard lock(mutex_);
    for (Watching& one : streams_) {
      const Verdict verdict = one.access.Check();
      if (!verdict.ok()) one.stream->End(ToGrpc(ToStatus(verdict)));
    }
  }

 private:
  using KeyStream = WatchStream<v1::ClientKeys>;
  struct Watching {
    std::shared_ptr<KeyStream> stream;
    AccessWatch access;
    bool whole;      // else only whose certificates are refused
    size_t refused;  // digest of the newest ones sent
  };

  // Stores and sends what has changed: at once, and for as long as that took not again, so that
  // thousands of members that attach take a few lists.
  void FollowKeys() {
    std::unique_lock lock(changed_mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return changed_ || stop_; });
      if (!changed_) return;
      changed_ = false;
      lock.unlock();
      const Instant begun = SteadyNow();
      const absl::Status stored = access_->StoreNotes();
      if (!stored.ok()) LogWarning("access", "CURVE keys are not stored: ", stored.message());
      SendKeys();
      Duration rest = SteadyNow() - begun;
      if (!stored.ok()) rest = std::max<Duration>(rest, kStoreAgain);
      lock.lock();
      changed_ = changed_ || (!stored.ok() && !stop_);
      wake_.wait_for(lock, rest, [this] { return stop_; });
    }
  }

  // The newest list last: it is taken and sent under one lock.
  void SendKeys() {
    const std::lock_guard lock(mutex_);
    streams_.remove_if([](const Watching& one) { return one.stream->ended(); });
    const v1::ClientKeys keys = access_->keys(), refused = RefusedAlone(keys);
    const size_t digest = DigestFrom(refused);
    for (Watching& one : streams_) {
      if (!one.whole && one.refused == digest) continue;
      one.refused = digest;
      if (!one.stream->Send(one.whole ? keys : refused, kKeyListsQueued)) {
        one.stream->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                     "the member does not read what it is sent"));
      }
    }
  }

  atl::Caller Caller(Context* context) { return CallerFrom(access_, *context); }

  static Unary* Finish(Context* context, const absl::Status& status) {
    Unary* const reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

  template <class Message>
  static Unary* Answer(Context* context, const absl::StatusOr<Message>& answer, Message* reply) {
    if (answer.ok()) *reply = *answer;
    return Finish(context, answer.status());
  }

  AccessControl* const access_;
  std::mutex mutex_;
  std::list<Watching> streams_;  // guarded by mutex_
  std::mutex changed_mutex_;
  std::condition_variable wake_;
  bool changed_ = false, stop_ = false;  // guarded by changed_mutex_
  std::thread thread_;                   // last: it uses all of the above
};

TrustService::TrustService(AccessControl* access) : impl_(std::make_unique<Impl>(access)) {}
TrustService::~TrustService() = default;
grpc::Service* TrustService::service() { return impl_.get(); }
void TrustService::EndRevoked() { impl_->EndRevoked(); }

}  // namespace atl
