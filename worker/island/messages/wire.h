// Messages between the workers of an island (proto/group.proto): plain structs, checked.

#ifndef ATOLL_WORKER_ISLAND_MESSAGES_WIRE_H_
#define ATOLL_WORKER_ISLAND_MESSAGES_WIRE_H_

#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "proto/group.plain.h"
#include "worker/core/actions.h"
#include "worker/state/parts.h"

namespace atl::worker {

using CallId = uint64_t;  // of one caller's

inline constexpr int64_t kFrameBytesMax = int64_t{1} << 20;
inline constexpr int64_t kChunkElements = int64_t{1} << 20;  // of layer state in one message

std::string Serialize(const GroupFrame& frame);
std::string Serialize(const ChunkHeader& header);
std::string Serialize(const TensorHeader& header);
// Parse and check all that can be checked without knowing the job.
absl::StatusOr<GroupFrame> ParseGroupFrame(absl::string_view bytes);
absl::StatusOr<ChunkHeader> ParseChunkHeader(absl::string_view bytes, int64_t payload_bytes);
absl::StatusOr<TensorHeader> ParseTensorHeader(absl::string_view bytes);

// The body if it is a T; else null.
template <class T>
const T* BodyIf(const GroupFrame& frame) {
  return std::get_if<T>(&frame.body);
}

// Texts are cut.
void SetStatus(const absl::Status& status, GroupReply* reply);
absl::Status StatusFromReply(const GroupReply& reply);

// Names what a call requests, as proto/group.proto does: "step 12", "get rank 1 of layer 3".
std::string Describe(const GroupFrame& call);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MESSAGES_WIRE_H_
