// `atoll trace JOB`: one coming step of an island, recorded on all its workers, beside what its
// plan says. Exit code as in commands.h.

#ifndef ATOLL_CLI_TRACE_H_
#define ATOLL_CLI_TRACE_H_

#include <string>

#include "cli/commands.h"

namespace atl::cli {

struct TraceFlags {
  int island = -1;  // -1: the first one with a worker
  std::string out;  // for Perfetto; empty: not
  std::string svg;
  int timeout_s = 30;
};

// `App` is CLI::App.
template <class App>
void AddTraceFlags(App& app, TraceFlags* flags) {
  app.add_option("--island", flags->island, "number of the island in `atoll show`")
      ->check([](const std::string& value) {
        return value.find_first_not_of("0123456789") == std::string::npos
                   ? ""
                   : "an island is a number from 0 on";
      });
  app.add_option("--out", flags->out, "write both steps for Perfetto, JSON");
  app.add_option("--svg", flags->svg, "write both steps as one picture");
  app.add_option("--timeout", flags->timeout_s, "seconds to wait for a step, 1 to 300")
      ->capture_default_str();
}

int Trace(const Global& global, const std::string& job, const TraceFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_TRACE_H_
