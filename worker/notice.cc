#include "worker/notice.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/event_loop.h"

extern char** environ;

namespace atl::worker {
namespace {

constexpr Duration kCommandLimit = std::chrono::seconds(10);
constexpr size_t kOutputMax = 4096;
constexpr int kMayNotRun = 126, kNotFound = 127;  // by the shell's convention

// A process group of its own, so that all of it can be ended. `output`: what it writes.
absl::StatusOr<pid_t> Spawn(const std::string& command, int output) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string shell = "sh", option = "-c", text = command;
  const std::array<char*, 4> arguments{shell.data(), option.data(), text.data(), nullptr};
  pid_t process = 0;
  const int error =
      posix_spawn(&process, "/bin/sh", &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error == 0) return process;
  return absl::FailedPreconditionError(absl::StrCat("/bin/sh: ", strerror(error)));
}

// Reads what it writes, until it closes its output or the time has come.
std::string ReadOutput(int from, Instant deadline) {
  std::string output;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyNow());
    pollfd readable{from, POLLIN, 0};
    if (left.count() <= 0 || poll(&readable, 1, static_cast<int>(left.count())) <= 0) return output;
    std::array<char, 512> buffer;
    const ssize_t bytes = read(from, buffer.data(), buffer.size());
    if (bytes <= 0) return output;
    const size_t room = kOutputMax - std::min(kOutputMax, output.size());
    output.append(buffer.data(), std::min(room, static_cast<size_t>(bytes)));
  }
}

// Its exit status; none: the time came first, and it was ended.
std::optional<int> AwaitEnd(pid_t process, Instant deadline) {
  int status = 0;
  bool late = false;
  while (waitpid(process, &status, WNOHANG) == 0) {
    if (SteadyNow() >= deadline) {
      late = true;
      kill(-process, SIGKILL);
      waitpid(process, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!late) kill(-process, SIGKILL);  // what it left in the background
  if (late) return std::nullopt;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Notice NoticeFrom(const std::string& output) {
  const std::vector<std::string> words =
      absl::StrSplit(output, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
  double seconds = 0;
  if (words.empty() || !absl::SimpleAtod(words[0], &seconds)) return {};
  if (!(seconds >= 0) || seconds > 1e6) return {};
  return {FromSeconds(seconds)};
}

absl::StatusOr<std::optional<Notice>> RunNoticeCommand(const std::string& command, Duration limit) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no pipe: ", strerror(errno)));
  }
  const Instant deadline = SteadyNow() + limit;
  const absl::StatusOr<pid_t> process = Spawn(command, ends[1]);
  close(ends[1]);
  const std::string output = process.ok() ? ReadOutput(ends[0], deadline) : "";
  close(ends[0]);
  ATOLL_RETURN_IF_ERROR(process.status());
  const std::optional<int> status = AwaitEnd(*process, deadline);
  if (!status) {
    return absl::DeadlineExceededError(
        absl::StrCat("it was still running after ", Seconds(limit), " s, and was ended"));
  }
  if (*status == kNotFound || *status == kMayNotRun) {
    return absl::FailedPreconditionError("/bin/sh did not find it, or may not run it");
  }
  if (*status != 0) return std::optional<Notice>();
  return std::optional<Notice>(NoticeFrom(output));
}

NoticeWatcher::NoticeWatcher(std::string command, Duration every,
                             std::function<void(Notice)> on_notice,
                             std::function<void(const std::string&)> on_trouble)
    : NoticeWatcher(
          [command = std::move(command)] { return RunNoticeCommand(command, kCommandLimit); },
          every, std::move(on_notice), std::move(on_trouble)) {}

NoticeWatcher::NoticeWatcher(Look look, Duration every, std::function<void(Notice)> on_notice,
                             std::function<void(const std::string&)> on_trouble)
    : look_(std::move(look)),
      every_(every),
      on_notice_(std::move(on_notice)),
      on_trouble_(std::move(on_trouble)),
      thread_([this] { Run(); }) {}

NoticeWatcher::~NoticeWatcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void NoticeWatcher::Run() {
  std::string trouble;
  for (;;) {
    const absl::StatusOr<std::optional<Notice>> notice = look_();
    if (notice.ok() && *notice) return on_notice_(**notice);
    const std::string now(notice.status().message());
    if (now != trouble) on_trouble_(now);
    trouble = now;
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, every_, [this] { return stop_; })) return;
  }
}

}  // namespace atl::worker
