#include "worker/collectives/peer.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/event_loop.h"
#include "common/net/codec.h"
#include "kernels/combine.h"
#include "kernels/host_communicator.h"
#include "worker/collectives/block_exchange.h"
#include "worker/collectives/group_sites.h"

namespace atl::worker {
namespace {

// Chunks of a part: several, so that the work on one overlaps the transfer of others, but as
// large as may be, since each costs two threads' attention at both ends. Between sites it passes
// three links, one after the other, and each takes longer.
struct ChunkSizes {
  int64_t wanted;  // chunks of a part
  int64_t bytes_min, bytes_max;
};
constexpr ChunkSizes kWithinSite = {2, 256 << 10, kBlockBytesMax};
// A sum of a site has at most eight bytes an element, whatever the numbers have: a chunk has as
// many elements all the way.
constexpr ChunkSizes SizesBetweenSites(int64_t width) {
  return {8, 128 << 10, kBlockBytesMax * width / 8};
}

// All-reduces of more than two members send all numbers to all where that sends at most so many
// bytes more: they wait once instead of twice.
constexpr int64_t kExtraBytesMax = 32 << 10;

class Member final : public HostCommunicator {
 public:
  Member(PeerBlocks* blocks, PeerGroup group)
      : sites_(group.sites, static_cast<int>(group.workers.size()), group.rank),
        exchange_(blocks, std::move(group)) {
    for (int other = 0; other < size(); ++other) unsent_.push_back(NewUnsent(blocks));
  }

  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }

  void Abort(const std::string& reason) override {
    (void)exchange_.Fail(absl::AbortedError(reason));
  }

 private:
  using Memory = BlockExchange::Memory;

  absl::Status ReduceOnHost(const Tensor& x, Reduction reduction) override {
    const Cuts even = EvenCuts(x.size());
    const bool sum = reduction == Reduction::kSum;
    const auto everywhere = [](int, int) { return true; };
    return OnReals(x, [&](auto* data) {
      if (sites_.count() > 1) return Reduce(data, even, sum, everywhere);
      const int64_t extra =
          x.size() * GetElementSize(x.dtype) * (size() - 1) * (size() - 2) / size();
      return ReduceWithinSite(data, even, /*whole=*/extra <= kExtraBytesMax, sum, everywhere);
    });
  }
  absl::Status ReduceScatterOnHost(const Tensor& x, const Cuts& cuts) override {
    const auto nowhere = [](int, int) { return false; };
    return OnReals(x, [&](auto* data) {
      if (sites_.count() > 1) return Reduce(data, cuts, /*sum=*/true, nowhere);
      return ReduceWithinSite(data, cuts, /*whole=*/false, /*sum=*/true, nowhere);
    });
  }
  absl::Status AllGatherOnHost(const Tensor& x, const Cuts& cuts, const Routes& routes) override {
    return OnReals(x, [&](auto* data) { return AllGatherParts(data, cuts, routes); });
  }

  // One collective.
  template <typename Work>
  absl::Status OnReals(const Tensor& x, const Work& work) {
    ATOLL_RETURN_IF_ERROR(exchange_.failure());
    if (size() == 1 || x.size() == 0) return absl::OkStatus();
    exchange_.BeginCall();
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
    return status.ok() ? status : exchange_.Fail(status);
  }

  // Elements [next, end) that are still to be sent to a member, or to come from one.
  struct Remaining {
    int member = 0;
    int64_t next = 0, end = 0, chunk = 0;
    bool done() const { return next >= end; }
    int64_t count() const { return std::min(chunk, end - next); }
  };
  template <typename T>
  Remaining All(int member, int64_t begin, int64_t end) const {
    return {member, begin, end, ChunkElements<T>(end - begin)};
  }

