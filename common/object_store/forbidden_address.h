// Addresses from which no data is read: those that only their own machine or link reaches, and by
// which clouds hand out credentials. Pure.

#ifndef ATOLL_COMMON_OBJECT_STORE_FORBIDDEN_ADDRESS_H_
#define ATOLL_COMMON_OBJECT_STORE_FORBIDDEN_ADDRESS_H_

#include <sys/socket.h>

namespace atl {

// Also of an IPv4 address in IPv6's forms, and of one that is neither.
bool IsForbiddenAddress(const sockaddr& address);

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_FORBIDDEN_ADDRESS_H_
