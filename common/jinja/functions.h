// Functions that every template has, and methods of values.

#ifndef ATOLL_COMMON_JINJA_FUNCTIONS_H_
#define ATOLL_COMMON_JINJA_FUNCTIONS_H_

#include <string>

#include "common/jinja/evaluator.h"

namespace atl::jinja {

// range, namespace, dict, raise_exception, strftime_now.
bool IsFunction(const std::string& name);
Value CallFunction(Evaluator& run, const std::string& name, const Arguments& arguments);

bool HasMethod(const Value& value, const std::string& name);
// One that Python's type has and that is not implemented here.
bool IsUnknownMethod(const Value& value, const std::string& name);
Value CallMethod(Evaluator& run, const Value& self, const std::string& name,
                 const Arguments& arguments);

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_FUNCTIONS_H_
