#include "cli/connection.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <thread>

namespace atl::cli {
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

TEST_CASE("a_look_tells_nothing_tls_and_something_else_apart") {
  const std::string alert("\x15\x03\x03\x00\x02\x02\x28", 7);
  CHECK(LookAt(Listener(alert).address()) == Reach::kTlsAnswers);
  CHECK(LookAt(Listener("HTTP/1.1 400 Bad Request\r\n").address()) == Reach::kOtherAnswers);
  std::string gone;
  {
    const Listener closed("");
    gone = closed.address();
  }
  CHECK(LookAt(gone) == Reach::kRefused);
  CHECK(LookAt("no-such-host.invalid:7000") == Reach::kUnknownHost);
}

TEST_CASE("every_outcome_has_a_text_of_its_own_that_quotes_no_library") {
  const std::string said = "failed to connect to all addresses; last error: SSL_ERROR_SSL";
  std::set<std::string> texts;
  for (const bool with_tls : {false, true}) {
    for (const Reach reach : {Reach::kUnknownHost, Reach::kRefused, Reach::kNoAnswer,
                              Reach::kTlsAnswers, Reach::kOtherAnswers}) {
      const std::string text = ExplainReach({"host:1", with_tls}, reach, said);
      CHECK(text.find("SSL_ERROR") == std::string::npos);
      texts.insert(text);
    }
  }
  CHECK(texts.size() == 7);  // three do not depend on TLS
}

}  // namespace
}  // namespace atl::cli
