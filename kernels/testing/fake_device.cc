#include "kernels/testing/fake_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/async_failure.h"
#include "kernels/recorder.h"

namespace atl::testing {
namespace {

constexpr int64_t kPage = 4096;

// Does work in order, on a thread of its own.
class WorkQueue {
 public:
  WorkQueue() : thread_([this] { Work(); }) {}
  ~WorkQueue() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  void Add(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
    ++added_;
    changed_.notify_all();
  }
  // Until all that has been added so far is done.
  void Wait() {
    std::unique_lock lock(mutex_);
    const int64_t all = added_;
    changed_.wait(lock, [&] { return done_ >= all; });
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;  // all guarded by mutex_
  int64_t added_ = 0, done_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

class FakeStream final : public Stream {
 public:
  FakeStream() : queue(std::make_shared<WorkQueue>()) {}
  const std::shared_ptr<WorkQueue> queue;
};

WorkQueue& GetQueue(Stream& stream) { return *static_cast<FakeStream&>(stream).queue; }

// Counts its records; shared with the streams that have them, or wait for them, before them.
class FakeEvent final : public Event {
 public:
  struct Records {
    std::mutex mutex;
    std::condition_variable changed;
    int64_t made = 0, passed = 0;  // guarded by mutex, as is the time of the newest
    std::chrono::steady_clock::time_point passed_at;
  };
  const std::shared_ptr<Records> records = std::make_shared<Records>();
};

}  // namespace

// Addresses without memory, and the memory behind them.
class FakeMemory {
 public:
  explicit FakeMemory(std::string name) : name_(std::move(name)) {}
  ~FakeMemory() { ATOLL_CHECK(regions_.empty(), name_, " dies before its buffers"); }

  // Aligned as the memory behind it is.
  void* Place(Buffer real) {
    const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(real.data()) % kPage);
    // With at least an unused page behind it.
    const int64_t bytes = (offset + real.bytes() + kPage - 1) / kPage * kPage + kPage;
    void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ATOLL_CHECK(base != MAP_FAILED, "no addresses");
    char* address = static_cast<char*>(base) + offset;
    const std::lock_guard lock(mutex_);
    regions_.emplace(reinterpret_cast<uintptr_t>(address), Region{base, bytes, std::move(real)});
    return address;
  }

  Buffer Remove(void* address) {
    for (const std::shared_ptr<WorkQueue>& queue : Queues()) queue->Wait();
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(reinterpret_cast<uintptr_t>(address));
    ATOLL_CHECK(found != regions_.end(), name_, " has no such buffer");
    Buffer real = std::move(found->second.real);
    munmap(found->second.base, static_cast<size_t>(found->second.bytes));
    regions_.erase(found);
    return real;
  }

  // Returns what lies behind an address; other numbers stay as they are.
  uintptr_t Behind(uintptr_t address) {
    const std::lock_guard lock(mutex_);
    auto found = regions_.upper_bound(address);
    if (found == regions_.begin()) return address;
    --found;
    const uintptr_t offset = address - found->first;
    if (offset > static_cast<uintptr_t>(found->second.real.bytes())) return address;
    return reinterpret_cast<uintptr_t>(found->second.real.data()) + offset;
  }

  void Add(const std::shared_ptr<WorkQueue>& queue) {
    const std::lock_guard lock(mutex_);
    std::erase_if(queues_, [](const auto& old) { return old.expired(); });
    queues_.push_back(queue);
  }

 private:
  struct Region {
    void* base;
    int64_t bytes;
    Buffer real;
  };

  std::vector<std::shared_ptr<WorkQueue>> Queues() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<WorkQueue>> all;
    for (const std::weak_ptr<WorkQueue>& queue : queues_) {
      if (auto kept = queue.lock()) all.push_back(std::move(kept));
    }
    return all;
  }

  const std::string name_;
  std::mutex mutex_;
  std::map<uintptr_t, Region> regions_;  // all guarded by mutex_
  std::vector<std::weak_ptr<WorkQueue>> queues_;
};

class FakeBackend final : public Backend, public ReportsFailures, private Graphs {
 public:
  FakeBackend(std::string name, std::unique_ptr<Backend> arithmetic,
              std::shared_ptr<FakeMemory> memory, std::function<void()> before_copy)
      : name_(std::move(name)),
        memory_(std::move(memory)),
        before_copy_(std::move(before_copy)),
        arithmetic_(std::move(arithmetic)) {
    ATOLL_CHECK(arithmetic_->memory_on_host());
    inner_stream_ = *arithmetic_->NewStream();
  }

  std::string Name() const override { return name_; }
  bool Supports(DType compute) const override { return arithmetic_->Supports(compute); }
  bool memory_on_host() const override { return false; }

