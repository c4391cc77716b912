// Which jobs `ls` shows, and which lines `logs`. Pure.

#ifndef ATOLL_CLI_LIST_H_
#define ATOLL_CLI_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "proto/coordinator.pb.h"

namespace atl::cli {

// Lists what Select knows.
std::vector<std::string> ListStates();
std::vector<std::string> ListSortKeys();

// Jobs in one of `states` (empty: any), sorted by a key (smallest first), the last `newest` of them
// (0: all). REQUIRES: states and key are of the lists above.
v1::ListReply Select(const v1::ListReply& all, const std::vector<std::string>& states,
                     const std::string& sort, bool reverse, int64_t newest);

// Milliseconds since 1970: "10m" or "1h30m" before `now_ms`, or a time (RFC 3339). Empty: 0.
absl::StatusOr<int64_t> ParseSince(const std::string& text, int64_t now_ms);

}  // namespace atl::cli

#endif  // ATOLL_CLI_LIST_H_