  // Among members of one site: sums or maxima of the parts at those who own them, which send them
  // on; or, with `whole`, everywhere of all. Whatever comes is added up while more is copied and
  // sent, so the copies are few and stay in the cache.
  template <typename T>
  absl::Status ReduceWithinSite(T* data, const Cuts& cuts, bool whole, bool sum,
                                const Routes& routes) {
    const auto part = [&](int of) {
      return whole ? std::pair(int64_t{0}, cuts.back()) : std::pair(cuts[of], cuts[of + 1]);
    };
    std::vector<Remaining> parts, results;
    for (int i = 1; i < size(); ++i) {
      const int other = (rank() + i) % size();  // not all to the same first
      parts.push_back(All<T>(other, part(other).first, part(other).second));
      if (whole || !routes(other, rank())) continue;
      results.push_back(All<T>(other, cuts[other], cuts[other + 1]));
    }
    for (Remaining own = All<T>(rank(), part(rank()).first, part(rank()).second); !own.done();
         own.next += own.count()) {
      if (whole) ATOLL_RETURN_IF_ERROR(SendParts(data, parts, own.next + 1));
      ATOLL_RETURN_IF_ERROR(ReduceChunk(data, own, parts, sum, /*sends=*/!whole, routes));
      for (Remaining& result : results) {
        ATOLL_RETURN_IF_ERROR(TakeResults(data, result, [] { return true; }));
      }
    }
    ATOLL_RETURN_IF_ERROR(SendParts(data, parts, cuts.back()));
    for (Remaining& result : results) {
      ATOLL_RETURN_IF_ERROR(TakeResults(data, result, [] { return false; }));
    }
    return absl::OkStatus();
  }

  template <typename T>
  bool MaySend(const Remaining& part) {
    return unsent_[part.member]->Admits(part.count() * static_cast<int64_t>(sizeof(T)));
  }

  // Sends parts up to element `until`, and beyond where there is room.
  template <typename T>
  absl::Status SendParts(const T* data, std::vector<Remaining>& parts, int64_t until = 0) {
    for (bool more = true; std::exchange(more, false);) {
      for (Remaining& part : parts) {
        if (part.done() || (part.next >= until && !MaySend<T>(part))) continue;
        more = true;
        const int64_t begin = part.next, count = part.count();
        const auto copy = std::make_shared<PartCopy>(
            exchange_.blocks().buffers().Take(count * static_cast<int64_t>(sizeof(T))),
            unsent_[part.member]);
        const std::optional<uint64_t> checksum = exchange_.Copy(data + begin, copy->payload);
        part.next += count;
        ATOLL_RETURN_IF_ERROR(exchange_.SendCopy(part.member, BlockKind::kPart, begin,
                                                 copy->payload.bytes(), copy, checksum));
      }
    }
    return absl::OkStatus();
  }

  // The next chunk of the own part, which goes to others if `sends`. Meanwhile sends parts.
  template <typename T>
  absl::Status ReduceChunk(T* data, const Remaining& own, std::vector<Remaining>& parts, bool sum,
                           bool sends, const Routes& routes) {
    const int64_t begin = own.next, count = own.count();
    std::vector<PeerBlocks::Block> blocks;  // keeps what the addends point to
    std::vector<const T*> addends;
    for (int member = 0; member < size(); ++member) {
      if (member == rank()) {
        addends.push_back(data + begin);
        continue;
      }
      ATOLL_ASSIGN_OR_RETURN(PeerBlocks::Block block, TakePart(member, begin, count, data, parts));
      // Blocks of one of two members are checked while they are added up.
      if (size() > 2) ATOLL_RETURN_IF_ERROR(exchange_.Check(member, block));
      addends.push_back(reinterpret_cast<const T*>(block.payload.data()));
      blocks.push_back(std::move(block));
    }
    if (size() == 2) {
      ATOLL_RETURN_IF_ERROR(
          CombinePair(blocks[0], addends[0], addends[1], count, sum, data + begin));
    } else {
      CombineRuns(addends, count, sum, [&](int64_t i, int64_t n, const auto* total) {
        for (int64_t k = 0; k < n; ++k) data[begin + i + k] = Arithmetic<T>::Narrow(total[k]);
      });
    }
    blocks.clear();
    if (!sends) return absl::OkStatus();
    const auto result = std::make_shared<Payload>(
        exchange_.blocks().buffers().Take(count * static_cast<int64_t>(sizeof(T))));
    const std::optional<uint64_t> checksum = exchange_.Copy(data + begin, *result);
    for (int i = 1; i < size(); ++i) {
      const int other = (rank() + i) % size();
      if (!routes(rank(), other)) continue;
      ATOLL_RETURN_IF_ERROR(
          exchange_.SendCopy(other, BlockKind::kResult, begin, result->bytes(), result, checksum));
    }
    return absl::OkStatus();
  }

  // Waits for a part. Meanwhile sends others.
  template <typename T>
  absl::StatusOr<PeerBlocks::Block> TakePart(int from, int64_t begin, int64_t count, const T* data,
                                             std::vector<Remaining>& parts) {
    const Instant deadline = SteadyNow() + exchange_.timeout();
    const auto has_room = [&] {
      return std::any_of(parts.begin(), parts.end(),
                         [&](const Remaining& part) { return !part.done() && MaySend<T>(part); });
    };
    for (;;) {
      ATOLL_RETURN_IF_ERROR(SendParts(data, parts));
      ATOLL_ASSIGN_OR_RETURN(
          std::optional<PeerBlocks::Block> block,
          exchange_.TakeUnless<T>(from, BlockKind::kPart, begin, count, deadline, has_room));
      if (block) return *std::move(block);
    }
  }

