// The special tokens around a text: "post_processor" of tokenizer.json.

#ifndef ATOLL_COMMON_TOKENIZER_POST_PROCESSOR_H_
#define ATOLL_COMMON_TOKENIZER_POST_PROCESSOR_H_

#include <cstdint>
#include <vector>

#include "common/tokenizer/json_fields.h"
#include "common/tokenizer/model.h"

namespace atl::tokenizer {

struct Frame {
  std::vector<int32_t> before, after;
};

// null: nothing around a text. Ids must be below `ids`.
absl::StatusOr<Frame> ParsePostProcessor(const Json& json, int64_t ids, const std::string& where,
                                         int depth = 0);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_POST_PROCESSOR_H_
