#include "common/net/tensor/tensor_client.h"

#include "common/check.h"
#include "common/net/tensor/tensor_client_impl.h"

namespace atl {

absl::StatusOr<std::unique_ptr<TensorClient>> TensorClient::Create(TensorClientOptions options) {
  ATOLL_RETURN_IF_ERROR(Annotate(CheckChunkBytes(options.chunk_bytes), "tensor link"));
  auto impl = std::make_unique<Impl>(std::move(options));
  ATOLL_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<TensorClient>(new TensorClient(std::move(impl)));
}

TensorClient::TensorClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TensorClient::~TensorClient() = default;

TransferId TensorClient::Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                              std::span<const float> source, std::shared_ptr<const void> owner,
                              Duration timeout, PushDone done) {
  ATOLL_CHECK(!IsQuantized(encoding), "numbers are quantised where they are made");
  auto transfer = std::make_unique<Impl::Transfer>();
  transfer->server = server;
  transfer->is_push = true;
  transfer->push_id = id;
  transfer->encoding = encoding;
  transfer->source = source;
  transfer->element_count = static_cast<int64_t>(source.size());
  transfer->owner = std::move(owner);
  transfer->push_done = std::move(done);
  return impl_->Submit(std::move(transfer), timeout);
}

TransferId TensorClient::Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                              int64_t element_count, std::span<const std::byte> source,
                              std::shared_ptr<const void> owner, Duration timeout, PushDone done) {
  ATOLL_CHECK(static_cast<int64_t>(source.size()) == EncodedBytes(encoding, element_count),
              element_count, " elements in ", source.size(), " bytes");
  auto transfer = std::make_unique<Impl::Transfer>();
  transfer->server = server;
  transfer->is_push = true;
  transfer->push_id = id;
  transfer->encoding = encoding;
  transfer->source_bytes = source;
  transfer->element_count = element_count;
  transfer->owner = std::move(owner);
  transfer->push_done = std::move(done);
  return impl_->Submit(std::move(transfer), timeout);
}

TransferId TensorClient::Pull(const ServerAddress& server, const PullRequest& request,
                              std::span<float> destination, Duration timeout, PullDone done) {
  auto transfer = std::make_unique<Impl::Transfer>();
  transfer->server = server;
  transfer->request = request;
  transfer->encoding = request.encoding;
  transfer->destination = destination;
  transfer->pull_done = std::move(done);
  return impl_->Submit(std::move(transfer), timeout);
}

void TensorClient::Cancel(TransferId id) { impl_->Cancel(id); }
LinkCounters TensorClient::counters() const { return impl_->counters(); }
std::map<std::string, double> TensorClient::pull_rates() const { return impl_->pull_rates(); }

}  // namespace atl
