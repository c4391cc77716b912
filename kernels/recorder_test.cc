#include "kernels/recorder.h"

#include <catch2/catch.hpp>
#include <vector>

namespace atl {
namespace {

// A stream that writes down what is enqueued on it, or what the record that is being made has.
class Tape final : public Graphs {
 public:
  void Enqueue(int what) { (recording_ ? kept_ : done).push_back(what); }

  absl::Status Begin(Stream&) override {
    if (refuses_to_begin) return absl::UnavailableError("no records today");
    recording_ = true;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Graph>> End(Stream&) override {
    recording_ = false;
    auto made = std::make_unique<Record>();
    made->what.swap(kept_);
    if (refuses_to_end) return absl::UnimplementedError("7 cannot be kept");
    return made;
  }
  void Launch(Stream&, Graph& graph) override {
    for (const int what : static_cast<Record&>(graph).what) done.push_back(what);
  }

  std::vector<int> done;
  bool refuses_to_begin = false, refuses_to_end = false;

 private:
  struct Record final : Graph {
    std::vector<int> what;
  };
  bool recording_ = false;
  std::vector<int> kept_;
};

constexpr WorkKey kForward = {1}, kBackward = {2};

struct Fixture {
  // The work enqueues 7 and then 8; returns whether it was called.
  int Repeats(const WorkKey& key, const absl::Status& status = absl::OkStatus()) {
    int calls = 0;
    const absl::Status got = recorder.Repeat(stream, key, [&] {
      ++calls;
      tape.Enqueue(7);
      tape.Enqueue(8);
      return status;
    });
    REQUIRE(got == status);
    return calls;
  }

  Tape tape;
  Stream stream;
  Recorder recorder{&tape, 4};
};

using Done = std::vector<int>;

TEST_CASE("work is enqueued, then recorded, then launched without another call of the work") {
  Fixture fixture;
  REQUIRE(fixture.Repeats(kForward) == 1);
  REQUIRE(fixture.recorder.counts().recorded == 0);
  REQUIRE(fixture.Repeats(kForward) == 1);
  REQUIRE(fixture.recorder.counts().recorded == 1);
  REQUIRE(fixture.Repeats(kBackward) == 1);
  REQUIRE(fixture.Repeats(kForward) == 0);
  REQUIRE(fixture.Repeats(kForward) == 0);
  REQUIRE(fixture.recorder.counts().replayed == 2);
  REQUIRE(fixture.recorder.counts().trouble.empty());
  REQUIRE(fixture.tape.done == Done{7, 8, 7, 8, 7, 8, 7, 8, 7, 8});  // each time once
}

TEST_CASE("what is forgotten is recorded anew") {
  Fixture fixture;
  for (int i = 0; i < 3; ++i) fixture.Repeats(kForward);
  fixture.recorder.Forget();
  REQUIRE(fixture.Repeats(kForward) == 1);
  REQUIRE(fixture.Repeats(kForward) == 1);
  REQUIRE(fixture.Repeats(kForward) == 0);
  REQUIRE(fixture.recorder.counts().recorded == 2);
}

TEST_CASE("what cannot be recorded is enqueued as usual, and the reason is reported") {
  Fixture fixture;
  SECTION("from the start") { fixture.tape.refuses_to_begin = true; }
  SECTION("half way") { fixture.tape.refuses_to_end = true; }
  fixture.Repeats(kForward);
  fixture.Repeats(kForward);
  fixture.tape.refuses_to_begin = fixture.tape.refuses_to_end = false;
  REQUIRE(fixture.Repeats(kForward) == 1);
  REQUIRE(fixture.tape.done == Done{7, 8, 7, 8, 7, 8});
  REQUIRE(fixture.recorder.counts().recorded == 0);
  REQUIRE_FALSE(fixture.recorder.counts().trouble.empty());
  fixture.Repeats(kBackward);
  fixture.Repeats(kBackward);
  REQUIRE(fixture.recorder.counts().recorded == 1);
}

TEST_CASE("work that fails while it is recorded leaves no record") {
  Fixture fixture;
  fixture.Repeats(kForward);
  fixture.Repeats(kForward, absl::AbortedError("a peer has failed"));
  REQUIRE(fixture.tape.done == Done{7, 8});
  REQUIRE(fixture.recorder.counts().recorded == 0);
  fixture.Repeats(kForward);
  REQUIRE(fixture.recorder.counts().recorded == 1);
}

TEST_CASE("records are bounded") {
  Fixture fixture;
  for (int64_t key = 0; key < 6; ++key) {
    for (int i = 0; i < 3; ++i) fixture.Repeats({key});
  }
  REQUIRE(fixture.recorder.counts().recorded == 4);
  REQUIRE(fixture.recorder.counts().trouble == "there are more than 4 units of work");
  REQUIRE(fixture.tape.done.size() == 2 * 18);
}

}  // namespace
}  // namespace atl
