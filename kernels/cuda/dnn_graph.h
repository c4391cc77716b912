// A graph of cuDNN operations, by the library's backend API. Nothing here touches a device until
// Plan is requested.

#ifndef ATOLL_KERNELS_CUDA_DNN_GRAPH_H_
#define ATOLL_KERNELS_CUDA_DNN_GRAPH_H_

#include <cudnn_graph.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"

namespace atl::cuda {

// Owns one descriptor of the library.
class DnnDescriptor {
 public:
  DnnDescriptor() = default;
  explicit DnnDescriptor(cudnnBackendDescriptorType_t type) {
    status_ = cudnnBackendCreateDescriptor(type, &descriptor_);
  }
  ~DnnDescriptor() {
    if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
  }
  DnnDescriptor(DnnDescriptor&& other) noexcept { swap(other); }
  DnnDescriptor& operator=(DnnDescriptor&& other) noexcept {
    swap(other);
    return *this;
  }

  template <typename T>
  void Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    SetArray(name, type, 1, &value);
  }
  void Set(cudnnBackendAttributeName_t name, const DnnDescriptor& other) {
    if (other.status_ != CUDNN_STATUS_SUCCESS && ok()) status_ = other.status_;
    SetArray(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.descriptor_);
  }
  void SetArray(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void* values) {
    if (ok()) status_ = cudnnBackendSetAttribute(descriptor_, name, type, count, values);
  }
  void Finalize() {
    if (ok()) status_ = cudnnBackendFinalize(descriptor_);
  }

  bool ok() const { return status_ == CUDNN_STATUS_SUCCESS; }
  cudnnStatus_t status() const { return status_; }  // the first error since it was made
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  void swap(DnnDescriptor& other) {
    std::swap(descriptor_, other.descriptor_);
    std::swap(status_, other.status_);
  }

  cudnnBackendDescriptor_t descriptor_ = nullptr;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
};

using DnnDims = std::array<int64_t, 4>;

// Something that can be executed, and the scratch memory that it takes.
struct DnnPlan {
  DnnDescriptor descriptor;
  int64_t workspace_bytes = 0;
};

// The target of a plan: on the device of a handle, or, to see what cuDNN would choose, on one that
// is described and need not be here.
struct DnnTarget {
  cudnnHandle_t handle = nullptr;
  const DnnDescriptor* device = nullptr;  // from DescribeDevice
  int64_t workspace_max_bytes = std::numeric_limits<int64_t>::max();
};
// `json`: as the library writes CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION.
DnnDescriptor DescribeDevice(const std::string& json);

// Tensors are named by numbers: their indices here and their unique ids in the library.
class DnnGraph {
 public:
  // Adds a tensor in memory; the caller binds a pointer to it when the plan runs.
  int Real(const DnnDims& dims, const DnnDims& strides, cudnnDataType_t type) {
    return Add(dims, strides, type, false, false);
  }
  // Between two operations; never in memory.
  int Virtual(const DnnDims& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  int Virtual(const DnnDims& dims, const DnnDims& strides, cudnnDataType_t type) {
    return Add(dims, strides, type, true, false);
  }
  // A float of the host, read when the plan is put on a stream.
  int Scalar() { return Add({1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, false, true); }

  void Multiply(int a, int b, int c);
  void Pointwise(cudnnPointwiseMode_t mode, int x, int b, int y,
                 cudnnDataType_t compute = CUDNN_DATA_FLOAT);
  void Pointwise(cudnnPointwiseMode_t mode, int x, int y) { Pointwise(mode, x, -1, y); }
  void Select(int condition, int yes, int no, int y);
  void Index(int like, int64_t axis, int y);
  void Reduce(cudnnReduceTensorOp_t op, int x, int y);
  void Reshape(int x, int y);

  // OK if the library took all descriptors.
  absl::Status status() const;

  // A plan by the first engine that the library recommends, that gives the same bits every time,
  // that can be built and wants no more scratch than the target allows. UNIMPLEMENTED: there is
  // none.
  absl::StatusOr<DnnPlan> Plan(const DnnTarget& target) const;

 private:
  struct PointwiseOperands {
    int x = -1, b = -1, t = -1, y = -1;
    int64_t axis = -1;
  };
  int Add(const DnnDims& dims, const DnnDims& strides, cudnnDataType_t type, bool is_virtual,
          bool by_value);
  void AddPointwise(cudnnPointwiseMode_t mode, const PointwiseOperands& operands,
                    cudnnDataType_t compute);

  std::vector<DnnDescriptor> tensors_, settings_, operations_;
};

}  // namespace atl::cuda

#endif  // ATOLL_KERNELS_CUDA_DNN_GRAPH_H_
