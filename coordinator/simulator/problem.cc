#include "coordinator/simulator/problem.h"

#include <algorithm>

#include "common/status.h"

namespace atl::sim {
namespace {

constexpr int64_t kMaxPasses = int64_t{1} << 24;

absl::Status Bad(absl::string_view what, int64_t value) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", value));
}

absl::Status ValidateChunk(const Problem& problem, const Chunk& chunk) {
  const int links = static_cast<int>(problem.network.links.size());
  if (chunk.device < 0 || chunk.device >= static_cast<int>(problem.devices.size())) {
    return Bad("no such device", chunk.device);
  }
  for (const Nanos t : {chunk.forward_ns, chunk.backward_ns, chunk.weight_ns, chunk.optimizer_ns,
                        chunk.forward_send_ns, chunk.backward_send_ns}) {
    if (t < 0 || t > kForever / 1024) return Bad("impossible duration, ns", t);
  }
  if (chunk.activation_bytes < 0 || chunk.weight_bytes < 0 ||
      chunk.weight_bytes > chunk.activation_bytes) {
    return Bad("bytes held after B must be between 0 and the activation", chunk.weight_bytes);
  }
  if (chunk.weight_ns == 0 && chunk.weight_bytes != 0) {
    return Bad("an unsplit backward holds nothing after B, not bytes", chunk.weight_bytes);
  }
  if (chunk.forward_bytes < 0) return Bad("negative bytes forward", chunk.forward_bytes);
  if (chunk.backward_bytes < 0) return Bad("negative bytes backward", chunk.backward_bytes);
  for (const int link : {chunk.forward_link, chunk.backward_link}) {
    if (link < kNoLink || link >= links) return Bad("no such link", link);
  }
  return absl::OkStatus();
}

absl::Status ValidatePipelines(const Problem& problem) {
  const int chunks = static_cast<int>(problem.chunks.size());
  int64_t passes = 0;
  std::vector<int> seen(chunks, 0);
  for (const Pipeline& pipeline : problem.pipelines) {
    if (pipeline.micro_batches < 1) return Bad("micro-batches", pipeline.micro_batches);
    if (pipeline.first_chunk < 0 || pipeline.chunk_count < 1 ||
        pipeline.chunk_count > chunks - pipeline.first_chunk) {
      return Bad("a pipeline's chunks lie outside the problem; it starts at", pipeline.first_chunk);
    }
    passes += int64_t{pipeline.micro_batches} * pipeline.chunk_count;
    for (int c = 0; c < pipeline.chunk_count; ++c) ++seen[pipeline.first_chunk + c];
  }
  if (passes > kMaxPasses) return Bad("more than 16 million micro-batch passes", passes);
  for (int c = 0; c < chunks; ++c) {
    if (seen[c] != 1) return Bad("a chunk belongs to exactly one pipeline; not so chunk", c);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const Problem& problem) {
  ATOLL_RETURN_IF_ERROR(Validate(problem.network));
  for (size_t d = 0; d < problem.devices.size(); ++d) {
    if (problem.devices[d].memory_bytes < 0) {
      return Bad("a device's memory for activations is negative; device", static_cast<int>(d));
    }
  }
  for (size_t c = 0; c < problem.chunks.size(); ++c) {
    ATOLL_RETURN_IF_ERROR(
        Annotate(ValidateChunk(problem, problem.chunks[c]), absl::StrCat("chunk ", c)));
  }
  return ValidatePipelines(problem);
}

absl::Status Validate(const Problem& problem, const Schedule& schedule) {
  if (schedule.device_ops.size() != problem.devices.size()) {
    return Bad("the schedule's number of devices", static_cast<int>(schedule.device_ops.size()));
  }
  const std::vector<int> pipeline_of = MapChunksToPipelines(problem);
  std::vector<int64_t> base(problem.chunks.size() + 1, 0);
  int64_t expected = 0;
  for (size_t c = 0; c < problem.chunks.size(); ++c) {
    const int64_t micro_batches = problem.pipelines[pipeline_of[c]].micro_batches;
    base[c + 1] = base[c] + 3 * micro_batches;
    expected += micro_batches * (IsSplit(problem.chunks[c]) ? 3 : 2);
  }
  std::vector<bool> seen(base.back(), false);
  int64_t count = 0;
  for (size_t d = 0; d < schedule.device_ops.size(); ++d) {
    for (const Op& op : schedule.device_ops[d]) {
      const std::string where = absl::StrCat("device ", d, ", ", ToString(op));
      if (op.chunk < 0 || op.chunk >= static_cast<int>(problem.chunks.size()) ||
          op.kind == OpKind::kOptimizer || op.micro_batch < 0 ||
          (op.kind == OpKind::kWeight && !IsSplit(problem.chunks[op.chunk])) ||
          op.micro_batch >= problem.pipelines[pipeline_of[op.chunk]].micro_batches) {
        return absl::InvalidArgumentError(absl::StrCat(where, ": no such operation"));
      }
      if (problem.chunks[op.chunk].device != static_cast<int>(d)) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": the chunk is on device ", problem.chunks[op.chunk].device));
      }
      const int64_t index = base[op.chunk] + 3 * op.micro_batch + static_cast<int>(op.kind);
      if (seen[index]) return absl::InvalidArgumentError(absl::StrCat(where, ": appears twice"));
      seen[index] = true;
      ++count;
    }
  }
  if (count != expected) return Bad("operations missing from the schedule", expected - count);
  return absl::OkStatus();
}

std::string ToString(const Op& op) {
  constexpr char kKindCharacters[] = "FBWO";
  return absl::StrCat(absl::string_view(&kKindCharacters[static_cast<int>(op.kind)], 1), op.chunk,
                      ".", op.micro_batch);
}

std::vector<std::vector<int>> ListChunksByDevice(const Problem& problem) {
  std::vector<std::vector<int>> chunks(problem.devices.size());
  for (size_t c = 0; c < problem.chunks.size(); ++c) {
    chunks[problem.chunks[c].device].push_back(static_cast<int>(c));
  }
  return chunks;
}

std::vector<int> MapChunksToPipelines(const Problem& problem) {
  std::vector<int> pipeline_of(problem.chunks.size(), 0);
  for (size_t p = 0; p < problem.pipelines.size(); ++p) {
    const Pipeline& pipeline = problem.pipelines[p];
    std::fill_n(pipeline_of.begin() + pipeline.first_chunk, pipeline.chunk_count,
                static_cast<int>(p));
  }
  return pipeline_of;
}

Nanos TransferNs(const Problem& problem, int link, int64_t bytes) {
  if (link == kNoLink) return 0;
  return AloneTransferNs(problem.network, problem.network.links[link], bytes);
}

void UniteBackward(Chunk& chunk) {
  chunk.backward_ns += chunk.weight_ns;
  chunk.weight_ns = 0;
  chunk.weight_bytes = 0;
}

Problem WithUnsplitBackward(Problem problem) {
  for (Chunk& chunk : problem.chunks) UniteBackward(chunk);
  return problem;
}

}  // namespace atl::sim
