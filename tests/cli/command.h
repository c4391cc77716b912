// One run of a built program, whose two outputs and exit code the test reads.

#ifndef ATOLL_TESTS_CLI_COMMAND_H_
#define ATOLL_TESTS_CLI_COMMAND_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace atl {

// Deleted with the test.
inline std::string FreshFolder() {
  std::string name = std::string(std::getenv("TEST_TMPDIR")) + "/cli-XXXXXX";
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return name;
}

// The test's working directory is the runfiles' root.
class Command {
 public:
  // `arguments` begin with the program, "cli/atoll". Standard error goes to a file in `folder`;
  // standard output is a pipe. `input`: a file for standard input; "": the test's own.
  Command(std::vector<std::string> arguments, const std::string& folder,
          const std::string& input = "")
      : errors_path_(folder + "/stderr") {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    process_ = fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) {
      const int errors = open(errors_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      if (!input.empty()) dup2(open(input.c_str(), O_RDONLY), STDIN_FILENO);
      signal(SIGINT, SIG_DFL);  // the test's parent may ignore it
      dup2(ends[1], STDOUT_FILENO);
      dup2(errors, STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    out_ = ends[0];
  }
  ~Command() {
    close(out_);
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // The next line of standard output, without its end; empty when there is none any more.
  std::string Line() {
    for (;;) {
      const size_t end = unread_.find('\n');
      if (end != std::string::npos) {
        const std::string line = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        return line;
      }
      if (!ReadSome()) return "";
    }
  }

  // Standard output so far, once it has so many bytes or has ended.
  const std::string& WaitForBytes(size_t bytes) {
    while (unread_.size() < bytes && ReadSome()) {
    }
    return unread_;
  }

  bool IsRunning() const { return waitpid(process_, nullptr, WNOHANG) == 0; }

  void Interrupt() { kill(process_, SIGINT); }

  // Waits for the end; the exit code, -1 where a signal ended it.
  int Wait() {
    while (ReadSome()) {
    }
    int status = 0;
    REQUIRE(waitpid(process_, &status, 0) == process_);
    process_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  const std::string& rest() const { return unread_; }  // of standard output, after Wait
  std::string errors() const {
    std::ifstream file(errors_path_);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  bool ReadSome() {
    char bytes[4096];
    const ssize_t count = read(out_, bytes, sizeof bytes);
    if (count > 0) unread_.append(bytes, static_cast<size_t>(count));
    return count > 0;
  }

  const std::string errors_path_;
  pid_t process_ = 0;
  int out_ = -1;
  std::string unread_;
};

}  // namespace atl

#endif  // ATOLL_TESTS_CLI_COMMAND_H_
