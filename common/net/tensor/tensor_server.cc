#include "common/net/tensor/tensor_server.h"

#include "common/net/tensor/tensor_server_impl.h"

namespace atl {

absl::StatusOr<std::unique_ptr<TensorServer>> TensorServer::Create(TensorServerOptions options,
                                                                   TensorHandler* handler) {
  auto impl = std::make_unique<Impl>(std::move(options), handler);
  ATOLL_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<TensorServer>(new TensorServer(std::move(impl)));
}

TensorServer::TensorServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TensorServer::~TensorServer() = default;

const std::string& TensorServer::endpoint() const { return impl_->endpoint(); }

void TensorServer::AcknowledgePush(ReplyToken token, PushStatus status, std::string reason) {
  impl_->tasks().Post([impl = impl_.get(), token, status, reason = std::move(reason)] {
    impl->AcknowledgePush(token, status, reason);
  });
}

void TensorServer::ReplyPull(ReplyToken token, Version version, std::span<const float> values,
                             std::shared_ptr<const void> owner) {
  impl_->tasks().Post([impl = impl_.get(), token, version, values, owner = std::move(owner)] {
    impl->ReplyPull(token, version, values, owner);
  });
}

void TensorServer::RefusePull(ReplyToken token, PullRefusal refusal, Version current,
                              std::string reason) {
  impl_->tasks().Post([impl = impl_.get(), token, refusal, current, reason = std::move(reason)] {
    impl->RefusePull(token, refusal, current, reason);
  });
}

void TensorServer::SetClientKeys(std::vector<std::string> public_keys) {
  impl_->tasks().Post(
      [impl = impl_.get(), keys = std::move(public_keys)] { impl->SetClientKeys(keys); });
}

LinkCounters TensorServer::counters() const { return impl_->counters(); }
int64_t TensorServer::assembly_bytes() const { return impl_->assembly_bytes(); }

}  // namespace atl
