#include "kernels/testing/fake_nccl.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "kernels/bfloat16.h"

namespace atl::testing {
namespace {

double Get(const Tensor& x, int64_t i) {
  switch (x.dtype) {
    case DType::kFloat32:
      return x.as<float>()[i];
    case DType::kFloat64:
      return x.as<double>()[i];
    case DType::kBfloat16:
      return WidenBfloat16(x.as<Bfloat16>()[i]);
    case DType::kInt32:
      break;
  }
  ATOLL_CHECK(false, "collectives reduce reals");
  __builtin_unreachable();
}

void Set(const Tensor& x, int64_t i, double value) {
  if (x.dtype == DType::kFloat64) {
    x.as<double>()[i] = value;
  } else if (x.dtype == DType::kFloat32) {
    x.as<float>()[i] = static_cast<float>(value);
  } else {
    x.as<Bfloat16>()[i] = RoundToBfloat16(static_cast<float>(value));
  }
}

// Joins numbers as threads do (kernels/thread_communicator.cc): in the tensors' own precision.
double Join(const Tensor& x, bool sum, double a, double b) {
  if (!sum) return a > b || a != a ? a : b;
  if (x.dtype == DType::kFloat64) return a + b;
  return static_cast<float>(a) + static_cast<float>(b);
}

void Reduce(const std::vector<Tensor>& members, bool sum) {
  for (int64_t i = 0; i < members[0].size(); ++i) {
    double joined = Get(members[0], i);
    for (size_t m = 1; m < members.size(); ++m) {
      joined = Join(members[0], sum, joined, Get(members[m], i));
    }
    for (const Tensor& x : members) Set(x, i, joined);
  }
}

}  // namespace

struct FakeNccl::Group {
  // One collective: what has come, by rank.
  struct Round {
    std::vector<Tensor> tensors;
    int arrived = 0, left = 0;
    bool done = false;
  };
  // One send that waits for its receive.
  struct Offer {
    Tensor x;
    bool taken = false;
  };

  explicit Group(int size) : size(size) {}

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  int joined = 0;     // all guarded by mutex
  bool lost = false;  // one has aborted
  std::map<int64_t, Round> rounds;
  std::map<std::pair<int, int>, std::deque<Offer*>> offers;  // from, to
};

struct FakeNccl::Joined {
  std::shared_ptr<Group> group;
  int rank = 0;
  int64_t next_round = 0;
  bool aborted = false;  // guarded by the group's mutex
};

namespace {

template <typename Pointer>
auto Of(NcclApi::Member member) -> Pointer& {
  return *static_cast<Pointer*>(member);
}

}  // namespace

int FakeNccl::groups() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(groups_.size());
}

absl::StatusOr<std::string> FakeNccl::NewId() {
  const std::lock_guard lock(mutex_);
  std::string id = absl::StrCat("id ", groups_.size());
  groups_[id] = nullptr;
  return id;
}

absl::StatusOr<NcclApi::Member> FakeNccl::Begin(Backend&, const NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(group.id);
  if (found == groups_.end()) return absl::InvalidArgumentError("not an id");
  if (found->second == nullptr) found->second = std::make_shared<Group>(group.size);
  auto joined = std::make_shared<Joined>(Joined{found->second, group.rank});
  const std::lock_guard joining(joined->group->mutex);
  ATOLL_CHECK(joined->group->size == group.size, "a group of two sizes");
  ++joined->group->joined;
  return static_cast<Member>(new std::shared_ptr<Joined>(std::move(joined)));
}

absl::StatusOr<bool> FakeNccl::IsEnqueued(Member member) {
  Group& group = *Of<std::shared_ptr<Joined>>(member)->group;
  const std::lock_guard lock(group.mutex);
  if (group.lost && reports_aborts_) return absl::UnavailableError("a member was lost");
  return group.joined == group.size;
}

absl::Status FakeNccl::AllReduce(Member member, Backend& backend, Stream& stream, const Tensor& x,
                                 bool sum) {
  return Together(member, backend, stream, x,
                  [sum](const std::vector<Tensor>& members) { Reduce(members, sum); });
}

