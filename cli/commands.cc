#include "cli/commands.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/client.h"
#include "cli/job_file.h"
#include "cli/render.h"
#include "common/protocol/wire.h"

namespace atl::cli {
namespace {

int Fail(const absl::Status& status) {
  std::cerr << "atoll: " << status.message() << "\n";
  return 1;
}

// Dials, calls, and prints the answer as JSON or by `text`.
template <class Reply>
int Print(const Global& global, const std::function<absl::StatusOr<Reply>(Client&)>& call,
          const std::function<std::string(const Reply&)>& text) {
  auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto reply = call(**client);
  if (!reply.ok()) return Fail(reply.status());
  std::cout << (global.json ? Json(*reply) : text(*reply)) << std::flush;
  return 0;
}

absl::StatusOr<v1::SubmitRequest> RequestFromFile(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const JobSpec spec, ReadJobFile(path));
  v1::SubmitRequest request;
  Encode(spec, request.mutable_spec());
  return request;
}

// Draws over what it drew before, on a terminal.
class Screen {
 public:
  void Draw(const std::string& text) {
    if (lines_ > 0) std::cout << "\x1b[" << lines_ << "A\x1b[J";
    std::cout << text << std::flush;
    lines_ = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

 private:
  int lines_ = 0;
};

int ExitCodeOf(const v1::JobSummary& summary) {
  if (summary.state() == v1::JOB_STATE_DONE) return 0;
  std::cerr << "atoll: " << summary.job() << " is " << StateName(summary.state()) << ": "
            << summary.reason() << "\n";
  return 1;
}

int WatchJob(const Global& global, Client& client, const std::string& job, int interval_ms) {
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  Screen screen;
  v1::JobSummary last;
  const absl::Status status = client.Watch(job, interval_ms, [&](const v1::Job& message) {
    last = message.summary();
    if (global.json) {
      std::cout << Json(message) << std::flush;
    } else if (terminal) {
      screen.Draw(ProgressLines(message));
    } else {
      std::cout << ProgressLine(message) << std::flush;
    }
    return !Ended(last.state());
  });
  if (!status.ok()) return Fail(status);
  if (!Ended(last.state())) {
    return Fail(absl::UnavailableError("the coordinator ended the watch; the job goes on"));
  }
  return ExitCodeOf(last);
}

}  // namespace

int Validate(const Global& global, const std::string& path, bool ask) {
  const auto request = RequestFromFile(path);
  if (!request.ok()) return Fail(request.status());
  if (ask) {
    return Print<v1::ValidateReply>(
        global, [&](Client& client) { return client.Validate(*request); },
        [&](const v1::ValidateReply&) { return path + ": valid\n"; });
  }
  std::cout << (global.json ? Json(request->spec()) : path + ": valid\n");
  return 0;
}

int Submit(const Global& global, const std::string& path, bool watch) {
  const auto request = RequestFromFile(path);
  if (!request.ok()) return Fail(request.status());
  auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto reply = (*client)->Submit(*request);
  if (!reply.ok()) return Fail(reply.status());
  std::cout << (global.json ? Json(*reply) : reply->job() + "\n") << std::flush;
  return watch ? WatchJob(global, **client, reply->job(), 0) : 0;
}

int List(const Global& global) {
  return Print<v1::ListReply>(
      global, [](Client& client) { return client.List(); }, JobsTable);
}

int Show(const Global& global, const std::string& job, int decisions) {
  return Print<v1::Job>(
      global, [&](Client& client) { return client.Get(job); },
      [&](const v1::Job& reply) { return JobText(reply, decisions); });
}

int Watch(const Global& global, const std::string& job, int interval_ms) {
  auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return Fail(client.status());
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  return WatchJob(global, **client, job, interval_ms > 0 ? interval_ms : (terminal ? 500 : 5000));
}

int Logs(const Global& global, const std::string& job, bool follow) {
  auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return Fail(client.status());
  v1::LogsRequest request;
  request.set_job(job);
  request.set_follow(follow);
  const absl::Status status = (*client)->Logs(request, [&](const v1::LogLine& line) {
    std::cout << (global.json ? Json(line) : LogText(line)) << std::flush;
    return true;
  });
  return status.ok() ? 0 : Fail(status);
}

int ControlJob(const Global& global, const std::string& job, Control control) {
  return Print<v1::JobSummary>(
      global,
      [&](Client& client) {
        switch (control) {
          case Control::kPause:
            return client.Pause(job);
          case Control::kResume:
            return client.Resume(job);
          default:
            return client.Cancel(job);
        }
      },
      [](const v1::JobSummary& reply) {
        return absl::StrCat(reply.job(), ": ", StateName(reply.state()), ": ", reply.reason(),
                            "\n");
      });
}

int Status(const Global& global, bool watch) {
  if (!watch) {
    return Print<v1::ClusterStatus>(
        global, [](Client& client) { return client.Status(); }, StatusText);
  }
  auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return Fail(client.status());
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  Screen screen;
  const absl::Status status = (*client)->WatchStatus(0, [&](const v1::ClusterStatus& message) {
    if (global.json) {
      std::cout << Json(message) << std::flush;
    } else if (terminal) {
      screen.Draw(StatusText(message));
    } else {
      std::cout << StatusText(message) << "\n" << std::flush;
    }
    return true;
  });
  return status.ok() ? 0 : Fail(status);
}

int RunDaemon(const std::string& program, char** arguments) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string part = program.substr(std::string("atoll-").size());
  // Installed, the programs lie in one folder; in a build tree, each in its own.
  for (const auto& candidate :
       {self.parent_path() / program, self.parent_path().parent_path() / part / program}) {
    execv(candidate.c_str(), arguments);
  }
  std::cerr << "atoll: cannot run " << (self.parent_path() / program).string() << ": "
            << std::strerror(errno) << "\n";
  return 1;
}

}  // namespace atl::cli
