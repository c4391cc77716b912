// A stream as the kernels' launchers see it, and where their errors go.
//
// Everything in this folder that touches the device is compiled twice: for the GPU in namespace
// atl::cuda, and for the emulator in atl::emulated (with ATOLL_EMULATED_DEVICE defined).

#ifndef ATOLL_KERNELS_CUDA_QUEUE_H_
#define ATOLL_KERNELS_CUDA_QUEUE_H_

#include "common/status.h"

#ifdef ATOLL_EMULATED_DEVICE
#define ATOLL_DEVICE emulated
#else
#define ATOLL_DEVICE cuda
#endif

struct CUstream_st;  // the CUDA runtime's cudaStream_t points to one

namespace atl::ATOLL_DEVICE {

// Keeps the first error until it is read. `code` is the library's, 0 for success; `what` names
// the call.
class FirstError {
 public:
  virtual ~FirstError() = default;
  void Keep(int code, const char* what) {
    if (code != 0) KeepError(code, what);
  }
  void Keep(const absl::Status& status);
  absl::Status Take();

 private:
  void KeepError(int code, const char* what);
  virtual absl::Status Describe(int code, const char* what) const;

  absl::Status status_;
};

struct Queue {
  CUstream_st* stream = nullptr;
  FirstError* errors = nullptr;
};

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_QUEUE_H_
