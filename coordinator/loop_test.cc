// The loop with a store in memory that counts transactions.

#include "coordinator/loop.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/crash_scope.h"
#include "common/version.h"

namespace atl {
namespace {

// The store's work, which outlives it.
struct Stored {
  int transactions = 0;
  int events = 0;  // lines of the log
  std::map<std::string, StoreRecord> records;
  absl::Status next = absl::OkStatus();
};

class MemoryStore : public Store {
 public:
  explicit MemoryStore(Stored* stored) : stored_(stored) {}
  int64_t sequence() const override { return stored_->transactions; }
  const std::string& name() const override { return name_; }
  absl::StatusOr<std::vector<StoreRecord>> ReadAll() override {
    std::vector<StoreRecord> records;
    for (const auto& [key, record] : stored_->records) records.push_back(record);
    return records;
  }
  absl::Status Apply(const std::vector<StoreWrite>& writes, int64_t) override {
    if (!stored_->next.ok()) return stored_->next;
    ++stored_->transactions;
    for (const StoreWrite& write : writes) {
      const bool line = std::holds_alternative<EventRecord>(write.record);
      stored_->events += line;
      if (line) continue;
      stored_->records.erase(MakeRecordKey(write.record));
      if (!write.erase) stored_->records.emplace(MakeRecordKey(write.record), write.record);
    }
    return absl::OkStatus();
  }
  absl::Status Fill(const StoreContents&) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<LogEntry>> ReadLog(const LogQuery&, int64_t) override {
    return std::vector<LogEntry>();
  }
  absl::StatusOr<int64_t> FindLogTail(const LogQuery&, int64_t) override { return 0; }
  absl::StatusOr<int64_t> BackUp(const std::string&) const override { return 0; }

 private:
  Stored* const stored_;
  const std::string name_ = "memory";
};

// A loop that runs on the test's thread, with what it has sent.
struct Harness {
  Harness() {
    std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/loop-XXXXXX");
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    state_dir = folder;
    Start();
  }
  // Again, with what is stored.
  void Start() {
    loop.reset();
    CoordinatorOptions options;
    options.software_version = kSoftwareVersion;
    loop = CoordinatorLoop::Open(std::make_unique<MemoryStore>(&stored), state_dir, "", "", options)
               .value();
    loop->send_to_worker = [this](const ToWorker& m) { sent.push_back(m); };
    loop->send_to_server = [](const ToServer&) {};
    before = stored.transactions;
  }

  void PostHello(int worker) {
    WorkerHello hello;
    hello.software_version = kSoftwareVersion;
    REQUIRE(loop->PostEvent([this, worker, hello](Instant now) {
      loop->Step(now, FromWorker{absl::StrCat("w", worker), 1, hello});
    }));
  }
  // Runs all that was posted; what the loop returns.
  absl::Status Run() {
    loop->Post([this](Instant) { loop->Stop(); });
    return loop->Run();
  }
  int transactions() const { return stored.transactions - before; }

