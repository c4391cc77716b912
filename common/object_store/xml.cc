#include "common/object_store/xml.h"

#include <utility>

namespace atl {
namespace {

constexpr std::pair<std::string_view, char> kEntities[] = {
    {"&lt;", '<'},  {"&gt;", '>'},    {"&quot;", '"'}, {"&apos;", '\''}, {"&#39;", '\''},
    {"&#34;", '"'}, {"&#x27;", '\''}, {"&#13;", '\r'}, {"&amp;", '&'}};

}  // namespace

std::vector<std::string_view> XmlElements(std::string_view xml, std::string_view name) {
  const std::string begin = "<" + std::string(name), end = "</" + std::string(name) + ">";
  std::vector<std::string_view> found;
  for (size_t at = 0; (at = xml.find(begin, at)) != std::string_view::npos;) {
    const size_t after = at + begin.size();
    const size_t open = xml.find('>', after);
    if (open == std::string_view::npos) break;
    if (xml[after] != '>' && xml[after] != ' ') {  // a longer name
      at = after;
      continue;
    }
    const size_t close = xml.find(end, open);
    if (close == std::string_view::npos) break;
    found.push_back(xml.substr(open + 1, close - open - 1));
    at = close + end.size();
  }
  return found;
}

std::string XmlText(std::string_view xml, std::string_view name) {
  const auto elements = XmlElements(xml, name);
  if (elements.empty()) return "";
  std::string text;
  for (size_t i = 0; i < elements[0].size();) {
    const std::string_view rest = elements[0].substr(i);
    size_t taken = 1;
    char character = rest[0];
    for (const auto& [entity, meaning] : kEntities) {
      if (rest.starts_with(entity)) {
        taken = entity.size();
        character = meaning;
        break;
      }
    }
    text += character;
    i += taken;
  }
  return text;
}

std::string XmlEscape(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace atl
