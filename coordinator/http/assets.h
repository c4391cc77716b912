// The files of dashboard/built/, compiled in (assets.py).

#ifndef ATOLL_COORDINATOR_HTTP_ASSETS_H_
#define ATOLL_COORDINATOR_HTTP_ASSETS_H_

#include "absl/strings/string_view.h"

namespace atl {

struct Asset {
  absl::string_view name;
  const char* type;
  absl::string_view body;
};

const Asset* FindAsset(absl::string_view name);  // null: there is none

}  // namespace atl

#endif  // ATOLL_COORDINATOR_HTTP_ASSETS_H_
