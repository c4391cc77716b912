// The number of files and connections that this process may have open.

#ifndef ATOLL_COMMON_DESCRIPTOR_LIMIT_H_
#define ATOLL_COMMON_DESCRIPTOR_LIMIT_H_

namespace atl {

// Raises the limit as far as the system lets this process: the one that shells give, often 1024, is
// for programs that use select(). First of all in a daemon, before its shares are computed.
void RaiseDescriptorLimit();

}  // namespace atl

#endif  // ATOLL_COMMON_DESCRIPTOR_LIMIT_H_
