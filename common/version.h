// The software's version, as members send it in their hello and status commands show it.

#ifndef ATOLL_COMMON_VERSION_H_
#define ATOLL_COMMON_VERSION_H_

namespace atl {

inline constexpr char kSoftwareVersion[] = "0.1.0";

}  // namespace atl

#endif  // ATOLL_COMMON_VERSION_H_
