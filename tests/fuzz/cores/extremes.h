// Well-formed messages with extreme values: by their descriptors, fields become 0, -1, 1, the
// largest and smallest of their type, NaN, infinite, empty, repeated, or what another message's
// have.

#ifndef ATOLL_TESTS_FUZZ_CORES_EXTREMES_H_
#define ATOLL_TESTS_FUZZ_CORES_EXTREMES_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/rng.h"

namespace atl::fuzz {

class Extremes {
 public:
  explicit Extremes(uint64_t seed) : rng_(seed) {}

  Rng& rng() { return rng_; }
  // Its values may become those of others.
  void Learn(const google::protobuf::Message& message);
  // One to three fields, somewhere in it.
  void Change(google::protobuf::Message* message);

 private:
  void ChangeOne(google::protobuf::Message* message, int depth);
  void ChangeList(google::protobuf::Message* message,
                  const google::protobuf::FieldDescriptor* field, int depth);
  void SetValue(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field);
  int64_t Number();
  double Real();
  std::string Text();

  Rng rng_;
  std::vector<int64_t> numbers_;
  std::vector<std::string> texts_;
};

}  // namespace atl::fuzz

#endif  // ATOLL_TESTS_FUZZ_CORES_EXTREMES_H_
