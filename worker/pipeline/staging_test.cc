// Layers are copied whole, in order with what the device computes, whatever their size.

#include "worker/pipeline/staging.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/testing/fake_device.h"
#include "kernels/testing/gate.h"
#include "kernels/testing/reference/reference.h"

namespace atl::worker {
namespace {

constexpr int64_t kBlock = 64;

// A device with a tensor on it.
struct OnDevice {
  OnDevice(DType dtype, int64_t size)
      : buffer(*backend->Allocate(size * GetElementSize(dtype))),
        x(buffer.data(), dtype, 1, size) {}

  testing::FakeDevice device{"fake", NewReferenceBackend};
  std::unique_ptr<Backend> backend = device.NewBackend();
  std::unique_ptr<Stream> stream = *backend->NewStream();
  std::unique_ptr<Event> event = *backend->NewEvent();
  Buffer buffer;
  Tensor x;
};

std::vector<float> Numbers(int64_t size) {
  std::vector<float> values(static_cast<size_t>(size));
  std::iota(values.begin(), values.end(), 0.5f);
  return values;
}

TEST_CASE("what is written is read again, in no, one or many blocks, of f32 and f64") {
  const DType dtype = GENERATE(DType::kFloat32, DType::kFloat64);
  const int64_t block = kBlock / GetElementSize(dtype);
  for (const int64_t size : {int64_t{0}, int64_t{1}, block, block + 1, 5 * block - 1, 6 * block}) {
    CAPTURE(size);
    OnDevice a(dtype, size);
    Staging staging(a.device.NewBackend(), kBlock);
    const std::vector<float> values = Numbers(size);
    REQUIRE(staging.Write(a.x, *a.event, values).ok());
    std::vector<float> read(values.size());
    REQUIRE(staging.Read(a.x, *a.event, read).ok());
    CHECK(read == values);
  }
}

TEST_CASE("a copy comes after what it is to come after, and the device's stream does not wait") {
  OnDevice a(DType::kFloat32, 100);
  testing::Gate computing, copying;
  Staging staging(a.device.NewBackend([&] { copying.Pass(); }), kBlock);
  const std::vector<float> values = Numbers(100);
  REQUIRE(staging.Write(a.x, *a.event, values).ok());

  computing.Close();
  copying.Close();
  testing::EnqueueOnFake(*a.backend, *a.stream, [&] { computing.Pass(); });
  a.backend->Run(*a.stream, Scale{a.x, 2.0f});
  a.backend->Record(*a.stream, *a.event);
  std::vector<float> read(values.size());
  absl::Status status;
  std::thread reads([&] { status = staging.Read(a.x, *a.event, read); });
  computing.Open();
  CHECK(a.backend->Synchronize(*a.stream).ok());  // the copy is delayed still
  copying.Open();
  reads.join();
  REQUIRE(status.ok());
  for (size_t i = 0; i < values.size(); ++i) REQUIRE(read[i] == 2 * values[i]);
}

}  // namespace
}  // namespace atl::worker
