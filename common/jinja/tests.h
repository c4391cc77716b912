// Tests of templates: value is name(arguments).

#ifndef ATOLL_COMMON_JINJA_TESTS_H_
#define ATOLL_COMMON_JINJA_TESTS_H_

#include <string>

namespace atl::jinja {

bool IsTest(const std::string& name);

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_TESTS_H_
