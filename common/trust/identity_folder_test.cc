#include "common/trust/identity_folder.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "common/net/security.h"
#include "tests/faults/io_faults.h"

namespace atl {
namespace {

IdentityFolder FreshFolder() {
  std::string name = std::string(std::getenv("TEST_TMPDIR")) + "/identity-XXXXXX";
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return IdentityFolder(name + "/identity");
}

int GetFileMode(const std::string& path) {
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  return static_cast<int>(info.st_mode & 0777);
}

TEST_CASE("keys_are_made_once_and_for_their_owner_alone") {
  const IdentityFolder folder = FreshFolder();
  const auto first = folder.MakeKeys();
  REQUIRE(first.ok());
  const auto second = folder.MakeKeys();
  CHECK(second->key == first->key);
  CHECK(second->curve_public_key == first->curve_public_key);
  CHECK(GetFileMode(folder.path()) == 0700);
  CHECK(GetFileMode(folder.tls().key_path) == 0600);
  CHECK(GetFileMode(folder.curve_key_path()) == 0600);
  CHECK_FALSE(*folder.Exists());
}

TEST_CASE("a_key_that_everybody_may_read_is_not_used") {
  const IdentityFolder folder = FreshFolder();
  REQUIRE(folder.MakeKeys().ok());
  REQUIRE(chmod(folder.tls().key_path.c_str(), 0644) == 0);
  CHECK(absl::IsInvalidArgument(folder.MakeKeys().status()));
}

TEST_CASE("a_folder_with_a_certificate_is_complete_and_a_renewal_replaces_it") {
  const IdentityFolder folder = FreshFolder();
  const auto keys = folder.MakeKeys();
  const KeyAndCertificate authority = MakeAuthority("c0123456789abcde", 0, 4'000'000'000).value();
  const auto signed_until = [&](int64_t until) {
    CertificateContents contents{{Role::kWorker, "w1"}, {}, keys->curve_public_key, 0, until};
    return SignRequest(authority, MakeRequest(keys->key).value(), contents).value();
  };
  REQUIRE(folder.Store(authority.certificate, signed_until(1000)).ok());
  CHECK(*folder.Exists());
  CHECK(folder.Certificate()->until_unix_s == 1000);
  CHECK(folder.Authority()->cluster == "c0123456789abcde");
  REQUIRE(folder.ReplaceCertificate(signed_until(2000)).ok());
  CHECK(folder.Certificate()->until_unix_s == 2000);
}

TEST_CASE("keys_that_cannot_be_looked_at_are_not_made_anew") {
  const IdentityFolder folder = FreshFolder();
  const auto first = folder.MakeKeys();
  REQUIRE(first.ok());
  for (const char* call : {"stat", "access", "open", "pread"}) {
    for (int at = 1; at <= 3; ++at) {
      const InjectedFault fault({folder.path(), call, EIO, at});
      const auto again = folder.MakeKeys();
      if (again.ok()) CHECK(again->key == first->key);
    }
  }
  CHECK(folder.MakeKeys()->key == first->key);
  CHECK(folder.MakeKeys()->curve_public_key == first->curve_public_key);
  const InjectedFault fault({folder.path(), "stat", EIO});
  CHECK_FALSE(folder.Exists().ok());
}

}  // namespace
}  // namespace atl
