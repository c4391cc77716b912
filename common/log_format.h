// The form of the log's lines (logging.h), which --log-format chooses.

#ifndef ATOLL_COMMON_LOG_FORMAT_H_
#define ATOLL_COMMON_LOG_FORMAT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "common/logging.h"

namespace atl {

enum class LogFormat { kText, kJson };

void SetLogFormat(LogFormat format);

// The line of kJson as Log writes it: an object of `time`, `severity`, `part` and `text`. Bytes
// that are no UTF-8 are replaced.
std::string LogJson(absl::string_view time, LogLevel level, absl::string_view part,
                    absl::string_view text);

}  // namespace atl

#endif  // ATOLL_COMMON_LOG_FORMAT_H_
