// One Step of the core: its time, and the actions so far. Private to core*.cc.

#ifndef ATOLL_PARAMSERVER_CORE_TURN_H_
#define ATOLL_PARAMSERVER_CORE_TURN_H_

#include "paramserver/core/core.h"

namespace atl::ps {

struct ServerCore::Turn {
  Instant now;
  Actions actions;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_TURN_H_
