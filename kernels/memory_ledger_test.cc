#include "kernels/memory_ledger.h"

#include <catch2/catch.hpp>

#include "kernels/cpu/cpu.h"

namespace atl {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST_CASE("a device's memory is bounded, and messages say by what") {
  MemoryLedger ledger("H200 GPU-1", 1000 * kMiB);
  int first = 0, second = 0;
  REQUIRE(ledger.Take(600 * kMiB).ok());
  ledger.Placed(&first, 600 * kMiB);
  REQUIRE(ledger.Take(401 * kMiB).message() ==
          "out of memory on H200 GPU-1: 401.0 MiB wanted, 600.0 MiB of 1000.0 MiB held");
  REQUIRE(ledger.Take(400 * kMiB).ok());
  ledger.Placed(&second, 400 * kMiB);
  ledger.GiveBack(&first);
  REQUIRE(ledger.use().in_use_bytes == 400 * kMiB);
  REQUIRE(ledger.use().peak_bytes == 1000 * kMiB);
  REQUIRE(ledger.use().limit_bytes == 1000 * kMiB);
  REQUIRE(ledger.Take(600 * kMiB).ok());
  REQUIRE(
      ledger.Refused(600 * kMiB, 17).message() ==
      "out of memory on H200 GPU-1: 600.0 MiB wanted, 400.0 MiB held by this process, 17 B free "
      "on the device (fragmented, or in use by other processes)");
  ledger.ForgetPeak();
  REQUIRE(ledger.use().peak_bytes == 400 * kMiB);
}

TEST_CASE("backends of one device share its bound, and each counts its own") {
  const auto bound = std::make_shared<MemoryBound>(100);
  MemoryLedger compute("H200", bound), communication("H200", bound);
  int buffer = 0;
  REQUIRE(compute.Take(70).ok());
  compute.Placed(&buffer, 70);
  REQUIRE(communication.Take(31).message() ==
          "out of memory on H200: 31 B wanted, 70 B of 100 B held");
  REQUIRE(communication.Take(30).ok());
  REQUIRE(communication.use().in_use_bytes == 30);
  REQUIRE(communication.use().limit_bytes == 100);
  compute.GiveBack(&buffer);
  REQUIRE(communication.Take(70).ok());
  REQUIRE(compute.use().peak_bytes == 70);
  REQUIRE(communication.Refused(70, 5).message().find("30 B held by this process") !=
          absl::string_view::npos);
  REQUIRE(bound->in_use_bytes() == 30);
}

TEST_CASE("the CPU's memory can be bounded, and what is given back can be taken again") {
  const auto backend = NewCpuBackend(1, kMiB);
  auto most = backend->Allocate(kMiB - 100);
  REQUIRE(most.ok());
  const absl::Status refused = backend->Allocate(101).status();
  REQUIRE(absl::IsResourceExhausted(refused));
  REQUIRE(refused.message() ==
          "out of memory on the CPU: 101 B wanted, 1023.9 KiB of 1.0 MiB held");
  REQUIRE(backend->AllocateHost(2 * kMiB).ok());  // is no device's memory
  *most = Buffer();
  REQUIRE(backend->Memory().in_use_bytes == 0);
  REQUIRE(backend->Memory().peak_bytes == kMiB - 100);
  REQUIRE(backend->Allocate(kMiB).ok());
}

}  // namespace
}  // namespace atl
