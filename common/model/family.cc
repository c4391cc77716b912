#include "common/model/family.h"

#include "common/check.h"

namespace atl {

// All, as families/*.cc define them.
#define ATOLL_FAMILIES(F) \
  F(Bert)                 \
  F(Dots1)                \
  F(EfficientNet)         \
  F(Gemma2)               \
  F(Gpt2)                 \
  F(Llama)                \
  F(Mistral)              \
  F(Mixtral)              \
  F(Olmo2)                \
  F(Olmoe)                \
  F(Phi3)                 \
  F(Qwen2)                \
  F(Qwen2Moe)             \
  F(Qwen3)                \
  F(Qwen3Moe)             \
  F(ResNet)

#define ATOLL_DECLARE(Name) extern const Family k##Name##Family;
ATOLL_FAMILIES(ATOLL_DECLARE)
#undef ATOLL_DECLARE

namespace {

#define ATOLL_ADDRESS(Name) &k##Name##Family,
constexpr const Family* kFamilies[] = {ATOLL_FAMILIES(ATOLL_ADDRESS)};
#undef ATOLL_ADDRESS

}  // namespace

std::span<const Family* const> AllFamilies() { return kFamilies; }

nlohmann::ordered_json TokenIdsJson(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids[0];
  return ids;
}

const Family& GetFamily(ModelFamily id) {
  for (const Family* family : kFamilies) {
    if (family->id == id) return *family;
  }
  ATOLL_CHECK(false, "no family ", static_cast<int>(id));
  __builtin_unreachable();
}

const Family* FindFamily(absl::string_view model_type) {
  for (const Family* family : kFamilies) {
    if (model_type == family->model_type) return family;
  }
  return nullptr;
}

}  // namespace atl
