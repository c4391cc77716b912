// `atoll metrics`: a job's curves and merges in forms that other programs read.

#ifndef ATOLL_CLI_METRICS_H_
#define ATOLL_CLI_METRICS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "cli/commands.h"
#include "proto/coordinator.pb.h"

namespace atl::cli {

struct MetricsFlags {
  bool csv = false;  // the default
  bool merges = false;
  bool follow = false;      // with merges or a folder for TensorBoard
  std::string tensorboard;  // folder to write an event file in; empty: none
  int points = 4096;        // of each curve at most
};

// `App` is CLI::App.
template <class App>
void AddMetricsFlags(App& app, MetricsFlags* flags) {
  auto* csv = app.add_flag("--csv", flags->csv, "curves as comma-separated values (the default)");
  auto* merges = app.add_flag("--merges", flags->merges,
                              "the newest merges, one JSON object a line: islands, base versions, "
                              "weights, tokens, reasons")
                     ->excludes(csv);
  app.add_flag("-f,--follow", flags->follow,
               "with --merges or --tensorboard: then add what comes, until the job ends");
  app.add_option("--tensorboard", flags->tensorboard,
                 "folder to write the curves to as a TensorBoard event file")
      ->check([](const std::string& folder) {
        return std::string(folder.empty() ? "must name a folder" : "");
      })
      ->excludes(csv)
      ->excludes(merges);
  app.add_option("--points", flags->points, "maximum number of points of a curve, from 16 to 4096")
      ->capture_default_str();
}

int Metrics(const Global& global, const std::string& job, const MetricsFlags& flags);

// A header line, then a line a point: of all islands together (island is empty), of each island,
// of validation, and of each task.
std::string HistoryAsCsv(const v1::JobHistory& history);

// The extent of an event file: points up to that time, and validations up to that version.
struct WrittenEvents {
  double unix_s = 0;
  int64_t validated_version = -1;
  std::set<std::string> scored = {};  // tasks whose scores of that version are there
};
WrittenEvents NewestEvents(const v1::JobHistory& history);

// The bytes of a TensorBoard event file; with `written`, what is added to one that has so much.
std::string HistoryAsEvents(const v1::JobHistory& history,
                            std::optional<WrittenEvents> written = std::nullopt);

}  // namespace atl::cli

#endif  // ATOLL_CLI_METRICS_H_
