#include "cli/run/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace atl::cli {
namespace {

constexpr int64_t kLogEndBytesMax = 16384;
constexpr int kCannotRun = 127;

// Runs in the child, between fork and exec: system calls alone.
[[noreturn]] void Become(char* const* arguments, char* const* variables, int log, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kCannotRun);  // the parent ended before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_DFL);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
      dup2(log, STDERR_FILENO) < 0) {
    _exit(kCannotRun);
  }
  execve(arguments[0], arguments, variables);
  const char* why = strerrordesc_np(errno);
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, "cannot be run: ", 15);
  written = write(STDERR_FILENO, why, strlen(why));
  written = write(STDERR_FILENO, "\n", 1);
  _exit(kCannotRun);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(std::vector<std::string> arguments,
                                                 const std::string& log_path) {
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) {
    return absl::UnavailableError(
        absl::StrCat(log_path, ": cannot be written: ", std::strerror(errno)));
  }
  const int64_t log_begin = lseek(log, 0, SEEK_END);
  std::vector<char*> argv, variables;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    // Variables that stand for flags are meant for other daemons; where data are cached is not.
    const bool is_flag =
        absl::StartsWith(*variable, "ATOLL_") && !absl::StartsWith(*variable, "ATOLL_DATA_CACHE");
    if (!is_flag) variables.push_back(*variable);
  }
  variables.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(argv.data(), variables.data(), log, parent);
  const int error = errno;
  close(log);
  if (pid < 0) {
    return absl::UnavailableError(
        absl::StrCat(arguments[0], ": cannot be started: ", std::strerror(error)));
  }
  return ChildProcess(pid, log_path, std::max<int64_t>(0, log_begin));
}

ChildProcess::~ChildProcess() {
  if (pid_ == 0 || HasEnded()) return;
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      log_path_(std::move(other.log_path_)),
      log_begin_(other.log_begin_),
      ended_(other.ended_),
      status_(other.status_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(log_path_, other.log_path_);
  std::swap(log_begin_, other.log_begin_);
  std::swap(ended_, other.ended_);
  std::swap(status_, other.status_);
  return *this;
}

bool ChildProcess::HasEnded() {
  if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
  return ended_;
}

void ChildProcess::Signal(int signal) {
  if (!ended_) kill(pid_, signal);
}

bool ChildProcess::ended_by_signal() const { return WIFSIGNALED(status_); }

std::string ChildProcess::EndText() const {
  if (!ended_by_signal()) return absl::StrCat("ended with exit code ", WEXITSTATUS(status_));
  const int signal = WTERMSIG(status_);
  return absl::StrCat("was ended by signal ", signal, " (", strsignal(signal), ")");
}

std::string ChildProcess::LogEnd(int lines) const {
  std::ifstream log(log_path_, std::ios::binary | std::ios::ate);
  const int64_t size = log ? static_cast<int64_t>(log.tellg()) : 0;
  const int64_t begin = std::max(log_begin_, size - kLogEndBytesMax);
  if (size <= begin) return "";
  std::string text(static_cast<size_t>(size - begin), '\0');
  log.seekg(begin);
  log.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, log.gcount())));
  std::vector<std::string> all = absl::StrSplit(text, '\n', absl::SkipEmpty());
  const auto count = std::min(all.size(), static_cast<size_t>(std::max(lines, 0)));
  return absl::StrJoin(all.end() - static_cast<ptrdiff_t>(count), all.end(), "\n");
}

}  // namespace atl::cli
