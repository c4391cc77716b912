// Headers that most sources include, precompiled (see BUILD). No source relies on it: each includes
// what it uses.
#ifndef ATOLL_THIRD_PARTY_PRELUDE_PRODUCT_HEADERS_H_
#define ATOLL_THIRD_PARTY_PRELUDE_PRODUCT_HEADERS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#endif  // ATOLL_THIRD_PARTY_PRELUDE_PRODUCT_HEADERS_H_
