#include "coordinator/trust/authorizer.h"

#include <grpcpp/security/auth_context.h>

namespace atl {
namespace {

class Authorizer : public grpc::AuthMetadataProcessor {
 public:
  explicit Authorizer(AccessControl* access) : access_(access) {}

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto found = metadata.find(":path");
    const absl::string_view path =
        found == metadata.end() ? ""
                                : absl::string_view(found->second.data(), found->second.size());
    Caller caller;
    const absl::Status status = access_->CheckCall(GetPeerCertificate(*context), "", path, &caller);
    return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                        std::string(status.message()));
  }

 private:
  AccessControl* const access_;
};

}  // namespace

std::shared_ptr<grpc::AuthMetadataProcessor> NewAuthorizer(AccessControl* access) {
  return std::make_shared<Authorizer>(access);
}

Caller CallerFrom(AccessControl* access, const grpc::CallbackServerContext& context) {
  Caller caller = access->WhoIs(GetPeerCertificate(*context.auth_context()), context.peer());
  const auto user = context.client_metadata().find(kPageUserKey);
  if (!caller.identity && user != context.client_metadata().end()) {
    caller.page_user = std::string(user->second.data(), user->second.size());
  }
  return caller;
}

}  // namespace atl
