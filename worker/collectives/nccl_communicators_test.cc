// Which groups NCCL gets, and how their members find each other; NCCL itself is made of threads
// here.

#include "worker/collectives/nccl_communicators.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "common/event_loop.h"
#include "kernels/reference/reference.h"
#include "kernels/thread_communicator.h"

namespace atl::worker {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

// Values under keys, for the workers of one test.
class Board final : public Rendezvous {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, Instant deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline - SteadyNow(), [&] { return values_.count(key) > 0; })) {
      return absl::DeadlineExceededError(key);
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

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
  std::atomic<int> ids = 0;
};

struct Site {
  NcclCommunicatorsOptions Options(const std::string& worker) {
    NcclCommunicatorsOptions options;
    options.worker = worker;
    options.scope = "island/7";
    options.timeout = kLong;
    options.by_nccl = [](const std::vector<std::string>& devices) {
      return std::all_of(devices.begin(), devices.end(), [](const std::string& device) {
        return device.find("gpu") != std::string::npos;
      });
    };
    for (const char* name : {"gpu0", "gpu1"}) {
      options.backends[absl::StrCat(worker, "/", name)] = backend.get();
    }
    options.nccl.new_id = [this] { return absl::StrCat("id ", ++nccl.ids); };
    options.nccl.join = [this](Backend&, const NcclGroup& group) { return nccl.Join(group); };
    return options;
  }

  std::unique_ptr<Backend> backend = NewReferenceBackend();
  FakeNccl nccl;
  Board board;
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

TEST_CASE("GPUs of one worker, and of several, meet under an id that rank 0 makes") {
  Site site;
  NcclCommunicators first(site.Options("w1"), &site.board, &site.others);
  NcclCommunicators second(site.Options("w2"), &site.board, &site.others);
  const auto make_factory = [&](const std::string& device) -> CommunicatorFactory& {
    return device[1] == '1' ? first : second;
  };
  RequireSums({"w1/gpu0", "w1/gpu1"}, make_factory, "tensor/0");
  RequireSums({"w2/gpu1", "w1/gpu0", "w2/gpu0"}, make_factory, "layer/3");
  REQUIRE(site.nccl.ids == 2);
  REQUIRE(site.others.requested_.empty());
}

TEST_CASE("a group with a CPU in it is the other factory's") {
  Site site;
  NcclCommunicators ours(site.Options("w1"), &site.board, &site.others);
  REQUIRE_FALSE(ours.Create("layer/1", {"w1/gpu0", "w2/cpu"}, "w1/gpu0").ok());
  REQUIRE(site.others.requested_ == std::vector<std::string>{"layer/1"});
}

TEST_CASE("what keeps rank 0 from making an id reaches the others; Abort and time end their wait") {
  Site site;
  NcclCommunicatorsOptions options = site.Options("w1");
  options.nccl.new_id = [] { return absl::UnavailableError("no network"); };
  NcclCommunicators broken(options, nullptr, &site.others);
  const std::vector<std::string> devices = {"w1/gpu0", "w1/gpu1"};
  REQUIRE(broken.Create("a", devices, "w1/gpu0").status().message() == "no network");
  REQUIRE(broken.Create("a", devices, "w1/gpu1").status().message() == "no network");

  options.timeout = std::chrono::milliseconds(30);
  NcclCommunicators impatient(options, &site.board, &site.others);
  REQUIRE(absl::IsDeadlineExceeded(impatient.Create("b", devices, "w1/gpu1").status()));
  REQUIRE(
      absl::IsDeadlineExceeded(impatient.Create("c", {"w2/gpu0", "w1/gpu1"}, "w1/gpu1").status()));

  NcclCommunicators waiting(site.Options("w1"), &site.board, &site.others);
  for (const std::vector<std::string>& group :
       {devices, std::vector<std::string>{"w2/gpu0", "w1/gpu1"}}) {
    absl::Status status;
    std::jthread member([&] { status = waiting.Create("d", group, "w1/gpu1").status(); });
    waiting.Abort("plan 8");
    member.join();
    REQUIRE(status.message() == "plan 8");
  }
  REQUIRE(site.others.aborted_ == "plan 8");
}

}  // namespace
}  // namespace atl::worker
