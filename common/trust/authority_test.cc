// The authority's and the coordinator's certificates under clocks that are wrong.

#include "common/trust/authority.h"

#include <catch2/catch.hpp>
#include <cstdlib>

namespace atl {
namespace {

constexpr int64_t kNow = 1'700'000'000, kDay = 86400;

AuthorityFolder MakeFolder() {
  std::string name = std::string(std::getenv("TEST_TMPDIR")) + "/authority-XXXXXX";
  REQUIRE(mkdtemp(name.data()) != nullptr);
  const AuthorityFolder folder(name + "/trust");
  REQUIRE(folder.Make("c0123456789abcde", {"localhost"}, kNow).ok());
  return folder;
}

bool IsValidAt(const AuthorityFolder& folder, int64_t now) {
  const auto facts = folder.coordinator().Certificate();
  REQUIRE(facts.ok());
  return facts->from_unix_s <= now && now <= facts->until_unix_s;
}

TEST_CASE("coordinators_certificate_is_valid_now_whatever_clock_it_was_signed_by") {
  const AuthorityFolder folder = MakeFolder();
  for (const int64_t days : {400, 0, 3000, 0, 200, 0}) {
    const int64_t now = kNow + days * kDay;
    REQUIRE(folder.RenewCoordinator(now).ok());
    CHECK(IsValidAt(folder, now));
  }
}

TEST_CASE("authority_signs_nothing_by_a_clock_at_which_it_is_not_valid_itself") {
  const AuthorityFolder folder = MakeFolder();
  for (const int64_t days : {-3653, -1, 3700}) {
    const absl::Status renewed = folder.RenewCoordinator(kNow + days * kDay);
    CHECK(absl::IsFailedPrecondition(renewed));
  }
  CHECK(IsValidAt(folder, kNow));
}

}  // namespace
}  // namespace atl
