#include "kernels/cuda/dnn_graph.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace atl::cuda {
namespace {

constexpr int64_t kAlignment = 16;
constexpr int64_t kEnginesMax = 16;

}  // namespace

int DnnGraph::Add(const DnnDims& dims, const DnnDims& strides, cudnnDataType_t type,
                  bool is_virtual, bool by_value) {
  const int64_t id = static_cast<int64_t>(tensors_.size());
  DnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  tensor.SetArray(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data());
  tensor.SetArray(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  tensor.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  tensor.Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
  tensor.Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  tensor.Finalize();
  tensors_.push_back(std::move(tensor));
  return static_cast<int>(id);
}

int DnnGraph::Virtual(const DnnDims& d, cudnnDataType_t type) {
  return Add(d, {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}, type, true, false);
}

void DnnGraph::Multiply(int a, int b, int c) {
  DnnDescriptor matmul(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  matmul.Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  matmul.Finalize();
  DnnDescriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensors_[a]);
  operation.Set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensors_[b]);
  operation.Set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensors_[c]);
  operation.Set(CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul);
  operation.Finalize();
  settings_.push_back(std::move(matmul));
  operations_.push_back(std::move(operation));
}

void DnnGraph::AddPointwise(cudnnPointwiseMode_t mode, const PointwiseOperands& operands,
                            cudnnDataType_t compute) {
  DnnDescriptor pointwise(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  pointwise.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  pointwise.Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compute);
  if (operands.axis >= 0) {
    pointwise.Set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, operands.axis);
  }
  pointwise.Finalize();
  DnnDescriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[operands.x]);
  if (operands.b >= 0) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors_[operands.b]);
  if (operands.t >= 0) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensors_[operands.t]);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors_[operands.y]);
  operation.Finalize();
  settings_.push_back(std::move(pointwise));
  operations_.push_back(std::move(operation));
}

void DnnGraph::Pointwise(cudnnPointwiseMode_t mode, int x, int b, int y, cudnnDataType_t compute) {
  AddPointwise(mode, {.x = x, .b = b, .y = y}, compute);
}

void DnnGraph::Select(int condition, int yes, int no, int y) {
  AddPointwise(CUDNN_POINTWISE_BINARY_SELECT, {.x = yes, .b = no, .t = condition, .y = y},
               CUDNN_DATA_FLOAT);
}

// In fp32, as NVIDIA's frontend has it for causal masks: exact up to 2^24 tokens.
void DnnGraph::Index(int like, int64_t axis, int y) {
  AddPointwise(CUDNN_POINTWISE_GEN_INDEX, {.x = like, .y = y, .axis = axis}, CUDNN_DATA_FLOAT);
}

void DnnGraph::Reduce(cudnnReduceTensorOp_t op, int x, int y) {
  DnnDescriptor reduction(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  reduction.Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op);
  reduction.Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  reduction.Finalize();
  DnnDescriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensors_[x]);
  operation.Set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensors_[y]);
  operation.Set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
  operation.Finalize();
  settings_.push_back(std::move(reduction));
  operations_.push_back(std::move(operation));
}

void DnnGraph::Reshape(int x, int y) {
  DnnDescriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensors_[x]);
  operation.Set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensors_[y]);
  operation.Finalize();
  operations_.push_back(std::move(operation));
}

absl::Status DnnGraph::status() const {
  const auto check = [](const std::vector<DnnDescriptor>& descriptors, absl::string_view kind) {
    for (size_t i = 0; i < descriptors.size(); ++i) {
      if (descriptors[i].ok()) continue;
      return absl::InternalError(
          absl::StrCat("cuDNN ", kind, " ", i, ": ", cudnnGetErrorString(descriptors[i].status())));
    }
    return absl::OkStatus();
  };
  ATOLL_RETURN_IF_ERROR(check(tensors_, "tensor"));
  ATOLL_RETURN_IF_ERROR(check(settings_, "setting"));
  return check(operations_, "operation");
}

DnnDescriptor DescribeDevice(const std::string& json) {
  DnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.SetArray(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                  static_cast<int64_t>(json.size()), json.data());
  device.Finalize();
  return device;
}

namespace {

// Returns whether the library notes that a configuration's engine may give other bits for the same
// input.
bool Varies(const DnnDescriptor& config) {
  const DnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  int64_t count = 0;
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  if (cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                               &raw) != CUDNN_STATUS_SUCCESS ||
      cudnnBackendGetAttribute(raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                               CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count,
                               notes) != CUDNN_STATUS_SUCCESS) {
    return false;
  }
  count = std::min<int64_t>(count, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  return std::find(notes, notes + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) != notes + count;
}

}  // namespace

absl::StatusOr<DnnPlan> DnnGraph::Plan(const DnnTarget& target) const {
  ATOLL_RETURN_IF_ERROR(status());
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const DnnDescriptor& operation : operations_) operations.push_back(operation.get());
  DnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (target.handle != nullptr) {
    graph.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  }
  graph.SetArray(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                 static_cast<int64_t>(operations.size()), operations.data());
  graph.Finalize();
  DnnDescriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (target.device != nullptr) heuristic.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
  heuristic.Finalize();
  if (!heuristic.ok()) {
    return absl::UnimplementedError(
        absl::StrCat("cuDNN has no engine: ", cudnnGetErrorString(heuristic.status())));
  }
  std::vector<DnnDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < kEnginesMax; ++i) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(configs.back().get());
  }
  int64_t found = 0;
  if (cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, kEnginesMax, &found,
                               raw.data()) != CUDNN_STATUS_SUCCESS) {
    found = 0;
  }
  int64_t varying = 0, large = 0;
  for (int64_t i = 0; i < found && i < kEnginesMax; ++i) {
    if (Varies(configs[i])) {
      ++varying;
      continue;
    }
    DnnPlan plan;
    plan.descriptor = DnnDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (target.handle != nullptr) {
      plan.descriptor.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
    }
    if (target.device != nullptr) {
      plan.descriptor.Set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.device);
    }
    plan.descriptor.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[i]);
    plan.descriptor.Finalize();
    int64_t count = 0;
    if (plan.descriptor.ok() &&
        cudnnBackendGetAttribute(plan.descriptor.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                 CUDNN_TYPE_INT64, 1, &count,
                                 &plan.workspace_bytes) == CUDNN_STATUS_SUCCESS) {
      if (plan.workspace_bytes <= target.workspace_max_bytes) return plan;
      ++large;
    }
  }
  return absl::UnimplementedError(absl::StrCat(
      "none of cuDNN's ", found, " engines will do (", varying, " would not repeat bit for bit, ",
      large, " want more than ", target.workspace_max_bytes >> 20, " MiB of scratch)"));
}

}  // namespace atl::cuda