  Stored stored;
  std::string state_dir;
  std::vector<ToWorker> sent;
  std::unique_ptr<CoordinatorLoop> loop;
  int before = 0;  // transactions of the start
};

TEST_CASE("member_events_that_wait_together_are_stored_in_one_transaction_and_then_sent") {
  Harness harness;
  constexpr int kWorkers = 200;
  for (int i = 0; i < kWorkers; ++i) harness.PostHello(i);
  size_t sent_before = 0;
  harness.loop->Post([&](Instant) { sent_before = harness.sent.size(); });
  REQUIRE(harness.Run().ok());
  CHECK(harness.stored.events >= kWorkers);
  CHECK(harness.transactions() <= 3);
  CHECK(sent_before >= kWorkers);  // each is welcome before a task that is not an event runs
}

TEST_CASE("transactions_of_many_events_are_bounded") {
  Harness harness;
  constexpr int kWorkers = 2000;
  for (int i = 0; i < kWorkers; ++i) harness.PostHello(i);
  REQUIRE(harness.Run().ok());
  CHECK(harness.stored.events >= kWorkers);
  CHECK(harness.transactions() >= kWorkers / 256);
  CHECK(harness.transactions() <= kWorkers / 100);
}

TEST_CASE("nothing_of_gathered_events_is_sent_when_the_store_fails") {
  Harness harness;
  for (int i = 0; i < 10; ++i) harness.PostHello(i);
  harness.stored.next = absl::ResourceExhaustedError("full");
  CHECK(harness.loop->Run() == harness.stored.next);
  CHECK(harness.sent.empty());
}

TEST_CASE("members are spared while the loop itself is late") {
  using std::chrono::milliseconds;
  const Instant start = Instant() + milliseconds(10'000);
  const auto at = [&](int ms) { return start + milliseconds(ms); };
  Lateness lateness;
  CHECK_FALSE(lateness.Measure(at(0), kNever, std::nullopt));
  CHECK_FALSE(lateness.Measure(at(100), at(0), std::nullopt));
  CHECK(lateness.Measure(at(101), at(0), std::nullopt) == std::chrono::milliseconds(101));
  // A queue reports once a second by how much it has become longer.
  CHECK_FALSE(lateness.Measure(at(999), kNever, at(0)));
  CHECK(lateness.Measure(at(1000), kNever, at(0)) == std::chrono::seconds(1));
  CHECK_FALSE(lateness.Measure(at(1001), kNever, at(0)));
  CHECK_FALSE(lateness.Measure(at(1999), kNever, at(500)));
  CHECK(lateness.Measure(at(2000), kNever, at(500)) == std::chrono::milliseconds(500));
  CHECK(lateness.Measure(at(3000), kNever, at(1500)) == Duration(0));
}

TEST_CASE("a_new_connection_of_a_member_is_preceded_by_what_is_pending_for_it") {
  Harness harness;
  harness.PostHello(1);
  harness.PostHello(2);
  size_t after_other = 99, after_own = 99;
  harness.loop->PostEvent([&](Instant) {
    harness.loop->CommitFor("w3");
    after_other = harness.sent.size();
    harness.loop->CommitFor("w2");
    after_own = harness.sent.size();
  });
  REQUIRE(harness.Run().ok());
  CHECK(after_other == 0);
  CHECK(after_own == 2);
}

// A process that recovers what is stored, and ends so while it handles the job.
void DiesAt(Harness& harness, const JobId& job, int signal) {
  harness.loop.reset();  // with its threads
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    harness.Start();
    harness.loop->PostEvent([&](Instant) {
      const CrashScope scope(job);
      raise(signal);
      raise(signal);  // a handler of the first returns here
    });
    static_cast<void>(harness.Run());
    _exit(1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == signal);
}

TEST_CASE("a_job_that_ends_the_coordinator_when_it_is_handled_is_failed_and_ends_no_more") {
  Harness harness;
  JobSpec spec;
  spec.name = "lm";
  spec.model.hidden = 8;
  spec.model.layers = 2;
  spec.model.heads = 2;
  spec.data.path = "text";
  spec.data.sequence_length = 10;
  spec.inner.batch_sequences = 1;
  spec.outer.steps_per_round = 4;
  spec.schedule.train_tokens = 1000;
  absl::Status submitted = absl::UnknownError("no reply");
  harness.loop->Post([&](Instant now) {
    harness.loop->Request(
        now,
        [&](int64_t request) {
          return SubmitJob{request, spec, 1};
        },
        [&](const Reply& reply) { submitted = reply.status; });
  });
  REQUIRE(harness.Run().ok());
  REQUIRE(submitted.ToString() == "OK");
  const auto starts = [&] {
    harness.Start();
    REQUIRE(harness.Run().ok());  // recovers, and handles all jobs
    return harness.loop->core().FindState("lm-1");
  };
  SECTION("by_a_crash_at_the_next_start") {
    DiesAt(harness, "lm-1", SIGSEGV);
    CHECK(starts() == JobState::kFailed);
  }
  SECTION("by_a_kill_at_the_third_in_a_row") {
    DiesAt(harness, "lm-1", SIGKILL);
    DiesAt(harness, "lm-1", SIGKILL);
    DiesAt(harness, "lm-1", SIGKILL);
    CHECK(starts() == JobState::kFailed);
  }
  SECTION("not_by_kills_of_which_one_was_at_something_else") {
    DiesAt(harness, "lm-1", SIGKILL);
    DiesAt(harness, "lm-1", SIGKILL);
    DiesAt(harness, "", SIGKILL);
    DiesAt(harness, "lm-1", SIGKILL);
    CHECK(starts() == JobState::kQueued);
  }
}

}  // namespace
}  // namespace atl
