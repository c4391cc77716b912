// The little of XML that S3 answers with.

#ifndef ATOLL_COMMON_OBJECT_STORE_XML_H_
#define ATOLL_COMMON_OBJECT_STORE_XML_H_

#include <string>
#include <string_view>
#include <vector>

namespace atl {

// The contents of all <name>...</name> in `xml`, which do not lie in each other.
std::vector<std::string_view> XmlElements(std::string_view xml, std::string_view name);

// The text of the first one, unescaped; "": there is none.
std::string XmlText(std::string_view xml, std::string_view name);

std::string XmlEscape(std::string_view text);

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_XML_H_
