#include "worker/collectives/peer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/event_loop.h"
#include "kernels/bfloat16.h"
#include "kernels/host_communicator.h"

namespace atl::worker {
namespace {

constexpr int64_t kPieceBytes = 256 << 10;
static_assert(kPieceBytes <= kBlockBytesMax);

// How numbers of a type are added up: in what type, and back.
template <typename T>
struct Arithmetic {
  using Sum = T;
  static T Wide(T x) { return x; }
  static T Narrow(T x) { return x; }
};
template <>
struct Arithmetic<Bfloat16> {
  using Sum = float;
  static float Wide(Bfloat16 x) { return WidenBfloat16(x); }
  static Bfloat16 Narrow(float x) { return RoundToBfloat16(x); }
};

class Member final : public HostCommunicator {
 public:
  Member(PeerBlocks* blocks, PeerGroup group) : blocks_(*blocks), group_(std::move(group)) {
    blocks_.Open(group_.name, group_.rank);
  }

  ~Member() override {
    if (failure().ok()) Tell(BlockKind::kLeft, "");
    blocks_.Close(group_.name, group_.rank);
  }

  int rank() const override { return group_.rank; }
  int size() const override { return static_cast<int>(group_.workers.size()); }

  void Abort(const std::string& reason) override { (void)Fail(absl::AbortedError(reason)); }

 private:
  // Bytes that the link may still be reading: each is written anew only when nobody does.
  using Bytes = std::shared_ptr<std::vector<std::byte>>;

  absl::Status ReduceOnHost(const Tensor& x, Reduction reduction) override {
    const bool sum = reduction == Reduction::kSum;
    ATOLL_RETURN_IF_ERROR(failure());
    if (size() == 1 || x.size() == 0) return absl::OkStatus();
    ++call_;
    absl::Status status;
    switch (x.dtype) {
      case DType::kFloat32:
        status = Reduce(x.as<float>(), x.size(), sum);
        break;
      case DType::kFloat64:
        status = Reduce(x.as<double>(), x.size(), sum);
        break;
      case DType::kBfloat16:
        status = Reduce(x.as<Bfloat16>(), x.size(), sum);
        break;
      case DType::kInt32:
        ATOLL_CHECK(false, "collectives reduce reals");
    }
    return status.ok() ? status : Fail(status);
  }

  template <typename T>
  absl::Status Reduce(T* data, int64_t n, bool sum) {
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    std::byte* const own = Fresh(parts_, bytes);
    std::memcpy(own, data, static_cast<size_t>(bytes));
    for (int owner = 0; owner < size(); ++owner) {
      ATOLL_RETURN_IF_ERROR(ForPieces<T>(owner, n, [&](int64_t begin, int64_t count) {
        return Send<T>(owner, BlockKind::kPart, parts_, begin, count, begin);
      }));
    }
    const int64_t first = Begin(rank(), n);
    std::byte* const results =
        Fresh(results_, (Begin(rank() + 1, n) - first) * static_cast<int64_t>(sizeof(T)));
    ATOLL_RETURN_IF_ERROR(ForPieces<T>(rank(), n, [&](int64_t begin, int64_t count) {
      ATOLL_RETURN_IF_ERROR(AddUp(data, begin, count, sum));
      std::memcpy(results + (begin - first) * sizeof(T), data + begin, count * sizeof(T));
      for (int other = 0; other < size(); ++other) {
        ATOLL_RETURN_IF_ERROR(
            Send<T>(other, BlockKind::kResult, results_, begin - first, count, begin));
      }
      return absl::OkStatus();
    }));
    for (int owner = 0; owner < size(); ++owner) {
      if (owner == rank()) continue;
      ATOLL_RETURN_IF_ERROR(
          ForPieces<T>(owner, n, [&](int64_t begin, int64_t count) -> absl::Status {
            ATOLL_ASSIGN_OR_RETURN(const PeerBlocks::Block block,
                                   Take<T>(owner, BlockKind::kResult, begin, count));
            std::memcpy(data + begin, block.payload.data(), count * sizeof(T));
            return absl::OkStatus();
          }));
    }
    return absl::OkStatus();
  }

