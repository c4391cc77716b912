#include "common/model/family.h"

#include "common/check.h"

namespace atl {

const std::vector<const Family*>& AllFamilies() {
  static const auto* const kAll = [] {
    auto* all = new std::vector<const Family*>{&kResNetFamily, &kEfficientNetFamily};
    for (const auto table : {kOlderFamilies, kLlamaFamilies, kMixtureFamilies}) {
      for (const Family& family : table) all->push_back(&family);
    }
    return all;
  }();
  return *kAll;
}

nlohmann::ordered_json TokenIdsJson(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids[0];
  return ids;
}

const Family& GetFamily(ModelFamily id) {
  for (const Family* family : AllFamilies()) {
    if (family->id == id) return *family;
  }
  ATOLL_CHECK(false, "no family ", static_cast<int>(id));
  __builtin_unreachable();
}

const Family* FindFamily(absl::string_view model_type) {
  for (const Family* family : AllFamilies()) {
    if (model_type == family->model_type) return family;
  }
  return nullptr;
}

}  // namespace atl