// A member's parts that are not its own have no defined content.
absl::Status FakeNccl::ReduceScatter(Member member, Backend& backend, Stream& stream,
                                     const Tensor& x, const Cuts& cuts) {
  return Together(member, backend, stream, x, [cuts](const std::vector<Tensor>& members) {
    Reduce(members, /*sum=*/true);
    for (size_t m = 0; m < members.size(); ++m) {
      for (int64_t i = 0; i < members[m].size(); ++i) {
        if (i < cuts[m] || i >= cuts[m + 1]) Set(members[m], i, NAN);
      }
    }
  });
}

absl::Status FakeNccl::AllGather(Member member, Backend& backend, Stream& stream, const Tensor& x,
                                 const Cuts& cuts) {
  return Together(member, backend, stream, x, [cuts](const std::vector<Tensor>& members) {
    for (size_t from = 0; from < members.size(); ++from) {
      for (const Tensor& to : members) {
        for (int64_t i = cuts[from]; i < cuts[from + 1]; ++i) Set(to, i, Get(members[from], i));
      }
    }
  });
}

// Joins all members' tensors, once all are there.
absl::Status FakeNccl::Together(Member member, Backend& backend, Stream& stream, const Tensor& x,
                                std::function<void(const std::vector<Tensor>&)> all) {
  const std::shared_ptr<Joined> own = Of<std::shared_ptr<Joined>>(member);
  const auto work = [own, all = std::move(all), number = own->next_round++,
                     real = RealMemory(backend, x)] {
    Group& group = *own->group;
    std::unique_lock lock(group.mutex);
    if (own->aborted) return;
    Group::Round& round = group.rounds[number];
    round.tensors.resize(static_cast<size_t>(group.size));
    round.tensors[static_cast<size_t>(own->rank)] = real;
    if (++round.arrived == group.size) {
      for (const Tensor& other : round.tensors) ATOLL_CHECK(other.size() == real.size());
      all(round.tensors);
      round.done = true;
      group.changed.notify_all();
    }
    group.changed.wait(lock, [&] { return round.done || own->aborted; });
    if (!round.done) {
      --round.arrived;  // what is not there can never be summed
    } else if (++round.left == group.size) {
      group.rounds.erase(number);
    }
  };
  CountCollective(backend, x);
  EnqueueOnFake(backend, stream, work);
  return absl::OkStatus();
}

absl::Status FakeNccl::Send(Member member, Backend& backend, Stream& stream, const Tensor& x,
                            int to) {
  const std::shared_ptr<Joined> own = Of<std::shared_ptr<Joined>>(member);
  CountCollective(backend, x);
  EnqueueOnFake(backend, stream, [own, to, real = RealMemory(backend, x)] {
    Group& group = *own->group;
    std::unique_lock lock(group.mutex);
    if (own->aborted) return;
    Group::Offer offer{real};
    std::deque<Group::Offer*>& offers = group.offers[{own->rank, to}];
    offers.push_back(&offer);
    group.changed.notify_all();
    group.changed.wait(lock, [&] { return offer.taken || own->aborted; });
    if (!offer.taken) std::erase(offers, &offer);
  });
  return absl::OkStatus();
}

absl::Status FakeNccl::Receive(Member member, Backend& backend, Stream& stream, const Tensor& x,
                               int from) {
  const std::shared_ptr<Joined> own = Of<std::shared_ptr<Joined>>(member);
  CountCollective(backend, x);
  EnqueueOnFake(backend, stream, [own, from, real = RealMemory(backend, x)] {
    Group& group = *own->group;
    std::unique_lock lock(group.mutex);
    std::deque<Group::Offer*>& offers = group.offers[{from, own->rank}];
    group.changed.wait(lock, [&] { return !offers.empty() || own->aborted; });
    if (own->aborted) return;
    Group::Offer& offer = *offers.front();
    offers.pop_front();
    ATOLL_CHECK(offer.x.size() == real.size() && offer.x.dtype == real.dtype,
                "a send and a receive of two sizes meet");
    std::memcpy(real.data, offer.x.data,
                static_cast<size_t>(real.size() * GetElementSize(real.dtype)));
    offer.taken = true;
    group.changed.notify_all();
  });
  return absl::OkStatus();
}

void FakeNccl::Abort(Member member) {
  const std::unique_ptr<std::shared_ptr<Joined>> own(static_cast<std::shared_ptr<Joined>*>(member));
  Group& group = *(*own)->group;
  const std::lock_guard lock(group.mutex);
  (*own)->aborted = true;
  group.lost = true;
  group.changed.notify_all();
}

}  // namespace atl::testing
