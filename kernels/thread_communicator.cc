#include "kernels/thread_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "kernels/combine.h"
#include "kernels/host_communicator.h"

namespace atl {
namespace {

// Elements [begin, end) of every tensor become their reduction in the order of the tensors.
template <typename T>
void ReduceSlice(const std::vector<Tensor>& tensors, bool sum, int64_t begin, int64_t end) {
  std::vector<const T*> addends;
  for (const Tensor& tensor : tensors) addends.push_back(tensor.as<T>() + begin);
  CombineRuns(addends, end - begin, sum, [&](int64_t first, int64_t n, const auto* total) {
    for (const Tensor& tensor : tensors) {
      T* x = tensor.as<T>() + begin + first;
      for (int64_t i = 0; i < n; ++i) x[i] = Arithmetic<T>::Narrow(total[i]);
    }
  });
}

void ReduceSlice(const std::vector<Tensor>& tensors, bool sum, int64_t begin, int64_t end) {
  switch (tensors[0].dtype) {
    case DType::kFloat32:
      return ReduceSlice<float>(tensors, sum, begin, end);
    case DType::kFloat64:
      return ReduceSlice<double>(tensors, sum, begin, end);
    case DType::kBfloat16:
      return ReduceSlice<Bfloat16>(tensors, sum, begin, end);
    case DType::kInt32:
      break;
  }
  ATOLL_CHECK(false, "collectives reduce reals");
}

// The state that the members share. A round is one collective: members arrive; when the last one
// has, all work on their slices; when the last one is done, all leave. Failure and timeouts count
// only until the last one has arrived: from then on all tensors are being written to, so no member
// may leave, and none has anything left to wait for but running threads.
class Group {
 public:
  Group(int size, Duration timeout)
      : size_(size), timeout_(timeout), tensors_(size), kinds_(size), present_(size) {}

  int size() const { return size_; }

  enum class Kind : char { kSum, kMax, kAllGather };

  absl::Status AllReduce(int rank, const Tensor& x, bool sum) {
    ATOLL_RETURN_IF_ERROR(Arrive(rank, x, sum ? Kind::kSum : Kind::kMax));
    // Slices begin at multiples of 64 elements: no two threads write to one cache line.
    const auto boundary = [&](int slice) {
      return slice == size_ ? x.size() : x.size() * slice / size_ / 64 * 64;
    };
    ReduceSlice(tensors_, sum, boundary(rank), boundary(rank + 1));
    Leave();
    return absl::OkStatus();
  }

  absl::Status AllGatherParts(int rank, const Tensor& x, const Cuts& cuts, const Routes& routes) {
    ATOLL_RETURN_IF_ERROR(Arrive(rank, x, Kind::kAllGather));
    // The own parts of all members stay as they are while the others read them.
    for (int from = 0; from < size_; ++from) {
      if (from == rank || !routes(from, rank)) continue;
      const Tensor to = x.Columns(cuts[from], cuts[from + 1] - cuts[from]);
      const Tensor part = tensors_[from].Columns(cuts[from], to.size());
      std::memcpy(to.data, part.data, static_cast<size_t>(to.size() * GetElementSize(to.dtype)));
    }
    Leave();
    return absl::OkStatus();
  }

  // The first failure stays.
  void Fail(absl::Status failure) {
    std::lock_guard lock(mutex_);
    FailLocked(std::move(failure));
  }

 private:
  absl::Status Arrive(int rank, const Tensor& x, Kind kind) {
    std::unique_lock lock(mutex_);
    if (!failure_.ok()) return failure_;
    ATOLL_CHECK(!present_[rank], "two threads use the communicator of rank ", rank);
    tensors_[rank] = x;
    kinds_[rank] = kind;
    present_[rank] = true;
    const int64_t round = round_;
    if (++arrived_ == size_) {
      BeginLocked();
      return absl::OkStatus();
    }
    changed_.wait_for(lock, timeout_, [&] { return round_ != round || !failure_.ok(); });
    if (round_ != round) return absl::OkStatus();
    if (failure_.ok()) FailLocked(absl::DeadlineExceededError(Late(rank)));
    return failure_;
  }

  void BeginLocked() {
    for (int rank = 1; rank < size_; ++rank) {
      ATOLL_CHECK(tensors_[rank].dtype == tensors_[0].dtype &&
                      tensors_[rank].size() == tensors_[0].size() && kinds_[rank] == kinds_[0],
                  "rank ", rank, " came to another collective than rank 0: ", tensors_[rank].size(),
                  " elements, not ", tensors_[0].size(), ", or of another kind");
    }
    std::fill(present_.begin(), present_.end(), false);
    arrived_ = 0;
    working_ = size_;
    ++round_;
    changed_.notify_all();
  }

  // The next round cannot begin before all have left: it needs them all.
  void Leave() {
    std::unique_lock lock(mutex_);
    if (--working_ == 0) {
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return working_ == 0; });
    }
  }

  void FailLocked(absl::Status failure) {
    if (!failure_.ok()) return;
    failure_ = std::move(failure);
    changed_.notify_all();
  }

  std::string Late(int rank) const {
    std::string missing;
    for (int other = 0; other < size_; ++other) {
      if (!present_[other]) absl::StrAppend(&missing, missing.empty() ? "" : ", ", other);
    }
    return absl::StrCat("rank ", rank, " of ", size_, " waited ", Seconds(timeout_),
                        " s in a collective; not there: rank ", missing);
  }

  const int size_;
  const Duration timeout_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_, but for tensors_ while a round is worked on: it is constant then.
  std::vector<Tensor> tensors_;
  std::vector<Kind> kinds_;
  std::vector<char> present_;
  int arrived_ = 0;
  int working_ = 0;    // members that have not finished the round
  int64_t round_ = 0;  // rounds begun
  absl::Status failure_;
};

class ThreadCommunicator final : public HostCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~ThreadCommunicator() override {
    group_->Fail(absl::UnavailableError(absl::StrCat("rank ", rank_, " left the group")));
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void Abort(const std::string& reason) override { group_->Fail(absl::AbortedError(reason)); }

 private:
  absl::Status ReduceOnHost(const Tensor& x, Reduction reduction) override {
    return group_->AllReduce(rank_, x, reduction == Reduction::kSum);
  }
  absl::Status AllGatherOnHost(const Tensor& x, const Cuts& cuts, const Routes& routes) override {
    return group_->AllGatherParts(rank_, x, cuts, routes);
  }

  const std::shared_ptr<Group> group_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> NewThreadCommunicators(int size, Duration timeout) {
  ATOLL_CHECK(size >= 1, "a group of ", size);
  const auto group = std::make_shared<Group>(size, timeout);
  std::vector<std::unique_ptr<Communicator>> members;
  for (int rank = 0; rank < size; ++rank) {
    members.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  return members;
}

}  // namespace atl
