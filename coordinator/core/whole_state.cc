#include "coordinator/core/whole_state.h"

#include "common/plain_fields.h"

namespace atl::coord {

std::string SaveWhole(const State& s) {
  std::string bytes;
  AppendPlain(&bytes, s);
  return bytes;
}

bool LoadWhole(absl::string_view bytes, State& s) {
  PlainReader reader(bytes);
  reader.Visit(s);
  return reader.ok();
}

}  // namespace atl::coord
