// SIGINT, SIGTERM and SIGHUP as values, for a command that ends in order.

#ifndef ATOLL_CLI_RUN_INTERRUPTS_H_
#define ATOLL_CLI_RUN_INTERRUPTS_H_

#include "common/time.h"

namespace atl::cli {

class Interrupts {
 public:
  // Blocks them in this thread and in all that it makes from now on.
  Interrupts();

  // Waits at most so long for one; 0: none came.
  int Wait(Duration at_most);

  // Ends this process as the signal does where it is not blocked.
  [[noreturn]] static void End(int signal);
};

}  // namespace atl::cli

#endif  // ATOLL_CLI_RUN_INTERRUPTS_H_