  // Results of another member: those that have come, if `ends` says not to wait.
  template <typename T>
  absl::Status TakeResults(T* data, Remaining& result, const std::function<bool()>& ends) {
    while (!result.done()) {
      ATOLL_ASSIGN_OR_RETURN(
          const std::optional<PeerBlocks::Block> block,
          exchange_.TakeUnless<T>(result.member, BlockKind::kResult, result.next, result.count(),
                                  SteadyNow() + exchange_.timeout(), ends));
      if (!block) return absl::OkStatus();
      ATOLL_RETURN_IF_ERROR(exchange_.CopyBlock(result.member, *block, data + result.next));
      result.next += result.count();
    }
    return absl::OkStatus();
  }

  // Where members are at several sites: sums or maxima of the parts at those who own them, which
  // send them on. Between two members blocks of a kind are taken in the order in which they are
  // sent: of parts that the receiver adds up for owners at other sites, of its own; then results,
  // first the sender's own.
  template <typename T>
  absl::Status Reduce(T* data, const Cuts& cuts, bool sum, const Routes& routes) {
    std::byte* const parts = exchange_.Fresh(parts_, cuts.back() * static_cast<int64_t>(sizeof(T)));
    for (const bool at_own_site : {false, true}) {
      for (int owner = 0; owner < size(); ++owner) {
        const int to = sites_.Agent(owner);
        if (sites_.IsOwn(owner) != at_own_site || to == rank()) continue;
        ATOLL_RETURN_IF_ERROR(ForChunks<T>(owner, cuts, [&](int64_t begin, int64_t count) {
          std::memcpy(parts + begin * sizeof(T), data + begin, count * sizeof(T));
          return exchange_.Send<T>(to, BlockKind::kPart, parts_, begin, count, begin);
        }));
      }
    }
    ATOLL_RETURN_IF_ERROR(ReduceForOthers(data, cuts, sum));
    std::byte* const results = FreshResults<T>(cuts);
    ATOLL_RETURN_IF_ERROR(ForChunks<T>(rank(), cuts, [&](int64_t begin, int64_t count) {
      T* const result = reinterpret_cast<T*>(results) + (begin - cuts[rank()]);
      ATOLL_RETURN_IF_ERROR(AddUpSites(data, begin, count, sum, result));
      return SendResult<T>(cuts, begin, count, routes);
    }));
    return TakeResults(data, cuts, routes);
  }

  template <typename T>
  absl::Status AllGatherParts(T* data, const Cuts& cuts, const Routes& routes) {
    std::byte* const results = FreshResults<T>(cuts);
    ATOLL_RETURN_IF_ERROR(ForChunks<T>(rank(), cuts, [&](int64_t begin, int64_t count) {
      const int64_t at = begin - cuts[rank()];
      std::memcpy(results + at * sizeof(T), data + begin, count * sizeof(T));
      return SendResult<T>(cuts, begin, count, routes);
    }));
    return TakeResults(data, cuts, routes);
  }

  // This site's sums of parts that others own and for which this member is the agent.
  template <typename T>
  absl::Status ReduceForOthers(const T* data, const Cuts& cuts, bool sum) {
    using Wide = typename Arithmetic<T>::Sum;
    int64_t elements = 0;
    for (const int owner : sites_.served()) elements += cuts[owner + 1] - cuts[owner];
    std::byte* const sums =
        exchange_.Fresh(site_sums_, elements * static_cast<int64_t>(sizeof(Wide)));
    int64_t at = 0;
    for (const int owner : sites_.served()) {
      ATOLL_RETURN_IF_ERROR(ForChunks<T>(owner, cuts, [&](int64_t begin, int64_t count) {
        const int64_t from = std::exchange(at, at + count);
        Wide* const to = reinterpret_cast<Wide*>(sums) + from;
        ATOLL_RETURN_IF_ERROR(
            AddUp(data, begin, count, sum, [&](int64_t i, int64_t n, Wide* total) {
              std::memcpy(to + i, total, n * sizeof(Wide));
            }));
        return exchange_.Send<Wide>(owner, BlockKind::kPart, site_sums_, from, count, begin);
      }));
    }
    return absl::OkStatus();
  }