  absl::StatusOr<Buffer> Allocate(int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    ATOLL_ASSIGN_OR_RETURN(Buffer real, arithmetic_->Allocate(bytes));
    return Buffer(this, memory_->Place(std::move(real)), bytes, /*on_host=*/false);
  }
  absl::StatusOr<Buffer> AllocateHost(int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    return arithmetic_->AllocateHost(bytes);
  }
  MemoryUse Memory() const override { return arithmetic_->Memory(); }
  void ForgetPeak() override { arithmetic_->ForgetPeak(); }
  void CopyToDevice(Stream& stream, const Tensor& to, const void* host) override {
    if (before_copy_ != nullptr) GetQueue(stream).Add(before_copy_);
    Count(&FakeCounts::to_device_bytes, GetBytes(to));
    Enqueue(stream, [this, host, real = Real(to)] {
      arithmetic_->CopyToDevice(*inner_stream_, real, host);
    });
  }
  void CopyToHost(Stream& stream, void* host, const Tensor& from) override {
    if (before_copy_ != nullptr) GetQueue(stream).Add(before_copy_);
    Count(&FakeCounts::to_host_bytes, GetBytes(from));
    Enqueue(stream, [this, host, real = Real(from)] {
      arithmetic_->CopyToHost(*inner_stream_, host, real);
    });
  }
  void Zero(Stream& stream, const Tensor& x) override {
    CountLaunch();
    Enqueue(stream, [this, real = Real(x)] { arithmetic_->Zero(*inner_stream_, real); });
  }

  bool CanAccessPeer(const Backend& peer) const override {
    return dynamic_cast<const FakeBackend*>(&peer) != nullptr;
  }
  void CopyFromPeer(Stream& stream, const Tensor& to, const Backend& peer,
                    const Tensor& from) override {
    const auto& other = dynamic_cast<const FakeBackend&>(peer);
    Count(&FakeCounts::peer_bytes, GetBytes(from));
    Enqueue(stream, [this, to = Real(to), from = other.Real(from)] {
      arithmetic_->CopyToDevice(*inner_stream_, to, from.data);
    });
  }

  absl::StatusOr<std::unique_ptr<Stream>> NewStream() override {
    auto stream = std::make_unique<FakeStream>();
    memory_->Add(stream->queue);
    return stream;
  }
  absl::StatusOr<std::unique_ptr<Event>> NewEvent() override {
    return std::make_unique<FakeEvent>();
  }
  absl::StatusOr<std::unique_ptr<Event>> NewTimedEvent() override { return NewEvent(); }
  Duration Elapsed(const Event& from, const Event& to) const override {
    ATOLL_CHECK(Passed(from) && Passed(to), "an event has no time before it is passed");
    return GetTime(to) - GetTime(from);
  }
  void Record(Stream& stream, Event& event) override {
    ATOLL_CHECK(recording_ == nullptr, "events are not recorded");
    auto records = static_cast<FakeEvent&>(event).records;
    const std::lock_guard lock(records->mutex);
    GetQueue(stream).Add([records, own = ++records->made] {
      const std::lock_guard passing(records->mutex);
      records->passed = std::max(records->passed, own);
      records->passed_at = std::chrono::steady_clock::now();
      records->changed.notify_all();
    });
  }
  void Wait(Stream& stream, const Event& event) override {
    auto records = static_cast<const FakeEvent&>(event).records;
    const std::lock_guard lock(records->mutex);
    GetQueue(stream).Add([records, newest = records->made] {
      std::unique_lock waiting(records->mutex);
      records->changed.wait(waiting, [&] { return records->passed >= newest; });
    });
  }
  bool Passed(const Event& event) const override {
    auto records = static_cast<const FakeEvent&>(event).records;
    const std::lock_guard lock(records->mutex);
    return records->passed == records->made;
  }
  absl::Status Synchronize(Stream& stream) override {
    ATOLL_CHECK(recording_ == nullptr, "work that is recorded does not wait");
    Count(&FakeCounts::synchronisations);
    GetQueue(stream).Wait();
    ATOLL_RETURN_IF_ERROR(failures_.First());
    const std::lock_guard lock(mutex_);
    return arithmetic_->Synchronize(*inner_stream_);
  }
  absl::Status TakeFailure() override { return failures_.First(); }

#define ATOLL_FAKE_OPERATION(Op)                                                      \
  void Run(Stream& stream, const Op& op) override {                                   \
    CountLaunch();                                                                    \
    Enqueue(stream, [this, real = Real(op)] { /* as the device sees it */             \
                                              arithmetic_->Run(*inner_stream_, real); \
    });                                                                               \
  }
#define ATOLL_FAKE_OPERATION_WITH_WORKSPACE(Op)                          \
  void Run(Stream& stream, const Op& op, Workspace workspace) override { \
    CountLaunch();                                                       \
    Enqueue(stream, [this, real = Real(op), scratch = Real(workspace)] { \
      arithmetic_->Run(*inner_stream_, real, scratch);                   \
    });                                                                  \
  }                                                                      \
  int64_t WorkspaceBytes(const Op& op) const override { return arithmetic_->WorkspaceBytes(op); }

  ATOLL_OPERATIONS(ATOLL_FAKE_OPERATION, ATOLL_FAKE_OPERATION_WITH_WORKSPACE,
                   ATOLL_FAKE_OPERATION_WITH_WORKSPACE, ATOLL_FAKE_OPERATION)
#undef ATOLL_FAKE_OPERATION
#undef ATOLL_FAKE_OPERATION_WITH_WORKSPACE

