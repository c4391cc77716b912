// That the fake device is as strict as a real one, and that host communicators get along with it.

#include "kernels/testing/fake_device.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/testing/reference/reference.h"
#include "kernels/thread_communicator.h"

namespace atl::testing {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

// A device with a vector on it.
struct OnDevice {
  explicit OnDevice(std::vector<float> values)
      : buffer(*backend->Allocate(static_cast<int64_t>(4 * values.size()))),
        x(buffer.data(), DType::kFloat32, 1, static_cast<int64_t>(values.size())) {
    backend->CopyToDevice(*stream, x, values.data());
    REQUIRE(backend->Synchronize(*stream).ok());
  }
  std::vector<float> Read() {
    std::vector<float> values(static_cast<size_t>(x.size()));
    backend->CopyToHost(*stream, values.data(), x);
    REQUIRE(backend->Synchronize(*stream).ok());
    return values;
  }

  FakeDevice device{"fake", NewReferenceBackend};
  std::unique_ptr<Backend> backend = device.NewBackend();
  std::unique_ptr<Stream> stream = *backend->NewStream();
  Buffer buffer;
  Tensor x;
};

// Returns whether a process that does this survives.
bool Survives(const std::function<void()>& body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    close(STDERR_FILENO);  // what a sanitizer says of it would look like a failure
    body();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("only operations work on a device's memory") {
  OnDevice a({1, 2, 3});
  a.backend->Run(*a.stream, Scale{a.x, 2.0f});
  REQUIRE(a.Read() == std::vector<float>{2, 4, 6});
  REQUIRE(Survives([] {}));
  REQUIRE_FALSE(Survives([&] { a.x.f32()[0] = 1; }));
  REQUIRE_FALSE(Survives([&] { (void)*static_cast<const volatile float*>(a.x.f32()); }));
}

TEST_CASE("two backends of a device share its memory; their streams are ordered by events") {
  OnDevice a({1, 1});
  const std::unique_ptr<Backend> other = a.device.NewBackend();
  const std::unique_ptr<Stream> stream = *other->NewStream();
  const std::unique_ptr<Event> event = *a.backend->NewEvent();
  REQUIRE(a.backend->Passed(*event));
  std::mutex gate;
  gate.lock();
  EnqueueOnFake(*a.backend, *a.stream, [&] { const std::lock_guard wait(gate); });
  a.backend->Run(*a.stream, Scale{a.x, 3.0f});
  a.backend->Record(*a.stream, *event);
  other->Wait(*stream, *event);
  other->Run(*stream, AddScaled{a.x, a.x, a.x, 1.0f});
  REQUIRE_FALSE(a.backend->Passed(*event));  // calls return before their work is done
  gate.unlock();
  REQUIRE(other->Synchronize(*stream).ok());
  REQUIRE(a.backend->Passed(*event));
  REQUIRE(a.Read() == std::vector<float>{6, 6});
}

TEST_CASE("devices and hosts sum together through host memory") {
  OnDevice first({1, 2}), second({10, 20});
  std::vector<float> third = {100, 200};
  auto members = NewThreadCommunicators(3, kLong);
  const auto sum = [](Communicator& member, Backend& backend, Stream& stream, const Tensor& x) {
    ATOLL_CHECK(member.AllReduceSum(backend, stream, x).ok());
  };
  {
    std::jthread one([&] { sum(*members[0], *first.backend, *first.stream, first.x); });
    std::jthread two([&] { sum(*members[1], *second.backend, *second.stream, second.x); });
    const std::unique_ptr<Backend> host = NewReferenceBackend();
    const std::unique_ptr<Stream> stream = *host->NewStream();
    sum(*members[2], *host, *stream, Tensor(third.data(), DType::kFloat32, 1, 2));
  }
  REQUIRE(first.Read() == std::vector<float>{111, 222});
  REQUIRE(second.Read() == third);
  REQUIRE(third == std::vector<float>{111, 222});
}

}  // namespace
}  // namespace atl::testing
