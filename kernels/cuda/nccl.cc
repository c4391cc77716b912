#include "kernels/cuda/nccl.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/nccl_api.h"

namespace atl {
namespace {

absl::Status StatusFromError(ncclResult_t result, absl::string_view what) {
  const std::string text = absl::StrCat(what, ": ", ncclGetErrorString(result));
  return result == ncclRemoteError || result == ncclSystemError ? absl::UnavailableError(text)
                                                                : absl::InternalError(text);
}

ncclDataType_t ToNcclDataType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kBfloat16:
      return ncclBfloat16;
    case DType::kInt32:
      break;
  }
  ATOLL_CHECK(false, "collectives reduce reals");
  __builtin_unreachable();
}

// Ranks of one process would read and write each other's buffers by plain addresses, which a pool's
// memory does not allow on another device before cudaMemPoolSetAccess. Without
// that they go through NCCL's own buffers, over the same links.
//
// NCCL reads its settings once. They are set before main: later there are threads that may read the
// environment meanwhile.
[[maybe_unused]] const int kSettings = setenv("NCCL_P2P_DIRECT_DISABLE", "1", /*overwrite=*/0);

// A communicator that never blocks, and its device.
struct Joined {
  ncclComm_t communicator = nullptr;
  int device_index = 0;
  int rank = 0;
};