  absl::Status Repeat(Stream& stream, const WorkKey& key,
                      absl::FunctionRef<absl::Status()> work) override {
    return recorder_.Repeat(stream, key, work);
  }
  RepeatCounts Repeats() const override { return recorder_.counts(); }

  void AddFailureSource(std::shared_ptr<AsyncFailure> source) override {
    failures_.Add(std::move(source));
  }

  FakeCounts counts() const {
    const std::lock_guard lock(counts_mutex_);
    return counts_;
  }
  void Count(int64_t FakeCounts::*count, int64_t amount = 1) {
    const std::lock_guard lock(counts_mutex_);
    counts_.*count += amount;
  }

  // The operation with the memory behind its addresses. They are found by their values: no size or
  // coefficient looks like one. What lies between its fields may, with a float before it: the rest
  // of an address that was in the same place of the stack.
  template <typename Op>
  Op Real(Op op) const {
    using Words = std::array<uintptr_t, sizeof(Op) / sizeof(uintptr_t)>;
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&op);
#endif
    auto words = std::bit_cast<Words>(op);
    for (uintptr_t& word : words) word = memory_->Behind(word);
    return std::bit_cast<Op>(words);
  }

 private:
  using Operations = std::vector<std::function<void()>>;

  static std::chrono::steady_clock::time_point GetTime(const Event& event) {
    FakeEvent::Records& records = *static_cast<const FakeEvent&>(event).records;
    const std::lock_guard lock(records.mutex);
    return records.passed_at;
  }
  static int64_t GetBytes(const Tensor& tensor) {
    return tensor.size() * GetElementSize(tensor.dtype);
  }
  void CountLaunch() {
    if (recording_ == nullptr) Count(&FakeCounts::launches);
  }
  struct Recorded final : Graph {
    std::shared_ptr<const Operations> operations;  // also of a launch that is under way
  };

  // Streams take turns with what computes, which is for one thread at a time.
  template <typename Work>
  void Enqueue(Stream& stream, Work work) {
    auto operation = [this, work = std::move(work)] {
      const std::lock_guard lock(mutex_);
      work();
    };
    if (recording_ != nullptr) {
      ATOLL_CHECK(recorded_stream_ == &stream, "work that is recorded is of one stream");
      return recording_->push_back(std::move(operation));
    }
    GetQueue(stream).Add(std::move(operation));
  }

  absl::Status Begin(Stream& stream) override {
    recording_ = std::make_shared<Operations>();
    recorded_stream_ = &stream;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Graph>> End(Stream&) override {
    auto graph = std::make_unique<Recorded>();
    graph->operations = std::exchange(recording_, nullptr);
    return graph;
  }
  void Launch(Stream& stream, Graph& graph) override {
    Count(&FakeCounts::launches);
    GetQueue(stream).Add([operations = static_cast<Recorded&>(graph).operations] {
      for (const std::function<void()>& operation : *operations) operation();
    });
  }

  void Free(void* data, bool) override {
    recorder_.Forget();
    Buffer real = memory_->Remove(data);
    const std::lock_guard lock(mutex_);
    real = Buffer();
  }

  const std::string name_;
  const std::shared_ptr<FakeMemory> memory_;
  const std::function<void()> before_copy_;
  FailureSources failures_;
  // The addresses of a record's operation are looked up when it is recorded, as they are on a GPU.
  Recorder recorder_{this, 4096};
  std::shared_ptr<Operations> recording_;
  Stream* recorded_stream_ = nullptr;
  mutable std::mutex counts_mutex_;
  FakeCounts counts_;  // guarded by counts_mutex_
  std::mutex mutex_;   // of what follows
  const std::unique_ptr<Backend> arithmetic_;
  std::unique_ptr<Stream> inner_stream_;
};

FakeDevice::FakeDevice(std::string name, Arithmetic arithmetic)
    : name_(std::move(name)),
      arithmetic_(std::move(arithmetic)),
      memory_(std::make_shared<FakeMemory>(name_)) {}

std::unique_ptr<Backend> FakeDevice::NewBackend(std::function<void()> before_copy) const {
  return std::make_unique<FakeBackend>(name_, arithmetic_(), memory_, std::move(before_copy));
}

FakeCounts GetFakeCounts(const Backend& backend) {
  return dynamic_cast<const FakeBackend&>(backend).counts();
}

void EnqueueOnFake(Backend& backend, Stream& stream, std::function<void()> work) {
  ATOLL_CHECK(dynamic_cast<FakeBackend*>(&backend) != nullptr, backend.Name(), " is not fake");
  GetQueue(stream).Add(std::move(work));
}

void CountCollective(Backend& backend, const Tensor& tensor) {
  auto& fake = dynamic_cast<FakeBackend&>(backend);
  fake.Count(&FakeCounts::collectives);
  fake.Count(&FakeCounts::collective_bytes, tensor.size() * GetElementSize(tensor.dtype));
}

Tensor RealMemory(Backend& backend, const Tensor& tensor) {
  return dynamic_cast<FakeBackend&>(backend).Real(tensor);
}

}  // namespace atl::testing
