#include "worker/pipeline/stream_clock.h"

#include <catch2/catch.hpp>
#include <future>

#include "kernels/testing/fake_device.h"
#include "kernels/testing/reference/reference.h"

namespace atl::worker {
namespace {

// The device is held between two points; the host is not.
TEST_CASE("points say when the device passes them, not when they are made") {
  const testing::FakeDevice device("fake", NewReferenceBackend);
  const std::unique_ptr<Backend> backend = device.NewBackend();
  const std::unique_ptr<Stream> stream = *backend->NewStream();
  StreamClock clock(*backend, *stream);
  for (int step = 0; step < 2; ++step) {
    REQUIRE(clock.Start().ok());
    const int before = *clock.Mark();
    REQUIRE(backend->Synchronize(*stream).ok());
    const Instant begun = SteadyNow();
    std::promise<void> open;
    testing::EnqueueOnFake(*backend, *stream, [&] { open.get_future().wait(); });
    const int after = *clock.Mark();
    const Duration held = SteadyNow() - begun;
    open.set_value();
    REQUIRE(backend->Synchronize(*stream).ok());
    CHECK(clock.At(before) <= begun);
    CHECK(clock.At(after) - clock.At(before) >= held);
  }
}

}  // namespace
}  // namespace atl::worker
