#include "bench/collectives/gloo_group.h"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include <thread>

namespace atl::bench {

GlooGroup::GlooGroup(int size, Duration timeout) : members_(size) {
  ::gloo::rendezvous::HashStore store;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ::gloo::transport::tcp::attr attributes;
      attributes.hostname = "127.0.0.1";
      std::shared_ptr<::gloo::transport::Device> device =
          ::gloo::transport::tcp::CreateDevice(attributes);
      const auto context = std::make_shared<::gloo::rendezvous::Context>(rank, size);
      context->setTimeout(std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
      context->connectFullMesh(store, device);
      members_[rank] = context;
    });
  }
}

void GlooGroup::AllReduceAll(std::vector<std::vector<float>>& numbers, int calls) {
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ::gloo::AllreduceOptions options(members_[rank]);
      options.setAlgorithm(::gloo::AllreduceOptions::Algorithm::RING);
      options.setOutput(numbers[rank].data(), numbers[rank].size());
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&::gloo::sum<float>));
      for (int call = 0; call < calls; ++call) ::gloo::allreduce(options);
    });
  }
}

}  // namespace atl::bench
