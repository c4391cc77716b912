#include "common/net/chunks.h"

#include <cstring>

#include "common/check.h"
#include "common/net/codec.h"

namespace atl {

int64_t OutgoingTensor::next_bytes() const {
  ATOLL_CHECK(!done());
  return std::min(chunk_bytes_, total_bytes() - next_ * chunk_bytes_);
}

Message OutgoingTensor::Next(BufferPool& pool, const std::shared_ptr<SendAccount>& account,
                             v1::Chunk* chunk, bool checksum) {
  const int64_t bytes = next_bytes();
  const int64_t offset = next_ * chunk_bytes_;
  chunk->set_index(next_);
  ++next_;
  account->Add(bytes);
  if (!raw_.empty()) {
    const std::span<const std::byte> part = raw_.subspan(offset, bytes);
    if (checksum) chunk->set_checksum(Hash(part));
    return Message::Wrap(part, [account, bytes, owner = owner_] { account->Release(bytes); });
  }
  const int64_t width = BytesPerElement(encoding_);
  const std::span<const float> part = values_.subspan(offset / width, bytes / width);
  auto encoded = std::make_shared<Payload>(pool.Take(bytes));
  const std::span<std::byte> to(encoded->data(), static_cast<size_t>(bytes));
  if (checksum) {
    chunk->set_checksum(EncodeAndHash(encoding_, part, to));
  } else {
    EncodeTensor(encoding_, part, to);
  }
  return Message::Wrap(encoded->bytes(), [account, bytes, encoded] { account->Release(bytes); });
}

namespace {

absl::Status CheckIndexAndSize(const v1::Chunk& chunk, std::span<const std::byte> payload,
                               int64_t index, int64_t expected_bytes) {
  if (chunk.index() != index) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk.index(), " came instead of ", index));
  }
  if (static_cast<int64_t>(payload.size()) == expected_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.index(), " has ", payload.size(),
                                                 " bytes instead of ", expected_bytes));
}

}  // namespace

absl::Status CheckOnlyChunk(const v1::Chunk& chunk, std::span<const std::byte> payload,
                            int64_t expected_bytes) {
  return CheckIndexAndSize(chunk, payload, 0, expected_bytes);
}

absl::Status IncomingTensor::Accept(const v1::Chunk& chunk, std::span<const std::byte> payload) {
  if (complete()) return CheckIndexAndSize(chunk, payload, next_, -1);
  if (chunk.index() != next_) return CheckIndexAndSize(chunk, payload, next_, 0);
  return Take(chunk, payload);
}

absl::Status IncomingTensor::AcceptOnce(const v1::Chunk& chunk,
                                        std::span<const std::byte> payload) {
  if (chunk.index() < 0 || chunk.index() >= chunk_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk.index(), " of ", chunk_count(), " came"));
  }
  accepted_.resize(static_cast<size_t>(chunk_count()));
  if (accepted_[static_cast<size_t>(chunk.index())]) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.index(), " came twice"));
  }
  ATOLL_RETURN_IF_ERROR(Take(chunk, payload));
  accepted_[static_cast<size_t>(chunk.index())] = true;
  return absl::OkStatus();
}

absl::Status IncomingTensor::Take(const v1::Chunk& chunk, std::span<const std::byte> payload) {
  const int64_t offset = chunk.index() * chunk_bytes_;
  const int64_t expected = std::min(chunk_bytes_, std::ssize(bytes_) - offset);
  ATOLL_RETURN_IF_ERROR(CheckIndexAndSize(chunk, payload, chunk.index(), expected));
  const std::span<std::byte> to = bytes_.subspan(offset, expected);
  if (!chunk.tag().empty()) {
    std::memcpy(to.data(), payload.data(), payload.size());
  } else if (CopyAndHash(payload, to) != chunk.checksum()) {
    return absl::DataLossError(absl::StrCat("chunk ", chunk.index(), " has a wrong checksum"));
  }
  ++next_;
  return absl::OkStatus();
}

}  // namespace atl
