// Headers of the data plane: proto/frame.proto with its rules checked.

#ifndef ATOLL_COMMON_NET_FRAME_H_
#define ATOLL_COMMON_NET_FRAME_H_

#include "common/ids.h"
#include "common/net/tensor/tensor_types.h"
#include "common/status.h"
#include "proto/frame.pb.h"

namespace atl {

inline constexpr uint32_t kProtocolVersion = 2;
inline constexpr int64_t kElementsMax = int64_t{1} << 40;  // of one tensor; more is a lie
inline constexpr size_t kReasonBytesMax = 512;
inline constexpr int kPeerLanesMax = 5;  // that a worker has to another one
inline constexpr size_t kLinkKeyBytes = 32, kLinkTagBytes = 16;

// A frame with version and transfer number set.
v1::Frame MakeFrame(uint64_t transfer);

// Parses and checks everything that can be checked without knowing the transfer. Unimplemented: the
// frame is of another protocol version; `frame` holds what could be read of it.
absl::Status ParseFrame(absl::string_view bytes, bool has_payload, v1::Frame* frame);

PushId MakePushId(const v1::PushOpen& open);
void SetPushId(const PushId& id, v1::PushOpen* open);
Encoding EncodingFromWire(v1::TensorEncoding encoding);  // REQUIRES: checked by ParseFrame
v1::TensorEncoding WireEncoding(Encoding encoding);
PullRequest ToPullRequest(const v1::PullOpen& open);
void SetRequest(const PullRequest& request, v1::PullOpen* open);

// The number of chunks of a tensor of `bytes` bytes.
inline int64_t ChunkCount(int64_t bytes, int64_t chunk_bytes) {
  return (bytes + chunk_bytes - 1) / chunk_bytes;
}

absl::Status CheckJob(absl::string_view job);
absl::Status CheckChunkBytes(int64_t chunk_bytes);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_FRAME_H_
