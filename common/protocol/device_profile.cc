#include "common/protocol/device_profile.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace atl {

uint64_t ComputeModelDigest(const ModelSpec& model, int64_t sequence_length,
                            InnerOptimizer optimizer, const AdapterSpec& adapter) {
  std::string numbers =
      absl::StrCat("model ", static_cast<int>(model.family), " ", model.vocabulary, " ",
                   model.hidden, " ", model.layers, " ", model.heads, " ", model.key_value_heads,
                   " ", model.feed_forward, " ", model.tied_head ? 1 : 0, " ", model.config_json,
                   " sequence ", sequence_length, " optimizer ", static_cast<int>(optimizer));
  if (adapter.kind != AdapterKind::kNone) {
    absl::StrAppend(&numbers, " adapter ", adapter.rank, " ", absl::StrJoin(adapter.targets, " "));
    if (adapter.base != AdapterBase::kCompute) {
      absl::StrAppend(&numbers, " base ", static_cast<int>(adapter.base));
    }
  }
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : numbers) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

const char* Name(LayerKind kind) {
  switch (kind) {
    case LayerKind::kEmbedding:
      return "embedding";
    case LayerKind::kBlock:
      return "block";
    case LayerKind::kHead:
      return "head";
  }
  return "?";
}

}  // namespace atl
