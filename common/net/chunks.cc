#include "common/net/chunks.h"

#include <algorithm>

#include "common/check.h"
#include "common/net/codec.h"

namespace atl {

int64_t OutgoingTensor::next_bytes() const {
  ATOLL_CHECK(!done());
  return std::min(chunk_bytes_, total_bytes() - next_ * chunk_bytes_);
}

Message OutgoingTensor::Next(BufferPool& pool, const std::shared_ptr<SendAccount>& account,
                             v1::Chunk* chunk) {
  const int64_t bytes = next_bytes();
  const int64_t offset = next_ * chunk_bytes_;
  chunk->set_index(next_);
  ++next_;
  account->Add(bytes);
  if (!raw_.empty()) {
    const std::span<const std::byte> part = raw_.subspan(offset, bytes);
    chunk->set_checksum(Hash(part));
    return Message::Borrow(part, [account, bytes, owner = owner_] { account->Release(bytes); });
  }
  const int64_t width = BytesPerElement(encoding_);
  const std::span<const float> part = values_.subspan(offset / width, bytes / width);
  auto encoded = std::make_shared<Payload>(pool.Take(bytes));
  chunk->set_checksum(
      EncodeAndHash(encoding_, part, {encoded->data(), static_cast<size_t>(bytes)}));
  return Message::Borrow(encoded->bytes(), [account, bytes, encoded] { account->Release(bytes); });
}

absl::Status IncomingTensor::Accept(const v1::Chunk& chunk, std::span<const std::byte> payload) {
  if (complete() || chunk.index() != next_) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk.index(), " came instead of ", next_));
  }
  const int64_t offset = next_ * chunk_bytes_;
  const int64_t expected = std::min(chunk_bytes_, total_bytes_ - offset);
  if (static_cast<int64_t>(payload.size()) != expected) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.index(), " has ", payload.size(),
                                                   " bytes instead of ", expected));
  }
  uint64_t checksum;
  if (!raw_.empty()) {
    checksum = CopyAndHash(payload, raw_.subspan(offset, expected));
  } else {
    const int64_t width = BytesPerElement(encoding_);
    checksum = DecodeAndHash(encoding_, payload, values_.subspan(offset / width, expected / width));
  }
  if (checksum != chunk.checksum()) {
    return absl::DataLossError(absl::StrCat("chunk ", chunk.index(), " has a wrong checksum"));
  }
  ++next_;
  return absl::OkStatus();
}

}  // namespace atl
