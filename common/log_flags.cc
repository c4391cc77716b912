#include "common/log_flags.h"

#include <map>
#include <string>

#include "common/log_format.h"
#include "common/logging.h"

namespace atl {

void AddLogFlags(CLI::App& app) {
  const std::map<std::string, LogFormat> formats = {{"text", LogFormat::kText},
                                                    {"json", LogFormat::kJson}};
  app.add_option_function<std::string>(
         "--log-level", [](const std::string& name) { SetLogLevel(name).IgnoreError(); },
         "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->default_str("info");
  app.add_option_function<std::string>(
         "--log-format", [formats](const std::string& name) { SetLogFormat(formats.at(name)); },
         "text, or json: an object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->default_str("text");
}

}  // namespace atl
