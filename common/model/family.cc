#include "common/model/family.h"

#include "common/check.h"

namespace atl {
namespace {

constexpr const Family* kFamilies[] = {
    &kBertFamily,  &kEfficientNetFamily, &kGemma2Family, &kGpt2Family,
    &kLlamaFamily, &kMistralFamily,      &kOlmo2Family,  &kPhi3Family,
    &kQwen2Family, &kQwen3Family,        &kResNetFamily,
};

}  // namespace

std::span<const Family* const> AllFamilies() { return kFamilies; }

nlohmann::ordered_json TokenIdsJson(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids[0];
  return ids;
}

const Family& FamilyOf(ModelFamily id) {
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
