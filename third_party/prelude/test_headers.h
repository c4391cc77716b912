// Headers that most tests include, precompiled (see BUILD). No test relies on it: each includes
// what it uses.
#ifndef ATOLL_THIRD_PARTY_PRELUDE_TEST_HEADERS_H_
#define ATOLL_THIRD_PARTY_PRELUDE_TEST_HEADERS_H_

// An exception ends its test case, not one assertion: a tenth less to compile.
#define CATCH_CONFIG_FAST_COMPILE

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
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

#endif  // ATOLL_THIRD_PARTY_PRELUDE_TEST_HEADERS_H_
