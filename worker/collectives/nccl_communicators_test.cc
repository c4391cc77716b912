// Which groups NCCL gets, and under which ids; NCCL itself is made of threads here.

#include "worker/collectives/nccl_communicators.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <semaphore>
#include <thread>

#include "common/event_loop.h"
#include "kernels/reference/reference.h"
#include "kernels/thread_communicator.h"

namespace atl::worker {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

// Stands for the factory that groups with CPUs go to.
class Others final : public CommunicatorFactory {
 public:
  absl::StatusOr<std::unique_ptr<Communicator>> Create(const std::string& name,
                                                       const std::vector<std::string>&,
                                                       const std::string&) override {
    requested_.push_back(name);
    return absl::UnimplementedError("the other factory");
  }
  void Abort(const std::string& reason) override { aborted_ = reason; }

  std::vector<std::string> requested_;
  std::string aborted_;
};

// An NCCL in which members of one id meet.
struct FakeNccl {
  absl::StatusOr<std::unique_ptr<Communicator>> Join(const NcclGroup& group) {
    std::lock_guard lock(mutex);
    auto& members = groups[group.id];
    if (members.empty()) members = NewThreadCommunicators(group.size, kLong);
    return std::move(members[group.rank]);
  }
  std::mutex mutex;
  std::map<std::string, std::vector<std::unique_ptr<Communicator>>> groups;
};

struct Site {
  NcclCommunicatorsOptions Options(const std::string& worker) {
    NcclCommunicatorsOptions options;
    options.worker = worker;
    options.ids = {{"tensor/0", "id 1"}, {"layer/3", "id 2"}};
    options.timeout = kLong;
    options.by_nccl = [](const std::vector<std::string>& devices) {
      return std::all_of(devices.begin(), devices.end(), [](const std::string& device) {
        return device.find("gpu") != std::string::npos;
      });
    };
    for (const char* name : {"gpu0", "gpu1"}) {
      options.backends[absl::StrCat(worker, "/", name)] = backend.get();
    }
    options.join = [this](Backend&, const NcclGroup& group) { return nccl.Join(group); };
    return options;
  }

  std::unique_ptr<Backend> backend = NewReferenceBackend();
  FakeNccl nccl;
  Others others;
};

// The sum of the ranks' numbers, by all members of a group at once.
void RequireSums(const std::vector<std::string>& devices,
                 const std::function<CommunicatorFactory&(const std::string&)>& make_factory,
                 const std::string& name) {
  std::vector<float> sums(devices.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < devices.size(); ++i) {
      threads.emplace_back([&, i] {
        auto member = make_factory(devices[i]).Create(name, devices, devices[i]);
        if (!member.ok()) return;
        const auto backend = NewReferenceBackend();
        const auto stream = *backend->NewStream();
        sums[i] = static_cast<float>(i + 1);
        if (!(*member)
                 ->AllReduceSum(*backend, *stream, Tensor(&sums[i], DType::kFloat32, 1, 1))
                 .ok()) {
          sums[i] = -1;
        }
      });
    }
  }
  const auto size = static_cast<float>(devices.size());
  for (const float sum : sums) REQUIRE(sum == size * (size + 1) / 2);
}

TEST_CASE("GPUs of one worker, and of several, meet under the id of their group") {
  Site site;
  NcclCommunicators first(site.Options("w1"), &site.others);
  NcclCommunicators second(site.Options("w2"), &site.others);
  const auto make_factory = [&](const std::string& device) -> CommunicatorFactory& {
    return device[1] == '1' ? first : second;
  };
  RequireSums({"w1/gpu0", "w1/gpu1"}, make_factory, "tensor/0");
  RequireSums({"w2/gpu1", "w1/gpu0", "w2/gpu0"}, make_factory, "layer/3");
  REQUIRE(site.nccl.groups.size() == 2);
  REQUIRE(site.others.requested_.empty());
}

TEST_CASE("a group with a CPU in it is the other factory's") {
  Site site;
  NcclCommunicators ours(site.Options("w1"), &site.others);
  REQUIRE_FALSE(ours.Create("layer/1", {"w1/gpu0", "w2/cpu"}, "w1/gpu0").ok());
  REQUIRE(site.others.requested_ == std::vector<std::string>{"layer/1"});
}

TEST_CASE("a group without an id is refused; Abort, and a set-up that is ended, end joining") {
  Site site;
  NcclCommunicatorsOptions options = site.Options("w1");
  const std::vector<std::string> devices = {"w1/gpu0", "w1/gpu1"};
  NcclCommunicators lacking(options, &site.others);
  REQUIRE(absl::IsFailedPrecondition(lacking.Create("a", devices, "w1/gpu1").status()));

  std::binary_semaphore joins(0);
  options.join = [&](Backend&, const NcclGroup& group) {
    joins.release();
    while (!group.given_up()) std::this_thread::yield();
    return absl::DeadlineExceededError("not all are there");
  };
  std::atomic<bool> given_up = false;
  options.given_up = [&] { return given_up.load(); };
  NcclCommunicators waiting(options, &site.others), abandoned(options, &site.others);
  const auto join = [&](NcclCommunicators& from, const std::function<void()>& end) {
    absl::Status status;
    std::jthread member([&] { status = from.Create("tensor/0", devices, "w1/gpu1").status(); });
    joins.acquire();
    end();
    member.join();
    return status;
  };
  REQUIRE(join(waiting, [&] { waiting.Abort("plan 8"); }).message() == "plan 8");
  REQUIRE(site.others.aborted_ == "plan 8");
  REQUIRE(absl::IsAborted(join(abandoned, [&] { given_up = true; })));
}

}  // namespace
}  // namespace atl::worker
