#include "common/net/control/reachability.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <thread>

namespace atl {
namespace {

// Listens on loopback and answers the first connection with `answer`.
class Listener {
 public:
  explicit Listener(std::string answer) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
    REQUIRE(listen(fd_, 1) == 0);
    socklen_t size = sizeof at;
    getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    thread_ = std::thread([this, answer] {
      const int peer = accept(fd_, nullptr, nullptr);
      if (peer < 0) return;
      char hello[64];
      [[maybe_unused]] const ssize_t got = recv(peer, hello, sizeof hello, 0);
      [[maybe_unused]] const ssize_t sent = send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
      close(peer);
    });
  }
  ~Listener() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  const std::string& address() const { return address_; }

 private:
  int fd_ = -1;
  std::string address_;
  std::thread thread_;
};

TEST_CASE("probe_distinguishes_no_listener_tls_and_other_protocols") {
  const std::string alert("\x15\x03\x03\x00\x02\x02\x28", 7);
  CHECK(ProbeReachability(Listener(alert).address()) == Reachability::kTlsAnswers);
  CHECK(ProbeReachability(Listener("HTTP/1.1 400 Bad Request\r\n").address()) ==
        Reachability::kOtherAnswers);
  std::string closed_address;
  {
    const Listener closed("");
    closed_address = closed.address();
  }
  CHECK(ProbeReachability(closed_address) == Reachability::kRefused);
  CHECK(ProbeReachability("no-such-host.invalid:7000") == Reachability::kUnknownHost);
}

TEST_CASE("every_outcome_has_a_text_of_its_own_that_quotes_no_library") {
  const std::string said = "failed to connect to all addresses; last error: SSL_ERROR_SSL";
  std::set<std::string> texts;
  for (const bool with_tls : {false, true}) {
    for (const Reachability reachability :
         {Reachability::kUnknownHost, Reachability::kRefused, Reachability::kNoAnswer,
          Reachability::kSilent, Reachability::kTlsAnswers, Reachability::kOtherAnswers}) {
      const std::string text = ExplainReachability({"host:1", with_tls}, reachability, said);
      CHECK(text.find("SSL_ERROR") == std::string::npos);
      texts.insert(text);
    }
  }
  CHECK(texts.size() == 8);  // four do not depend on TLS
}

TEST_CASE("a_summary_quotes_what_a_standby_says_and_no_library") {
  CHECK(SummarizeFailure("this coordinator is a standby") == "this coordinator is a standby");
  const std::string prefix = "failed to connect to all addresses; last error: UNKNOWN: ";
  std::set<std::string> texts = {SummarizeFailure("")};
  for (const char* said :
       {"Failed to connect to remote host: Connection refused",
        "Tls handshake failed: SSL_ERROR_SSL: error:0A000086:certificate verify failed",
        "Tls handshake failed: Role Check failed: it is not a coordinator's"}) {
    const std::string text = SummarizeFailure(prefix + said);
    CHECK(text.find("last error") == std::string::npos);
    texts.insert(text);
  }
  CHECK(texts.size() == 4);
}

}  // namespace
}  // namespace atl
