// Filters of templates: value | name(arguments).

#ifndef ATOLL_COMMON_JINJA_FILTERS_H_
#define ATOLL_COMMON_JINJA_FILTERS_H_

#include <string>

namespace atl::jinja {

bool IsFilter(const std::string& name);

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_FILTERS_H_