  template <typename T>
  std::byte* FreshResults(const Cuts& cuts) {
    return exchange_.Fresh(results_,
                           (cuts[rank() + 1] - cuts[rank()]) * static_cast<int64_t>(sizeof(T)));
  }

  // Elements [begin, begin + count) of our own part, which are in results_: to members of this
  // site, and once to each other site.
  template <typename T>
  absl::Status SendResult(const Cuts& cuts, int64_t begin, int64_t count, const Routes& routes) {
    const int64_t at = begin - cuts[rank()];
    for (const int other : sites_.own()) {
      if (other == rank() || !routes(rank(), other)) continue;
      ATOLL_RETURN_IF_ERROR(
          exchange_.Send<T>(other, BlockKind::kResult, results_, at, count, begin));
    }
    for (int site = 0; site < sites_.count(); ++site) {
      if (site == sites_.own_number() || !IsWanted(rank(), site, routes)) continue;
      const int agent = sites_.Agent(rank(), site);
      ATOLL_RETURN_IF_ERROR(
          exchange_.Send<T>(agent, BlockKind::kResult, results_, at, count, begin));
    }
    return absl::OkStatus();
  }

  bool IsWanted(int owner, int site, const Routes& routes) const {
    const std::vector<int>& members = sites_.members(site);
    return std::any_of(members.begin(), members.end(),
                       [&](int member) { return routes(owner, member); });
  }

  template <typename T>
  absl::Status TakeResults(T* data, const Cuts& cuts, const Routes& routes) {
    ATOLL_RETURN_IF_ERROR(PassOn(data, cuts, routes));
    for (const bool at_own_site : {true, false}) {
      for (int owner = 0; owner < size(); ++owner) {
        const int from = sites_.Agent(owner);  // the owner itself, at this site
        if (sites_.IsOwn(owner) != at_own_site || from == rank() || !routes(owner, rank())) {
          continue;
        }
        ATOLL_RETURN_IF_ERROR(ForChunks<T>(owner, cuts, [&](int64_t begin, int64_t count) {
          return TakeResult(data, from, begin, count);
        }));
      }
    }
    return absl::OkStatus();
  }

