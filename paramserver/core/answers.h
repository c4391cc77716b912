// How a server answers pushes and pulls.

#ifndef ATOLL_PARAMSERVER_CORE_ANSWERS_H_
#define ATOLL_PARAMSERVER_CORE_ANSWERS_H_

#include <cstdint>

namespace atl::ps {

enum class PushStatus : uint8_t { kStaged = 0, kDuplicate = 1, kRefused = 2 };
enum class PullRefusal : uint8_t { kNotYet = 0, kSuperseded = 1, kUnknown = 2 };

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_ANSWERS_H_
