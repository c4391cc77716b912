// A rehearsal's answer as a picture, SVG: a bar that says where device-time went, and how many of
// the runs have finished by when.

#ifndef ATOLL_REHEARSAL_PICTURE_H_
#define ATOLL_REHEARSAL_PICTURE_H_

#include <string>
#include <vector>

#include "rehearsal/answer.h"

namespace atl::rehearsal {

// One answer, of a setting where several are compared.
struct Drawn {
  std::string name;  // empty: there is one setting
  const Answer* answer = nullptr;
};

// REQUIRES: not empty.
std::string RenderPicture(const std::vector<Drawn>& answers);

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_PICTURE_H_
