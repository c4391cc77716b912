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
    const Cuts even = EvenCuts(x.size());
    const auto everywhere = [](int, int) { return true; };
    return OnReals(x, [&](auto* data) {
      return Reduce(data, even, reduction == Reduction::kSum, everywhere);
    });
  }
  absl::Status ReduceScatterOnHost(const Tensor& x, const Cuts& cuts) override {
    const auto nowhere = [](int, int) { return false; };
    return OnReals(x, [&](auto* data) { return Reduce(data, cuts, /*sum=*/true, nowhere); });
  }
  absl::Status GatherOnHost(const Tensor& x, const Cuts& cuts, const Routes& routes) override {
    return OnReals(x, [&](auto* data) { return Gather(data, cuts, routes); });
  }

  // One collective.
  template <typename Work>
  absl::Status OnReals(const Tensor& x, const Work& work) {
    ATOLL_RETURN_IF_ERROR(failure());
    if (size() == 1 || x.size() == 0) return absl::OkStatus();
    ++call_;
    absl::Status status;
    switch (x.dtype) {
      case DType::kFloat32:
        status = work(x.as<float>());
        break;
      case DType::kFloat64:
        status = work(x.as<double>());
        break;
      case DType::kBfloat16:
        status = work(x.as<Bfloat16>());
        break;
      case DType::kInt32:
        ATOLL_CHECK(false, "collectives work on reals");
    }
    return status.ok() ? status : Fail(status);
  }

  // Sums or maxima of the parts at those who have them, which send them on.
  template <typename T>
  absl::Status Reduce(T* data, const Cuts& cuts, bool sum, const Routes& routes) {
    const int64_t bytes = cuts.back() * static_cast<int64_t>(sizeof(T));
    std::byte* const own = Fresh(parts_, bytes);
    std::memcpy(own, data, static_cast<size_t>(bytes));
    for (int owner = 0; owner < size(); ++owner) {
      ATOLL_RETURN_IF_ERROR(ForPieces<T>(owner, cuts, [&](int64_t begin, int64_t count) {
        return Send<T>(owner, BlockKind::kPart, parts_, begin, count, begin);
      }));
    }
    std::byte* const results = FreshResults<T>(cuts);
    ATOLL_RETURN_IF_ERROR(ForPieces<T>(rank(), cuts, [&](int64_t begin, int64_t count) {
      ATOLL_RETURN_IF_ERROR(AddUp(data, begin, count, sum));
      return SendResult(data, results, cuts, begin, count, routes);
    }));
    return TakeResults(data, cuts, routes);
  }

  template <typename T>
  absl::Status Gather(T* data, const Cuts& cuts, const Routes& routes) {
    std::byte* const results = FreshResults<T>(cuts);
    ATOLL_RETURN_IF_ERROR(ForPieces<T>(rank(), cuts, [&](int64_t begin, int64_t count) {
      return SendResult(data, results, cuts, begin, count, routes);
    }));
    return TakeResults(data, cuts, routes);
  }

  template <typename T>
  std::byte* FreshResults(const Cuts& cuts) {
    return Fresh(results_, (cuts[rank() + 1] - cuts[rank()]) * static_cast<int64_t>(sizeof(T)));
  }

  // Elements [begin, begin + count), of our own part.
  template <typename T>
  absl::Status SendResult(const T* data, std::byte* results, const Cuts& cuts, int64_t begin,
                          int64_t count, const Routes& routes) {
    const int64_t at = begin - cuts[rank()];
    std::memcpy(results + at * sizeof(T), data + begin, count * sizeof(T));
    for (int other = 0; other < size(); ++other) {
      if (other == rank() || !routes(rank(), other)) continue;
      ATOLL_RETURN_IF_ERROR(Send<T>(other, BlockKind::kResult, results_, at, count, begin));
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status TakeResults(T* data, const Cuts& cuts, const Routes& routes) {
    for (int owner = 0; owner < size(); ++owner) {
      if (owner == rank() || !routes(owner, rank())) continue;
      ATOLL_RETURN_IF_ERROR(
          ForPieces<T>(owner, cuts, [&](int64_t begin, int64_t count) -> absl::Status {
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

  Cuts EvenCuts(int64_t n) const {
    Cuts cuts;
    for (int owner = 0; owner <= size(); ++owner) {
      cuts.push_back(n / size() * owner + n % size() * owner / size());
    }
    return cuts;
  }

  template <typename T, typename Body>
  absl::Status ForPieces(int owner, const Cuts& cuts, const Body& body) {
    constexpr int64_t kPiece = kPieceBytes / static_cast<int64_t>(sizeof(T));
    const int64_t end = cuts[owner + 1];
    for (int64_t begin = cuts[owner]; begin < end; begin += kPiece) {
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
