#include "paramserver/storage/snapshot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/protocol/outer_optimizer.h"
#include "common/status.h"
#include "paramserver/core/job_state.h"
#include "paramserver/storage/codec.h"

namespace atl::ps {
namespace {

constexpr char kMagic[9] = "ATOLLSNP";
constexpr absl::string_view kPrefix = "snapshot-";
constexpr size_t kNameLength = 9 + 20;

struct FileHead {
  char magic[8];
  uint32_t format;
  uint32_t zero;
  uint64_t head_bytes;
  uint64_t file_bytes;
  uint64_t head_checksum;
  uint64_t checksum;  // of all before it
};
static_assert(sizeof(FileHead) == 48);

uint64_t ComputeChecksum(const FileHead& head) {
  return Checksum(std::as_bytes(std::span(&head, 1)).first(sizeof(FileHead) - sizeof(uint64_t)));
}

bool IsSnapshotName(const std::string& name) {
  return name.size() == kNameLength && name.compare(0, kPrefix.size(), kPrefix.data()) == 0 &&
         std::all_of(name.begin() + kPrefix.size(), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

// Takes the next tensor of `elements` from the file's rest.
absl::StatusOr<std::shared_ptr<const TensorLease>> TakeTensor(ByteSpan& rest, int64_t elements,
                                                              uint64_t checksum,
                                                              absl::string_view what) {
  if (elements <= 0 || static_cast<uint64_t>(elements) > rest.size() / sizeof(float)) {
    return absl::DataLossError(absl::StrCat("the ", what, " are not there"));
  }
  const ByteSpan bytes = rest.first(static_cast<size_t>(elements) * sizeof(float));
  rest = rest.subspan(bytes.size());
  if (Checksum(bytes) != checksum) {
    return absl::DataLossError(absl::StrCat("the ", what, " do not match their checksum"));
  }
  auto tensor = std::make_shared<SharedTensor>(elements);
  std::memcpy(tensor->writable().data(), bytes.data(), bytes.size());
  return std::make_shared<const TensorLease>(std::move(tensor));
}

absl::StatusOr<std::shared_ptr<const Snapshot>> Parse(ByteSpan bytes) {
  FileHead head{};
  if (bytes.size() < sizeof(head)) return absl::DataLossError("it is cut off");
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (std::memcmp(head.magic, kMagic, sizeof(head.magic)) != 0 ||
      head.checksum != ComputeChecksum(head)) {
    return absl::DataLossError("it does not begin as a snapshot");
  }
  if (head.format != kStorageFormat) {
    return absl::DataLossError(
        absl::StrCat("it has format ", head.format, " instead of ", kStorageFormat));
  }
  if (head.file_bytes != bytes.size()) {
    return absl::DataLossError(
        absl::StrCat("it has ", bytes.size(), " bytes instead of ", head.file_bytes));
  }
  ByteSpan rest = bytes.subspan(sizeof(head));
  if (head.head_bytes > rest.size()) return absl::DataLossError("its head is cut off");
  const ByteSpan fields = rest.first(head.head_bytes);
  rest = rest.subspan(head.head_bytes);
  if (Checksum(fields) != head.head_checksum) {
    return absl::DataLossError("its head does not match its checksum");
  }
  ATOLL_ASSIGN_OR_RETURN(SnapshotHead decoded, DecodeHead(fields));
  auto snapshot = std::make_shared<Snapshot>(std::move(decoded.snapshot));
  ATOLL_RETURN_IF_ERROR(JobState::Check(snapshot->assignment));
  size_t next = 0;
  for (ShardSnapshot& shard : snapshot->shards) {
    if (snapshot->version == kNoVersion) continue;
    const JobSpec& spec = snapshot->assignment.definition.spec;
    const size_t slots = snapshot->ended ? KeepsAverage(spec) : snapshot->slots.size();
    for (size_t i = 0; i <= slots; ++i) {
      if (next >= decoded.checksums.size()) return absl::DataLossError("a checksum is missing");
      const std::string what = absl::StrCat(i == 0 ? "parameters" : snapshot->slots[i - 1],
                                            " of shard ", shard.shard.shard);
      ATOLL_ASSIGN_OR_RETURN(
          auto tensor, TakeTensor(rest, shard.shard.elements, decoded.checksums[next++], what));
      if (i == 0) {
        shard.theta = std::move(tensor);
      } else {
        shard.slots.push_back(std::move(tensor));
      }
    }
  }
  if (!rest.empty()) return absl::DataLossError("it has bytes that belong to nothing");
  return snapshot;
}

}  // namespace

absl::Status WriteSnapshotFile(Files& files, const std::string& folder, const Snapshot& snapshot) {
  SnapshotHead head{snapshot, {}};
  std::vector<ByteSpan> buffers(2);
  for (const ShardSnapshot& shard : snapshot.shards) {
    std::vector<std::shared_ptr<const TensorLease>> tensors = shard.slots;
    if (shard.theta != nullptr) tensors.insert(tensors.begin(), shard.theta);
    for (const auto& tensor : tensors) {
      buffers.push_back(std::as_bytes(tensor->values()));
      head.checksums.push_back(Checksum(buffers.back()));
    }
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::byte> fields, EncodeHead(head));
  FileHead first{{}, kStorageFormat, 0, fields.size(), 0, Checksum(fields), 0};
  std::memcpy(first.magic, kMagic, sizeof(first.magic));
  buffers[0] = std::as_bytes(std::span(&first, 1));
  buffers[1] = fields;
  for (const ByteSpan buffer : buffers) first.file_bytes += buffer.size();
  first.checksum = ComputeChecksum(first);

  const std::string name = absl::StrFormat("%s%020d", kPrefix, snapshot.last_sequence);
  ATOLL_RETURN_IF_ERROR(files.MakeFolder(folder));
  ATOLL_ASSIGN_OR_RETURN(const auto paths, ListSnapshots(files, folder));
  for (size_t i = 1; i < paths.size(); ++i) ATOLL_RETURN_IF_ERROR(files.Remove(paths[i]));
  return WriteFileAtomically(files, folder + "/" + name, buffers);
}

absl::StatusOr<std::vector<std::string>> ListSnapshots(Files& files, const std::string& folder) {
  ATOLL_ASSIGN_OR_RETURN(const auto names, files.List(folder));
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    if (IsSnapshotName(name)) paths.push_back(folder + "/" + name);
  }
  std::reverse(paths.begin(), paths.end());
  return paths;
}

absl::StatusOr<std::shared_ptr<const Snapshot>> ReadSnapshotFile(Files& files,
                                                                 const std::string& path,
                                                                 int64_t bytes_max) {
  ATOLL_ASSIGN_OR_RETURN(const auto bytes, files.Read(path, bytes_max));
  auto snapshot = Parse(bytes);
  if (!snapshot.ok()) {
    return absl::DataLossError(absl::StrCat(path, ": damaged: ", snapshot.status().message()));
  }
  return snapshot;
}

}  // namespace atl::ps