class Nccl final : public NcclApi {
 public:
  absl::StatusOr<std::string> NewId() override {
    ncclUniqueId id;
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) return StatusFromError(result, "ncclGetUniqueId");
    return std::string(id.internal, sizeof(id.internal));
  }

  absl::StatusOr<Member> Begin(Backend& backend, const NcclGroup& group) override {
    ncclUniqueId id;
    if (group.id.size() != sizeof(id.internal)) {
      return absl::InvalidArgumentError(
          absl::StrCat("an NCCL id of ", group.id.size(), " bytes; it has ", sizeof(id.internal)));
    }
    std::memcpy(id.internal, group.id.data(), sizeof(id.internal));
    auto joined = std::make_unique<Joined>();
    joined->device_index = GetDeviceBackend(backend).device_index();
    joined->rank = group.rank;
    ATOLL_RETURN_IF_ERROR(Use(*joined));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result =
        ncclCommInitRankConfig(&joined->communicator, group.size, id, group.rank, &config);
    if (result != ncclSuccess && result != ncclInProgress) {
      if (joined->communicator != nullptr) ncclCommAbort(joined->communicator);
      return StatusFromError(result, "ncclCommInitRankConfig");
    }
    return static_cast<Member>(joined.release());
  }

  absl::StatusOr<bool> IsEnqueued(Member member) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t status = ncclCommGetAsyncError(Of(member).communicator, &state);
    if (status != ncclSuccess) return StatusFromError(status, "ncclCommGetAsyncError");
    if (state == ncclInProgress) return false;
    if (state == ncclSuccess) return true;
    return absl::UnavailableError(absl::StrCat("a member was lost: ", ncclGetErrorString(state)));
  }

  absl::Status AllReduce(Member member, Backend& backend, Stream& stream, const Tensor& x,
                         bool sum) override {
    return Enqueue(member, backend, "ncclAllReduce", [&](ncclComm_t communicator) {
      return ncclAllReduce(x.data, x.data, static_cast<size_t>(x.size()), ToNcclDataType(x.dtype),
                           sum ? ncclSum : ncclMax, communicator,
                           GetDeviceBackend(backend).RawStream(stream));
    });
  }
  absl::Status ReduceScatter(Member member, Backend& backend, Stream& stream, const Tensor& x,
                             const Cuts& cuts) override {
    const ncclDataType_t type = ToNcclDataType(x.dtype);
    cudaStream_t on = GetDeviceBackend(backend).RawStream(stream);
    if (const int64_t each = EqualPart(cuts); each > 0) {
      return Enqueue(member, backend, "ncclReduceScatter", [&](ncclComm_t communicator) {
        return ncclReduceScatter(x.data, GetPartData(x, Of(member).rank * each),
                                 static_cast<size_t>(each), type, ncclSum, communicator, on);
      });
    }
    return Enqueue(member, backend, "ncclReduce", [&](ncclComm_t communicator) {
      return ByPart(cuts, [&](int root, int64_t count) {
        char* const part = GetPartData(x, cuts[root]);
        return ncclReduce(part, part, static_cast<size_t>(count), type, ncclSum, root, communicator,
                          on);
      });
    });
  }
  absl::Status AllGather(Member member, Backend& backend, Stream& stream, const Tensor& x,
                         const Cuts& cuts) override {
    const ncclDataType_t type = ToNcclDataType(x.dtype);
    cudaStream_t on = GetDeviceBackend(backend).RawStream(stream);
    if (const int64_t each = EqualPart(cuts); each > 0) {
      return Enqueue(member, backend, "ncclAllGather", [&](ncclComm_t communicator) {
        return ncclAllGather(GetPartData(x, Of(member).rank * each), x.data,
                             static_cast<size_t>(each), type, communicator, on);
      });
    }
    return Enqueue(member, backend, "ncclBroadcast", [&](ncclComm_t communicator) {
      return ByPart(cuts, [&](int root, int64_t count) {
        char* const part = GetPartData(x, cuts[root]);
        return ncclBroadcast(part, part, static_cast<size_t>(count), type, root, communicator, on);
      });
    });
  }
  absl::Status Send(Member member, Backend& backend, Stream& stream, const Tensor& x,
                    int to) override {
    return Enqueue(member, backend, "ncclSend", [&](ncclComm_t communicator) {
      return ncclSend(x.data, static_cast<size_t>(x.size() * GetElementSize(x.dtype)), ncclInt8, to,
                      communicator, GetDeviceBackend(backend).RawStream(stream));
    });
  }
  absl::Status Receive(Member member, Backend& backend, Stream& stream, const Tensor& x,
                       int from) override {
    return Enqueue(member, backend, "ncclRecv", [&](ncclComm_t communicator) {
      return ncclRecv(x.data, static_cast<size_t>(x.size() * GetElementSize(x.dtype)), ncclInt8,
                      from, communicator, GetDeviceBackend(backend).RawStream(stream));
    });
  }

  void Abort(Member member) override {
    const std::unique_ptr<Joined> joined(static_cast<Joined*>(member));
    ncclCommAbort(joined->communicator);
  }

 private:
  static Joined& Of(Member member) { return *static_cast<Joined*>(member); }

  static cuda::DeviceBackend& GetDeviceBackend(Backend& backend) {
    auto* device = dynamic_cast<cuda::DeviceBackend*>(&backend);
    ATOLL_CHECK(device != nullptr, "NCCL joins CUDA devices, not ", backend.Name());
    return *device;
  }
  static absl::Status Use(const Joined& joined) {
    if (cudaSetDevice(joined.device_index) == cudaSuccess) return absl::OkStatus();
    return absl::InternalError("cudaSetDevice failed");
  }

  static char* GetPartData(const Tensor& x, int64_t begin) {
    return static_cast<char*>(x.data) + begin * GetElementSize(x.dtype);
  }

  // Returns the size of all parts; 0: they differ, which ncclReduceScatter and ncclAllGather cannot
  // have.
  static int64_t EqualPart(const Cuts& cuts) {
    const int64_t each = cuts[1] - cuts[0];
    for (size_t i = 1; i < cuts.size(); ++i) {
      if (cuts[i] - cuts[i - 1] != each) return 0;
    }
    return each;
  }

  // One operation a part that is not empty, all as one.
  template <typename Call>
  static ncclResult_t ByPart(const Cuts& cuts, const Call& call) {
    ncclResult_t first = ncclGroupStart();
    for (int root = 0; root + 1 < static_cast<int>(cuts.size()); ++root) {
      const int64_t count = cuts[root + 1] - cuts[root];
      if (count == 0) continue;
      const ncclResult_t result = call(root, count);
      if (first == ncclSuccess && result != ncclInProgress) first = result;
    }
    const ncclResult_t ended = ncclGroupEnd();
    return first == ncclSuccess ? ended : first;
  }

  template <typename Call>
  static absl::Status Enqueue(Member member, Backend& backend, absl::string_view what,
                              const Call& call) {
    ATOLL_CHECK(GetDeviceBackend(backend).device_index() == Of(member).device_index,
                "a communicator works on its own device");
    ATOLL_RETURN_IF_ERROR(Use(Of(member)));
    const ncclResult_t result = call(Of(member).communicator);
    return result == ncclSuccess || result == ncclInProgress ? absl::OkStatus()
                                                             : StatusFromError(result, what);
  }
};

Nccl& TheNccl() {
  static Nccl nccl;
  return nccl;
}

}  // namespace

std::string NcclVersion() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

absl::StatusOr<std::string> NewNcclId() { return TheNccl().NewId(); }

absl::StatusOr<std::unique_ptr<Communicator>> JoinNccl(Backend& backend, const NcclGroup& group) {
  return JoinNcclBy(TheNccl(), backend, group);
}

}  // namespace atl