  // Results from other sites for which this member is the agent, to all here that need them.
  template <typename T>
  absl::Status PassOn(T* data, const Cuts& cuts, const Routes& routes) {
    int64_t elements = 0;
    for (const int owner : sites_.served()) elements += cuts[owner + 1] - cuts[owner];
    std::byte* const passed = exchange_.Fresh(passed_, elements * static_cast<int64_t>(sizeof(T)));
    int64_t at = 0;
    for (const int owner : sites_.served()) {
      if (!IsWanted(owner, sites_.own_number(), routes)) continue;
      ATOLL_RETURN_IF_ERROR(
          ForChunks<T>(owner, cuts, [&](int64_t begin, int64_t count) -> absl::Status {
            ATOLL_RETURN_IF_ERROR(TakeResult(data, owner, begin, count));
            const int64_t from = std::exchange(at, at + count);
            std::memcpy(passed + from * sizeof(T), data + begin, count * sizeof(T));
            for (const int other : sites_.own()) {
              if (other == rank() || !routes(owner, other)) continue;
              ATOLL_RETURN_IF_ERROR(
                  exchange_.Send<T>(other, BlockKind::kResult, passed_, from, count, begin));
            }
            return absl::OkStatus();
          }));
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status TakeResult(T* data, int from, int64_t begin, int64_t count) {
    ATOLL_ASSIGN_OR_RETURN(const PeerBlocks::Block block,
                           exchange_.TakeUnchecked<T>(from, BlockKind::kResult, begin, count));
    return exchange_.CopyBlock(from, block, data + begin);
  }

  // Sums or maxima over the members of this site, in the order of ranks; this member's numbers are
  // in data. Calls use(i, n, total) for runs of elements [begin + i, begin + i + n); the memory of
  // `total` is the next run's, too.
  template <typename T, typename Use>
  absl::Status AddUp(const T* data, int64_t begin, int64_t count, bool sum, const Use& use) {
    std::vector<PeerBlocks::Block> blocks;  // keeps what the addends point to
    std::vector<const T*> addends;
    for (const int member : sites_.own()) {
      if (member == rank()) {
        addends.push_back(data + begin);
        continue;
      }
      ATOLL_ASSIGN_OR_RETURN(PeerBlocks::Block block,
                             exchange_.Take<T>(member, BlockKind::kPart, begin, count));
      addends.push_back(reinterpret_cast<const T*>(block.payload.data()));
      blocks.push_back(std::move(block));
    }
    CombineRuns(addends, count, sum, use);
    return absl::OkStatus();
  }

  // Combines the numbers a and b of two members; the other's are in `block`. Elements of `result`
  // may be those of a or b.
  template <typename T>
  absl::Status CombinePair(const PeerBlocks::Block& block, const T* a, const T* b, int64_t count,
                           bool sum, T* result) {
    if (!block.checksum) {
      CombineRange(a, b, count, sum, result);
      return absl::OkStatus();
    }
    const uint64_t hash = HashWhile(block.payload.bytes(), [&](size_t begin, size_t end) {
      const size_t at = begin / sizeof(T);
      CombineRange(a + at, b + at, static_cast<int64_t>(end / sizeof(T) - at), sum, result + at);
    });
    return exchange_.CheckHash(1 - rank(), block, hash);
  }

  // data[begin ...] and result[0 ...] <- sums or maxima over all members: over each site's, then
  // over the sites in the order of their first ranks; rounded once.
  template <typename T>
  absl::Status AddUpSites(T* data, int64_t begin, int64_t count, bool sum, T* result) {
    using Wide = typename Arithmetic<T>::Sum;
    const auto keep = [&](int64_t i, int64_t n, const Wide* total) {
      for (int64_t k = 0; k < n; ++k) result[i + k] = Arithmetic<T>::Narrow(total[k]);
      std::memcpy(data + begin + i, result + i, n * sizeof(T));
    };
    Wide* const own = Reserve<Wide>(sums_, count);
    ATOLL_RETURN_IF_ERROR(AddUp(data, begin, count, sum, [&](int64_t i, int64_t n, Wide* total) {
      std::memcpy(own + i, total, n * sizeof(Wide));
    }));
    std::vector<PeerBlocks::Block> blocks;
    std::vector<const Wide*> addends;
    for (int site = 0; site < sites_.count(); ++site) {
      if (site == sites_.own_number()) {
        addends.push_back(own);
        continue;
      }
      ATOLL_ASSIGN_OR_RETURN(
          PeerBlocks::Block block,
          exchange_.Take<Wide>(sites_.Agent(rank(), site), BlockKind::kPart, begin, count));
      addends.push_back(reinterpret_cast<const Wide*>(block.payload.data()));
      blocks.push_back(std::move(block));
    }
    CombineRuns(addends, count, sum, keep);
    return absl::OkStatus();
  }

  template <typename Wide>
  static Wide* Reserve(std::vector<std::byte>& memory, int64_t count) {
    memory.resize(std::max<size_t>(memory.size(), count * sizeof(Wide)));
    return reinterpret_cast<Wide*>(memory.data());
  }

  Cuts EvenCuts(int64_t n) const {
    Cuts cuts;
    for (int owner = 0; owner <= size(); ++owner) {
      cuts.push_back(n / size() * owner + n % size() * owner / size());
    }
    return cuts;
  }

  // Returns the elements of a chunk of a part of so many.
  template <typename T>
  int64_t ChunkElements(int64_t elements) const {
    constexpr auto kWidth = static_cast<int64_t>(sizeof(T));
    const ChunkSizes sizes = sites_.count() == 1 ? kWithinSite : SizesBetweenSites(kWidth);
    return std::clamp(elements * kWidth / sizes.wanted, sizes.bytes_min, sizes.bytes_max) / kWidth /
           kRun * kRun;
  }

  template <typename T, typename Body>
  absl::Status ForChunks(int owner, const Cuts& cuts, const Body& body) {
    const int64_t end = cuts[owner + 1];
    const int64_t chunk = ChunkElements<T>(end - cuts[owner]);
    for (int64_t begin = cuts[owner]; begin < end; begin += chunk) {
      ATOLL_RETURN_IF_ERROR(body(begin, std::min(chunk, end - begin)));
    }
    return absl::OkStatus();
  }

  const GroupSites sites_;
  BlockExchange exchange_;
  std::vector<std::shared_ptr<SendAccount>> unsent_;  // by rank
  Memory parts_, site_sums_, results_, passed_;
  std::vector<std::byte> sums_;
};

}  // namespace

std::unique_ptr<Communicator> NewPeerCommunicator(PeerBlocks* blocks, PeerGroup group) {
  ATOLL_CHECK(blocks != nullptr && group.rank >= 0 &&
              group.rank < static_cast<int>(group.workers.size()) &&
              (group.sites.empty() || group.sites.size() == group.workers.size()));
  return std::make_unique<Member>(blocks, std::move(group));
}

}  // namespace atl::worker