  // data[begin ...] <- sum or maximum over all members in the order of ranks; this member's numbers
  // are in data.
  template <typename T>
  absl::Status AddUp(T* data, int64_t begin, int64_t count, bool sum) {
    using Wide = typename Arithmetic<T>::Sum;
    std::vector<std::byte>& memory = sums_;
    memory.resize(std::max<size_t>(memory.size(), count * sizeof(Wide)));
    Wide* const total = reinterpret_cast<Wide*>(memory.data());
    for (int member = 0; member < size(); ++member) {
      PeerBlocks::Block block;
      const T* from = data + begin;
      if (member != rank()) {
        ATOLL_ASSIGN_OR_RETURN(block, Take<T>(member, BlockKind::kPart, begin, count));
        from = reinterpret_cast<const T*>(block.payload.data());
      }
      if (member == 0) {
        for (int64_t i = 0; i < count; ++i) total[i] = Arithmetic<T>::Wide(from[i]);
      } else if (sum) {
        for (int64_t i = 0; i < count; ++i) total[i] += Arithmetic<T>::Wide(from[i]);
      } else {
        for (int64_t i = 0; i < count; ++i) {
          const Wide x = Arithmetic<T>::Wide(from[i]), y = total[i];
          total[i] = x > y || x != x ? x : y;  // a NaN of either stays
        }
      }
    }
    for (int64_t i = 0; i < count; ++i) data[begin + i] = Arithmetic<T>::Narrow(total[i]);
    return absl::OkStatus();
  }

  // First element of the part that a rank owns.
  int64_t Begin(int owner, int64_t n) const {
    return n / size() * owner + n % size() * owner / size();
  }

  template <typename T, typename Body>
  absl::Status ForPieces(int owner, int64_t n, const Body& body) {
    constexpr int64_t kPiece = kPieceBytes / static_cast<int64_t>(sizeof(T));
    const int64_t end = Begin(owner + 1, n);
    for (int64_t begin = Begin(owner, n); begin < end; begin += kPiece) {
      ATOLL_RETURN_IF_ERROR(body(begin, std::min(kPiece, end - begin)));
    }
    return absl::OkStatus();
  }

  // Elements [at, at + count) of `bytes`; to ourselves nothing is sent.
  template <typename T>
  absl::Status Send(int to, BlockKind kind, const Bytes& bytes, int64_t at, int64_t count,
                    int64_t offset) {
    if (to == rank()) return absl::OkStatus();
    const std::span<const std::byte> all = *bytes;
    return blocks_.Send(group_.workers[to], {group_.name, rank(), to, call_, kind, offset},
                        all.subspan(at * sizeof(T), count * sizeof(T)), bytes);
  }

  template <typename T>
  absl::StatusOr<PeerBlocks::Block> Take(int from, BlockKind kind, int64_t offset, int64_t count) {
    return blocks_.Take(group_.workers[from], {group_.name, from, rank(), call_, kind, offset},
                        count * static_cast<int64_t>(sizeof(T)), SteadyNow() + group_.timeout);
  }

  static std::byte* Fresh(Bytes& bytes, int64_t size) {
    if (bytes == nullptr || bytes.use_count() > 1)
      bytes = std::make_shared<std::vector<std::byte>>();
    bytes->resize(static_cast<size_t>(size));
    return bytes->data();
  }

  absl::Status failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  // The first failure stays, and nobody waits for us any more.
  absl::Status Fail(const absl::Status& status) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return failure_;
      failure_ = Annotate(status,
                          absl::StrCat("rank ", rank(), " of ", size(), " in group ", group_.name));
    }
    blocks_.End(group_.name, group_.rank, status);
    Tell(BlockKind::kFailed, std::string(status.message()));
    return failure();
  }

  // Whoever cannot be told sees it otherwise.
  void Tell(BlockKind kind, const std::string& why) {
    const auto text = std::make_shared<const std::string>(why.substr(0, 400));
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      (void)blocks_.Send(group_.workers[other], {group_.name, rank(), other, 0, kind, 0},
                         std::as_bytes(std::span(*text)), text);
    }
  }

  PeerBlocks& blocks_;
  const PeerGroup group_;
  int64_t call_ = 0;
  Bytes parts_, results_;
  std::vector<std::byte> sums_;

  mutable std::mutex mutex_;
  absl::Status failure_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<Communicator> NewPeerCommunicator(PeerBlocks* blocks, PeerGroup group) {
  ATOLL_CHECK(blocks != nullptr && group.rank >= 0 &&
              group.rank < static_cast<int>(group.workers.size()));
  return std::make_unique<Member>(blocks, std::move(group));
}

}  // namespace atl::worker
