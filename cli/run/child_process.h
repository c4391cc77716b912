// A program that this process runs and ends.

#ifndef ATOLL_CLI_RUN_CHILD_PROCESS_H_
#define ATOLL_CLI_RUN_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace atl::cli {

// Not thread-safe: one thread starts it and calls everything. The kernel kills the program when
// that thread ends, however it ends; signals of the terminal do not reach the program.
class ChildProcess {
 public:
  // `arguments[0]`: path of the program. Its outputs are appended to `log_path`. It gets this
  // process's environment without ATOLL_*, which would be flags of its own, but for
  // ATOLL_DATA_CACHE*.
  static absl::StatusOr<ChildProcess> Start(std::vector<std::string> arguments,
                                            const std::string& log_path);
  ~ChildProcess();  // kills it if it runs
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  // Returns whether the process has ended, and reaps it then. Never waits.
  bool HasEnded();
  void Signal(int signal);

  // REQUIRES: HasEnded().
  bool ended_by_signal() const;
  // "ended with exit code 1", "was ended by signal 9 (Killed)".
  std::string EndText() const;

  // The newest lines that it has logged since its start, at most `lines`.
  std::string LogEnd(int lines) const;
  const std::string& log_path() const { return log_path_; }
  pid_t pid() const { return pid_; }

 private:
  ChildProcess(pid_t pid, std::string log_path, int64_t log_begin)
      : pid_(pid), log_path_(std::move(log_path)), log_begin_(log_begin) {}

  pid_t pid_;  // 0: moved from
  std::string log_path_;
  int64_t log_begin_;  // bytes of the log that earlier processes wrote
  bool ended_ = false;
  int status_ = 0;  // as waitpid gives it
};

}  // namespace atl::cli

#endif  // ATOLL_CLI_RUN_CHILD_PROCESS_H_
