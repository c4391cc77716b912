// Renders what the command line prints: protobuf messages as human-readable tables.

#ifndef ATOLL_CLI_TEXT_RENDER_H_
#define ATOLL_CLI_TEXT_RENDER_H_

#include <cstdint>
#include <string>

#include "cli/text/table.h"
#include "proto/coordinator.pb.h"

namespace atl::cli {

std::string StateName(v1::JobState state);  // "running"
// "failed: the disk is full"; "paused by a user" where the reason begins with the state.
std::string StateText(v1::JobState state, const std::string& reason);
bool Ended(v1::JobState state);                 // done, failed or cancelled
std::string Count(double value);                // 12.3k, 4.56M, 2.5T
std::string Seconds(double seconds);            // 45 s, 3 min 20 s, 2 h 5 min; "-" when unknown
std::string Fixed(double value, int decimals);  // "-" when not finite
std::string SpeedText(double tokens_per_s);     // 12.3k; "-" where nothing trains
std::string Bar(double done, int width);        // [#####.....], done in [0, 1]

std::string ShortText(const v1::JobSummary& s);  // "running, round 12, 34.0%, never exported"

std::string TokenUnit(const v1::JobSummary& s);  // "tokens", or "images" of a model of images

// Return the numbers that a list shows of a job: once it has ended, the final loss and the mean
// throughput; while it is paused, no throughput.
double ShownLoss(const v1::JobSummary& s);
double ShownSpeed(const v1::JobSummary& s);

// `now_ms`: wall time, for ages.
std::string JobsTable(const v1::ListReply& reply, int64_t now_ms);
std::string JobText(const v1::Job& job, int decisions);  // `atoll show`
// Says where the job stands in what a rehearsal predicted; empty: it was not rehearsed.
std::string RehearsedText(const v1::Job& job);
std::string StatusText(const v1::ClusterStatus& status);
std::string LogText(const v1::LogLine& line);

// Progress of a job: several lines that replace each other on a terminal of so many columns (0: no
// limit), or one line for a file.
std::string ProgressLines(const v1::Job& job, int columns = 0);
std::string ProgressLine(const v1::Job& job);

// The part of a text that a terminal of that size shows without wrapping or scrolling. Sizes that
// are not positive limit nothing.
std::string Clip(const std::string& text, int columns, int rows);

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_RENDER_H_
