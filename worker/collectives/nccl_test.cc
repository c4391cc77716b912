// Which groups NCCL gets, and under which ids; NCCL itself is made of threads here.

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <semaphore>
#include <thread>

#include "common/event_loop.h"
#include "kernels/testing/reference/reference.h"
#include "kernels/thread_communicator.h"
#include "worker/collectives/communicators.h"

namespace atl::worker {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

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
  CommunicatorsOptions Options(const std::string& worker) {
    CommunicatorsOptions options{.worker = worker, .scope = "plan 3", .timeout = kLong};
    options.nccl.ids = {{"tensor/0", "id 1"}, {"layer/3", "id 2"}};
    options.nccl.joins = [](const std::vector<std::string>& devices) {
      return std::all_of(devices.begin(), devices.end(), [](const std::string& device) {
        return device.find("gpu") != std::string::npos;
      });
    };
    for (const char* name : {"gpu0", "gpu1"}) {
      options.nccl.backends[absl::StrCat(worker, "/", name)] = backend.get();
    }
    options.nccl.join = [this](Backend&, const NcclGroup& group) { return nccl.Join(group); };
    return options;
  }

  std::unique_ptr<Backend> backend = NewReferenceBackend();
  FakeNccl nccl;
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
  Communicators first(site.Options("w1")), second(site.Options("w2"));
  const auto make_factory = [&](const std::string& device) -> CommunicatorFactory& {
    return device[1] == '1' ? first : second;
  };
  RequireSums({"w1/gpu0", "w1/gpu1"}, make_factory, "tensor/0");
  RequireSums({"w2/gpu1", "w1/gpu0", "w2/gpu0"}, make_factory, "layer/3");
  REQUIRE(site.nccl.groups.size() == 2);
}

TEST_CASE("a group with a CPU in it is not NCCL's") {
  Site site;
  Communicators ours(site.Options("w1"));
  const auto make_factory = [&](const std::string&) -> CommunicatorFactory& { return ours; };
  RequireSums({"w1/gpu0", "w1/cpu"}, make_factory, "layer/1");
  REQUIRE(site.nccl.groups.empty());
}

TEST_CASE("a group without an id is refused; Abort, and a set-up that is ended, end joining") {
  Site site;
  CommunicatorsOptions options = site.Options("w1");
  const std::vector<std::string> devices = {"w1/gpu0", "w1/gpu1"};
  Communicators lacking(options);
  REQUIRE(absl::IsFailedPrecondition(lacking.Create("a", devices, "w1/gpu1").status()));

  std::binary_semaphore joins(0);
  options.nccl.join = [&](Backend&, const NcclGroup& group) {
    joins.release();
    while (!group.given_up()) std::this_thread::yield();
    return absl::DeadlineExceededError("not all are there");
  };
  std::atomic<bool> given_up = false;
  options.nccl.given_up = [&] { return given_up.load(); };
  Communicators waiting(options), abandoned(options);
  const auto join = [&](Communicators& from, const std::function<void()>& end) {
    absl::Status status;
    std::jthread member([&] { status = from.Create("tensor/0", devices, "w1/gpu1").status(); });
    joins.acquire();
    end();
    member.join();
    return status;
  };
  REQUIRE(join(waiting, [&] { waiting.Abort("plan 8"); }).message() == "plan 8");
  REQUIRE(absl::IsAborted(join(abandoned, [&] { given_up = true; })));
}

}  // namespace
}  // namespace atl::worker
