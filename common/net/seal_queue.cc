#include "common/net/seal_queue.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/machine/limits.h"
#include "common/net/payload.h"

namespace atl {
namespace {

// Less is sealed at once: passing it on takes longer.
constexpr size_t kInlineBytes = 16 << 10;
constexpr int64_t kIdleBytesMax = int64_t{64} << 20;

// Never destroyed: its threads end with the process.
class Threads {
 public:
  static Threads& Get() {
    static Threads* const threads = new Threads;
    return *threads;
  }
  void Run(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  Threads() {
    const int count = std::clamp(ReadMachineLimits().cpus / 2, 2, 8);
    for (int i = 0; i < count; ++i) std::thread([this] { Serve(); }).detach();
  }
  void Serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !waiting_.empty(); });
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;  // guarded by mutex_; queues bound it
};

// Sealed payloads lie in memory that is used again.
BufferPool& SealedBuffers() {
  static auto* const pool = new std::shared_ptr<BufferPool>(BufferPool::Create(kIdleBytesMax));
  return **pool;
}

}  // namespace

struct SealQueue::Work {
  bool seals = false;
  SealKey key;
  uint64_t number = 0;
  std::string context;
  Message payload;
  std::string tag;  // result of sealing, or what opening compares with
  bool ok = true;
  std::function<void()> wake;
  std::atomic<bool> done = false;  // the result is here
  std::atomic<bool> over = false;  // and nothing of the queue's owner is touched any more

  void Do() {
    if (!seals) {
      const std::span<std::byte> bytes = payload.writable();
      ok = Open(key, number, context, bytes, tag, bytes.data());
      return;
    }
    const auto bytes = static_cast<int64_t>(payload.bytes().size());
    const auto sealed = std::make_shared<Payload>(SealedBuffers().Take(bytes));
    tag = Seal(key, number, context, payload.bytes(), sealed->data());
    // A sealed payload counts as unsent until this has left.
    const auto plain = std::make_shared<Message>(std::move(payload));
    payload = Message::Wrap(sealed->bytes(), [sealed, plain] {});
  }
  void DoAndNotify() {
    Do();
    done = true;
    done.notify_all();
    wake();
    over = true;
    over.notify_all();
  }
};

SealQueue::~SealQueue() {
  for (const Entry& entry : entries_) {
    if (entry.work != nullptr) entry.work->over.wait(false);
  }
}

void SealQueue::Push(LinkFrame frame) { entries_.push_back({std::move(frame), nullptr}); }

void SealQueue::PushToSeal(LinkFrame frame, const SealKey& key, const std::function<void()>& wake) {
  Start(std::move(frame), key, wake, /*seals=*/true);
}

void SealQueue::PushToOpen(LinkFrame frame, const SealKey& key, const std::function<void()>& wake) {
  Start(std::move(frame), key, wake, /*seals=*/false);
}

void SealQueue::Start(LinkFrame frame, const SealKey& key, const std::function<void()>& wake,
                      bool seals) {
  auto work = std::make_shared<Work>();
  work->seals = seals;
  work->key = key;
  work->number = frame.frame.chunk().number();
  work->context = Session::ChunkContext(frame.frame);
  work->payload = std::move(frame.payload);
  if (!seals) work->tag = frame.frame.chunk().tag();
  entries_.push_back({std::move(frame), work});
  if (work->payload.bytes().size() > kInlineBytes) {
    work->wake = wake;
    return Threads::Get().Run([work] { work->DoAndNotify(); });
  }
  work->Do();
  work->done = work->over = true;
}

size_t SealQueue::working() const {
  return std::count_if(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.work != nullptr && !entry.work->done;
  });
}

LinkFrame* SealQueue::Front() {
  if (entries_.empty()) return nullptr;
  Entry& entry = entries_.front();
  if (entry.work == nullptr) return &entry.frame;
  if (!entry.work->done) return nullptr;
  entry.work->over.wait(false);  // it is about to be
  Finish(entry);
  return &entry.frame;
}

void SealQueue::AwaitFront() {
  const Entry& entry = entries_.front();
  if (entry.work != nullptr) entry.work->done.wait(false);
}

void SealQueue::Finish(Entry& entry) {
  const std::shared_ptr<Work> work = std::move(entry.work);
  v1::Chunk* const chunk = entry.frame.frame.mutable_chunk();
  if (work->ok) entry.frame.payload = std::move(work->payload);
  if (work->seals) {
    chunk->set_tag(work->tag);
  } else if (!work->ok) {
    entry.frame.opened = absl::DataLossError(
        absl::StrCat("chunk ", chunk->index(), " does not open: it was changed, or is another's"));
  }
}

}  // namespace atl
