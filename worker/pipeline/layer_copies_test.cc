// Copies lie next to what they are of, in memory that is taken once.

#include "worker/pipeline/layer_copies.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "kernels/testing/fake_device.h"
#include "kernels/testing/gate.h"
#include "kernels/testing/reference/reference.h"

namespace atl::worker {
namespace {

constexpr int64_t kSizes[] = {100, 1, 37};

bool Always(int64_t) { return true; }

// A device with three tensors of ones.
struct Layers {
  Layers() {
    for (const int64_t size : kSizes) {
      memory.push_back(*backend->Allocate(4 * size));
      tensors.emplace_back(memory.back().data(), DType::kFloat32, 1, size);
      const std::vector<float> ones(static_cast<size_t>(size), 1.0f);
      backend->CopyToDevice(*stream, tensors.back(), ones.data());
      REQUIRE(backend->Synchronize(*stream).ok());
    }
  }
  void Doubled() {
    for (const Tensor& x : tensors) backend->Run(*stream, Scale{x, 2.0f});
  }

  testing::FakeDevice device{"fake", NewReferenceBackend};
  testing::Gate bus;
  std::unique_ptr<Backend> backend = device.NewBackend();
  std::unique_ptr<Stream> stream = *backend->NewStream();
  std::vector<Buffer> memory;
  std::vector<Tensor> tensors;
  Staging staging{device.NewBackend([this] { bus.Pass(); })};
  LayerCopies copies{backend.get(), &staging};
};

std::vector<float> Read(LayerCopies& copies, size_t index) {
  std::vector<float> values(static_cast<size_t>(kSizes[index]));
  REQUIRE(copies.Read(index, 0, values).ok());
  return values;
}

TEST_CASE("a snapshot is of the point where it was taken") {
  Layers layers;
  testing::Gate computing;
  computing.Close();
  testing::EnqueueOnFake(*layers.backend, *layers.stream, [&] { computing.Pass(); });
  layers.Doubled();
  REQUIRE(*layers.copies.Take(*layers.stream, layers.tensors, Always));
  layers.Doubled();
  computing.Open();
  for (size_t i = 0; i < 3; ++i) {
    CHECK(Read(layers.copies, i) == std::vector<float>(static_cast<size_t>(kSizes[i]), 2.0f));
  }
}

TEST_CASE("what is written is not overtaken by what the device still did with the memory") {
  Layers layers;
  REQUIRE(*layers.copies.Prepare(*layers.stream, layers.tensors, Always));
  testing::Gate computing;
  computing.Close();
  testing::EnqueueOnFake(*layers.backend, *layers.stream, [&] { computing.Pass(); });
  REQUIRE(*layers.copies.Take(*layers.stream, layers.tensors, Always));
  REQUIRE(*layers.copies.Prepare(*layers.stream, layers.tensors, Always));
  computing.Open();
  std::vector<float> values(100);
  std::iota(values.begin(), values.end(), 3.0f);
  REQUIRE(layers.copies.Write(0, values).ok());
  CHECK(Read(layers.copies, 0) == values);
}

TEST_CASE("memory is kept, grows only where there is room, and goes when it is dropped") {
  Layers layers;
  const int64_t before = layers.backend->Memory().in_use_bytes;
  const std::vector<Tensor> first = {layers.tensors[0]};
  REQUIRE(*layers.copies.Take(*layers.stream, first, Always));
  const int64_t one = layers.copies.bytes();
  CHECK(layers.backend->Memory().in_use_bytes == before + one);
  int64_t wanted = 0;
  const auto no_room = [&](int64_t bytes) {
    wanted = bytes;
    return false;
  };
  REQUIRE_FALSE(*layers.copies.Take(*layers.stream, layers.tensors, no_room));
  CHECK(layers.backend->Memory().in_use_bytes == before + one);
  REQUIRE(*layers.copies.Take(*layers.stream, first, no_room));  // needs none
  REQUIRE(*layers.copies.Take(*layers.stream, layers.tensors, Always));
  CHECK(layers.copies.bytes() == one + wanted);
  CHECK(layers.backend->Memory().in_use_bytes == before + one + wanted);
  layers.copies.Drop();
  CHECK(layers.backend->Memory().in_use_bytes == before);
}

}  // namespace
}  // namespace atl::worker
