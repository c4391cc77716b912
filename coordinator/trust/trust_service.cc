#include "coordinator/trust/trust_service.h"

#include <string>

#include "common/net/control/grpc_status.h"
#include "coordinator/trust/authorizer.h"
#include "coordinator/watchers.h"
#include "proto/trust.grpc.pb.h"

namespace atl {
namespace {

constexpr size_t kAuditEntriesMax = 1'000'000;

class TrustService : public v1::Trust::CallbackService {
 public:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  explicit TrustService(AccessControl* access) : access_(access) {}

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

 private:
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
};

}  // namespace

std::unique_ptr<grpc::Service> NewTrustService(AccessControl* access) {
  return std::make_unique<TrustService>(access);
}

}  // namespace atl
