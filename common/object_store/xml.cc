#include "common/object_store/xml.h"

#include "absl/strings/str_replace.h"

namespace atl {

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
  return absl::StrReplaceAll(std::string(elements[0]), {{"&lt;", "<"},
                                                        {"&gt;", ">"},
                                                        {"&quot;", "\""},
                                                        {"&#34;", "\""},
                                                        {"&apos;", "'"},
                                                        {"&#39;", "'"},
                                                        {"&#x27;", "'"},
                                                        {"&#13;", "\r"},
                                                        {"&amp;", "&"}});
}

std::string XmlEscape(std::string_view text) {
  return absl::StrReplaceAll(std::string(text), {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

}  // namespace atl
