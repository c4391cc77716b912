#include <nlohmann/json.hpp>

#include "cli/text/render.h"

namespace atl::cli {

std::string JsonLine(std::initializer_list<JsonField> fields) {
  nlohmann::ordered_json object;
  for (const auto& [name, value] : fields) {
    std::visit([&, &name = name](const auto& held) { object[name] = held; }, value);
  }
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace atl::cli
