// One declaration of an operation: its arguments, how to call it, and which of them are gradients.
// The tests run it on every backend against the reference backend and against finite differences;
// the benchmark measures it. A new backend needs no new declarations, a new operation needs one.

#ifndef ATOLL_KERNELS_TESTING_OP_CASE_H_
#define ATOLL_KERNELS_TESTING_OP_CASE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/check.h"
#include "kernels/backend.h"

namespace atl::testing {

enum class Role {
  kInput,     // read by forward and backward
  kOutput,    // written by forward; the gradient "d<name>", an input, arrives for it
  kSaved,     // written by forward for backward; nothing differentiates it
  kState,     // read and written by forward
  kGradient,  // "d<input>", written or added to by backward
};

enum class Type {
  kAct,  // the backend's compute type
  kF32,  // f32, or f64 on a backend that computes in it
  kOnlyF32,
  kBf16,  // always bf16
  kInt32,
};

struct Arg {
  std::string name;
  Role role;
  int64_t rows;
  int64_t cols;
  Type type = Type::kAct;
  // Initial contents: normal numbers, unless given here. Outputs start as rubbish all the same.
  std::function<double(int64_t index)> value = nullptr;
  bool flat = false;  // must be contiguous
  // Set for a gradient: what backward adds it to, its own old contents ("d<input>") or another
  // argument. "" where it is simply written.
  std::string added_to = "";
  int64_t gap = 0;  // elements that its rows are further apart than others', where there are gaps
};

class Call;

struct OpCase {
  std::string name;
  std::vector<Arg> args;
  std::function<void(Call&)> forward;
  std::function<void(Call&)> backward = nullptr;
  // Operations that the benchmark divides by: of forward, and of backward.
  double forward_flops = 0, backward_flops = 0;  // products only; 0: memory counts
  double forward_bytes = 0, backward_bytes = 0;  // each argument's bytes once per read or write
  double tolerance = 2e-5;  // against the reference: relative to a tensor's largest element
};

// The arguments of one case in a backend's memory, and the way to run operations on them.
class Call {
 public:
  Call(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}

  void Bind(const std::string& name, const Tensor& tensor) { tensors_[name] = tensor; }

  // An argument; empty where the case has none of this name: the operand is then absent.
  Tensor operator[](const std::string& name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? Tensor() : it->second;
  }

  // Runs an operation, with a workspace of exactly the size it requests.
  template <typename Op>
  void Run(const Op& op) {
    if constexpr (requires { backend_.WorkspaceBytes(op); }) {
      backend_.Run(stream_, op, GetWorkspace(backend_.WorkspaceBytes(op)));
    } else {
      backend_.Run(stream_, op);
    }
  }

  Backend& backend() { return backend_; }
  Stream& stream() { return stream_; }

 private:
  Workspace GetWorkspace(int64_t bytes) {
    Buffer& buffer = workspaces_[bytes];
    if (buffer.data() == nullptr) {
      absl::StatusOr<Buffer> made = backend_.Allocate(bytes);
      ATOLL_CHECK(made.ok(), made.status().message());
      buffer = std::move(*made);
    }
    return buffer.workspace();
  }

  Backend& backend_;
  Stream& stream_;
  std::map<std::string, Tensor> tensors_;
  std::map<int64_t, Buffer> workspaces_;
};

// Every operation in the shapes that tests run: small, odd, with and without optional operands.
std::vector<OpCase> TestCases();

// Every operation in the shapes of a LLaMA of d 256, 8 layers, 8 heads, B 8, T 256.
std::vector<OpCase> BenchmarkCases();

// Cases with which rates are compared: a product that is large in every dimension, and a loop in
// place over memory that no cache holds.
OpCase LargeProductCase();
OpCase MemoryCase();

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_OP_CASE_H_
