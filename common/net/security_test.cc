#include "common/net/security.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "absl/strings/match.h"
#include "common/net/tcp_endpoint.h"

namespace atl {
namespace {

bool Says(const absl::Status& status, absl::string_view text) {
  INFO(status.ToString());
  const bool says = absl::StrContains(status.message(), text);
  CHECK(says);
  return says;
}

std::string FreshPath() {
  std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/keys-XXXXXX");
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  return folder + "/key";
}

TEST_CASE("a key file is for its owner only and gives the pair back") {
  const std::string path = FreshPath();
  const KeyPair keys = GenerateKeyPair().value();
  REQUIRE(WriteCurveKey(keys, path).ok());
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  REQUIRE((info.st_mode & 0777) == 0600);
  REQUIRE(ReadCurveKey(path)->secret_key == keys.secret_key);
  REQUIRE(ReadCurveKey(path)->public_key == keys.public_key);
  REQUIRE(ReadCurveKey("")->empty());
  REQUIRE(Says(WriteCurveKey(keys, path), "File exists; remove it first"));

  REQUIRE(chmod(path.c_str(), 0644) == 0);
  REQUIRE(Says(ReadCurveKey(path).status(), "all users can read it; chmod 600"));
  REQUIRE(Says(ReadCurveKey(path + "x").status(), "cannot open"));
}

TEST_CASE("a list of clients has a key a line") {
  const std::string path = FreshPath();
  const std::string key = GenerateKeyPair()->public_key;
  std::ofstream(path) << "# who may push\n\n" << key << "  worker-1\n";
  REQUIRE(ReadCurveClients(path).value() == std::vector<std::string>{key});
  std::ofstream(path) << "#\nworker-1 " << key << "\n";
  REQUIRE(Says(ReadCurveClients(path).status(), ":2: does not begin with a Z85 key"));
}

TEST_CASE("a server that wants keys and a client without any: the message says how to get one") {
  const std::string server = GenerateKeyPair()->public_key;
  REQUIRE(Says(CheckSecurity(ClientSecurity{}, "tcp://10.0.0.1:1", server), "`atoll keygen`"));
  REQUIRE(
      CheckSecurity(ClientSecurity{.keys = GenerateKeyPair().value()}, "tcp://10.0.0.1:1", server)
          .ok());
}

TEST_CASE("the error for an endpoint without tcp:// names the form, not missing keys") {
  for (const char* good : {"tcp://127.0.0.1:7100", "tcp://[::1]:*", "tcp://*:7100", "tcp://ps:0"}) {
    CAPTURE(good);
    CHECK(CheckTcpEndpoint(good).ok());
  }
  for (const char* bad : {"", "tcp://", "tcp://host", "tcp://:1", "tcp://host:65536", "udp://a:1",
                          "tcp://::1:7100", "7100"}) {
    CAPTURE(bad);
    CHECK(CheckTcpEndpoint(bad).message() ==
          absl::StrCat("\"", bad, "\" must be tcp://ADDRESS:PORT"));
  }
  const std::string said =
      "\"127.0.0.1:7100\" must be tcp://ADDRESS:PORT; did you mean tcp://127.0.0.1:7100?";
  CHECK(CheckSecurity(ServerSecurity{}, "127.0.0.1:7100").message() == said);
  CHECK(CheckSecurity(ClientSecurity{}, "127.0.0.1:7100", "").message() == said);
}

TEST_CASE("an endpoint to listen at may have a range of ports, and one to connect to may not") {
  for (const char* good : {"tcp://10.0.0.5:7200-7209", "tcp://[::1]:1-65535", "tcp://h:7-7"}) {
    CAPTURE(good);
    CHECK(CheckListenEndpoint(good).ok());
    CHECK_FALSE(CheckTcpEndpoint(good).ok());
  }
  for (const char* bad : {"tcp://h:0-9", "tcp://h:9-8", "tcp://h:1-65536", "tcp://h:1-",
                          "tcp://h:-", "tcp://h:1-2-3", "tcp://h:*-9", "tcp://:1-2", "h:1-2"}) {
    CAPTURE(bad);
    CHECK_FALSE(CheckListenEndpoint(bad).ok());
  }
  CHECK(CheckListenEndpoint("tcp://my-host:7").ok());
}

TEST_CASE("plaintext beyond loopback: the message names both flags that would do") {
  const absl::Status refused = CheckSecurity(ServerSecurity{}, "tcp://10.0.0.1:7100");
  CHECK(Says(refused, "--curve-key"));
  CHECK(Says(refused, "--insecure"));
  CHECK(
      CheckSecurity(ServerSecurity{.allow_plaintext_beyond_loopback = true}, "tcp://10.0.0.1:7100")
          .ok());
}

}  // namespace
}  // namespace atl
