// Cuts what the client services say to what the web page lists (page.proto). Pure.

#ifndef ATOLL_COORDINATOR_HTTP_PAGE_VIEW_H_
#define ATOLL_COORDINATOR_HTTP_PAGE_VIEW_H_

#include <cstdint>
#include <optional>

#include "coordinator/http/page.pb.h"
#include "proto/coordinator.pb.h"

namespace atl {

v1::page::Status ToPage(const v1::ClusterStatus& status);

// A page's request about a job.
struct JobPage {
  std::optional<int32_t> island;  // the only one, with its details; nullopt: all, without
  int32_t decisions = 0;          // rows at most
};

v1::page::Job ToPage(const v1::Job& job, const JobPage& page);

// Leaves of the curves and of the newest rounds what is drawn.
void KeepDrawn(v1::JobHistory* history);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_HTTP_PAGE_VIEW_H_
