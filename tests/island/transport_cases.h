// The contract of worker/pipeline/transport.h, as cases that every transport runs.

#ifndef ATOLL_TESTS_ISLAND_TRANSPORT_CASES_H_
#define ATOLL_TESTS_ISLAND_TRANSPORT_CASES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/pipeline/transport.h"

namespace atl::worker {

// One device, a stream of it, and the transport that it sends and receives by.
struct Endpoint {
  std::string device;
  Backend* backend = nullptr;
  Stream* stream = nullptr;
  Transport* transport = nullptr;
};

// Devices "a/..." and "b/..." that are stages 0 and 1, set up for steps of up to four micro-batches
// of `kMessageElements` floats at most.
class Pair {
 public:
  virtual ~Pair() = default;
  virtual Endpoint a() = 0;
  virtual Endpoint b() = 0;
  // Resets both ends as an engine does before a plan, after an Abort too.
  virtual void Reset() = 0;
};
inline constexpr int64_t kMessageElements = 300;

struct TransportCase {
  std::string name;
  std::function<void(Pair&)> run;  // fails by Catch2's REQUIRE
};

std::vector<TransportCase> TransportCases();

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_TRANSPORT_CASES_H_
