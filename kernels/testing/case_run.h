// Runs one case on one backend: fills its arguments with the same numbers on every backend, guards
// the memory around them, and hands results back as doubles.

#ifndef ATOLL_KERNELS_TESTING_CASE_RUN_H_
#define ATOLL_KERNELS_TESTING_CASE_RUN_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/testing/op_case.h"

namespace atl::testing {

using Numbers = std::vector<double>;

// The arguments' initial contents by name.
using Contents = std::map<std::string, Numbers>;
Contents InitialContents(const OpCase& op_case, uint64_t seed);

// Says whether rows are further apart than they are long, as far as the case allows it.
enum class Gaps {
  kNone,
  kOdd,      // they are, and begin unaligned
  kAligned,  // they are, and begin on multiples of 8 elements
};

class CaseRun {
 public:
  // Runs a case; what lies between rows must stay as it is. `compute` is the type of activations.
  CaseRun(Backend& backend, const OpCase& op_case, Gaps gaps, DType compute = DType::kFloat32);

  // Copies contents to the backend. Numbers are rounded to the argument's type.
  void Fill(const Contents& contents);
  void Forward() { op_case_.forward(call_); }
  void Backward() {
    if (op_case_.backward) op_case_.backward(call_);
  }

  // An argument's numbers now. See trouble() for memory between its rows.
  Numbers Read(const std::string& name);
  // All arguments that the operation writes.
  Contents Results();
  // Where memory between rows was found to be written to, the first time; empty: nowhere.
  const std::string& trouble() const { return trouble_; }

  Call& call() { return call_; }
  Backend& backend() { return backend_; }
  Stream& stream() { return *stream_; }

 private:
  struct Placed {
    const Arg* arg;
    DType dtype;
    Buffer buffer;
    int64_t offset, stride, elements;  // elements of the buffer
  };
  // Aborts with the device's own words if it failed.
  void Synchronize();
  Tensor WholeBuffer(const Placed& placed) const {
    return {placed.buffer.data(), placed.dtype, 1, placed.elements};
  }

  Backend& backend_;
  const OpCase& op_case_;
  std::unique_ptr<Stream> stream_;
  std::map<std::string, Placed> placed_;
  Call call_;
  std::string trouble_;
};

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_CASE_RUN_H_
