#include "common/net/tensor/tensor_client.h"

#include "common/check.h"

namespace atl {

absl::StatusOr<std::unique_ptr<TensorClient>> TensorClient::Create(TensorClientOptions options) {
  ATOLL_RETURN_IF_ERROR(Annotate(CheckChunkBytes(options.chunk_bytes), "tensor link"));
  std::unique_ptr<TensorClient> client(new TensorClient(std::move(options)));
  ATOLL_RETURN_IF_ERROR(client->Start());
  return client;
}

TransferId TensorClient::Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                              std::span<const float> source, std::shared_ptr<const void> owner,
                              Duration timeout, Done done) {
  ATOLL_CHECK(!IsQuantized(encoding), "numbers are quantised where they are made");
  auto transfer = std::make_unique<Transfer>(Transfer{.server = server,
                                                      .is_push = true,
                                                      .push_id = id,
                                                      .encoding = encoding,
                                                      .source = source,
                                                      .element_count = std::ssize(source),
                                                      .owner = std::move(owner),
                                                      .done = std::move(done)});
  return Submit(std::move(transfer), timeout);
}

TransferId TensorClient::Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                              int64_t element_count, std::span<const std::byte> source,
                              std::shared_ptr<const void> owner, Duration timeout, Done done) {
  ATOLL_CHECK(std::ssize(source) == EncodedBytes(encoding, element_count), element_count,
              " elements in ", source.size(), " bytes");
  auto transfer = std::make_unique<Transfer>(Transfer{.server = server,
                                                      .is_push = true,
                                                      .push_id = id,
                                                      .encoding = encoding,
                                                      .source_bytes = source,
                                                      .element_count = element_count,
                                                      .owner = std::move(owner),
                                                      .done = std::move(done)});
  return Submit(std::move(transfer), timeout);
}

TransferId TensorClient::Pull(const ServerAddress& server, const PullRequest& request,
                              std::span<float> destination, Duration timeout, Done done) {
  auto transfer = std::make_unique<Transfer>(Transfer{.server = server,
                                                      .request = request,
                                                      .encoding = request.encoding,
                                                      .destination = destination,
                                                      .done = std::move(done)});
  return Submit(std::move(transfer), timeout);
}

}  // namespace atl
