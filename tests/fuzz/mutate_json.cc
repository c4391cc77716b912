#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/fuzz/mutate.h"

namespace atl::fuzz {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDepthMax = 64;  // the library's destructor and dump() recurse
constexpr size_t kNodesMax = 1 << 12;

// Collects the nodes of lists and objects, without `json` itself.
void CollectNodes(Json& json, std::vector<Json*>* nodes) {
  for (Json& child : json) {
    if (nodes->size() == kNodesMax) return;
    nodes->push_back(&child);
    if (child.is_structured()) CollectNodes(child, nodes);
  }
}

Json SomeValue(Rng& rng) {
  switch (rng.Below(12)) {
    case 0:
      return nullptr;
    case 1:
      return rng.Chance(0.5);
    case 2:
      return 0;
    case 3:
      return -1;
    case 4:
      return std::numeric_limits<int64_t>::max();
    case 5:
      return std::numeric_limits<int64_t>::min();
    case 6:
      return std::numeric_limits<uint64_t>::max();
    case 7:
      return int64_t{1} << rng.Below(63);
    case 8:
      return 1e300 * rng.Uniform();
    case 9:
      return "";
    case 10:
      return Json::array();
    default:
      return Json::object();
  }
}

Json NearNumber(const Json& number, Rng& rng) {
  const auto value = static_cast<uint64_t>(number.is_number_unsigned() ? number.get<uint64_t>()
                                                                       : number.get<int64_t>());
  switch (rng.Below(4)) {
    case 0:
      return value + 1;
    case 1:
      return static_cast<int64_t>(value - 1);
    case 2:
      return value * 2;
    default:
      return value / 2;
  }
}

void Change(Json& json, Rng& rng) {
  std::vector<Json*> nodes;
  CollectNodes(json, &nodes);
  if (nodes.empty()) {
    json = Json::array({SomeValue(rng)});
    return;
  }
  Json& node = *nodes[rng.Below(nodes.size())];
  const Json other = *nodes[rng.Below(nodes.size())];
  switch (rng.Below(6)) {
    case 0:
      node = other;
      break;
    case 1:  // grow
      if (node.is_object()) {
        node[other.is_string() ? other.get<std::string>() : ""] = other;
      } else if (node.is_array()) {
        node.push_back(other);
      } else {
        node = SomeValue(rng);
      }
      break;
    case 2:  // shrink
      if (node.is_structured() && !node.empty()) {
        auto child = node.begin();
        std::advance(child, static_cast<int64_t>(rng.Below(node.size())));
        node.erase(child);
      } else {
        node = SomeValue(rng);
      }
      break;
    case 3:
      if (node.is_number_integer()) {
        node = NearNumber(node, rng);
        break;
      }
      [[fallthrough]];
    default:
      node = SomeValue(rng);
  }
}

}  // namespace

std::optional<std::string> MutatedJson(std::string_view text, Rng& rng) {
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDepthMax;
  };
  Json json = Json::parse(text, shallow, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_structured()) return std::nullopt;
  for (uint64_t left = 1 + rng.Below(3); left > 0; --left) Change(json, rng);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace atl::fuzz
