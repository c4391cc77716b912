#include "common/net/proxy_tunnels.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/http/proxy.h"
#include "common/logging.h"

namespace atl {
namespace {

// Sets a variable of the environment while it exists.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

sockaddr_in MakeLoopbackAddress(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// A connection that closes by itself; reads wait at most a minute.
class Stream {
 public:
  explicit Stream(int descriptor) : descriptor_(descriptor) {
    const timeval limit{60, 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { close(descriptor_); }

  void Send(const std::string& text) {
    REQUIRE(send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(text.size()));
  }
  void EndSending() { shutdown(descriptor_, SHUT_WR); }
  // All until the text is there; "": the stream ended first.
  std::string ReadUntil(const std::string& end) {
    std::string read;
    for (;;) {
      char next[1 << 16];
      const ssize_t there = recv(descriptor_, next, sizeof next, MSG_PEEK);
      if (there <= 0) return "";
      const size_t before = read.size();
      read.append(next, static_cast<size_t>(there));
      const size_t at = read.find(end, before - std::min(before, end.size()));
      if (at != std::string::npos) read.resize(at + end.size());
      if (recv(descriptor_, next, read.size() - before, 0) < 0) return "";
      if (at != std::string::npos) return read;
    }
  }
  // False: a read that waits for as long as it may has had neither bytes nor an end.
  bool ended() {
    char byte;
    const ssize_t got = recv(descriptor_, &byte, 1, 0);
    return got == 0 || (got < 0 && errno != EAGAIN);
  }

 private:
  const int descriptor_;
};

std::unique_ptr<Stream> ConnectTo(const std::string& endpoint) {
  const sockaddr_in address =
      MakeLoopbackAddress(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return std::make_unique<Stream>(descriptor);
}

// A proxy that the test answers for, one connection after the other.
class ProxyByHand {
 public:
  ProxyByHand() : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = MakeLoopbackAddress(0);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(bind(listener_, any, size) == 0);
    REQUIRE(listen(listener_, 16) == 0);
    REQUIRE(getsockname(listener_, any, &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~ProxyByHand() { close(listener_); }

  std::string url() const { return absl::StrCat("http://user:secret@127.0.0.1:", port_); }
  int port() const { return port_; }
  std::unique_ptr<Stream> Accept() {
    return std::make_unique<Stream>(accept(listener_, nullptr, nullptr));
  }

 private:
  const int listener_;
  int port_ = 0;
};

constexpr const char* kEndpoint = "tcp://far.example:7100";
constexpr const char* kProxy = "http://proxy.example:3128";

TEST_CASE("hosts_without_a_proxy_are_reached_directly") {
  ProxyTunnels tunnels;
  REQUIRE(*tunnels.Route(kEndpoint) == kEndpoint);
  const Variable proxy("https_proxy", kProxy);
  {
    const Variable none("no_proxy", " far.example, ::1,.near.example,1.2.3.4,");
    REQUIRE(*tunnels.Route(kEndpoint) == kEndpoint);
    for (const char* direct : {"very.FAR.example", "[::1]", "a.near.example", "1.2.3.4"}) {
      REQUIRE(FindProxy(direct).empty());
    }
    for (const char* far : {"farther.example", "notfar.example", "[2001:db8::1]", "21.2.3.4"}) {
      REQUIRE(FindProxy(far) == kProxy);
    }
  }
  const Variable all("no_proxy", "*");
  REQUIRE(FindProxy("any.example").empty());
}

TEST_CASE("networks_of_no_proxy_are_reached_directly") {
  const Variable proxy("https_proxy", kProxy);
  const Variable none("no_proxy", "10.0.0.0/8,192.168.4.0/22,fd00::/8,10.1.2.3/99,/,1.2.3.4/x");
  for (const char* direct : {"10.200.3.4", "192.168.7.255", "[fd12::1]", "fd12::1"}) {
    REQUIRE(FindProxy(direct).empty());
  }
  for (const char* far : {"11.0.0.1", "192.168.8.0", "[fe80::1]", "ten.example", "1.2.3.4"}) {
    REQUIRE(FindProxy(far) == kProxy);
  }
}

TEST_CASE("all_names_of_the_proxy_count_as_one_and_this_machine_needs_none") {
  const auto [name, value] = GENERATE(std::pair("HTTPS_PROXY", kProxy),
                                      std::pair("https_proxy", kProxy + strlen("http://")),
                                      std::pair("http_proxy", kProxy));
  const Variable proxy(name, value), none("no_proxy", "near.example");
  for (int i = 0; i < 2; ++i) {
    PrepareProxyVariables();
    REQUIRE(std::getenv("https_proxy") == std::string(kProxy));
    REQUIRE(std::getenv("no_proxy") == std::string("near.example,localhost,127.0.0.1,::1"));
  }
  unsetenv("https_proxy");
}

TEST_CASE("endpoints_with_a_source_go_where_they_lead") {
  ProxyByHand proxy;
  const Variable variable("https_proxy", proxy.url());
  ProxyTunnels tunnels;
  const std::string edge = "tcp://10.1.0.5:0;10.1.0.7:7200";
  {
    const Variable none("no_proxy", "10.0.0.0/8");
    REQUIRE(*tunnels.Route(edge) == edge);
  }
  const auto near = ConnectTo(*tunnels.Route(edge));
  REQUIRE(absl::StartsWith(proxy.Accept()->ReadUntil("\r\n\r\n"), "CONNECT 10.1.0.7:7200 "));
}

TEST_CASE("messages_have_no_password") {
  REQUIRE(WithoutPassword("http://user:se@cret@host:3128") == "http://host:3128");
  REQUIRE(WithoutPassword("http://host:3128") == "http://host:3128");
}

TEST_CASE("bytes_pass_both_ways_through_a_tunnel_and_so_do_ends") {
  ProxyByHand proxy;
  const Variable variable("https_proxy", proxy.url());
  ProxyTunnels tunnels;
  const std::string local = *tunnels.Route(kEndpoint);
  REQUIRE(*tunnels.Route(kEndpoint) == local);
  for (int i = 0; i < 2; ++i) {
    const auto near = ConnectTo(local);
    const auto far = proxy.Accept();
    const std::string head = far->ReadUntil("\r\n\r\n");
    REQUIRE(absl::StartsWith(head, "CONNECT far.example:7100 HTTP/1.1\r\n"));
    REQUIRE(absl::StrContains(head, "Proxy-Authorization: Basic "));
    far->Send("HTTP/1.1 200 Connection established\r\n\r\n");
    const std::string large(3 << 20, 'x');
    // Assertions are of one thread: the other end's come when this one has ended.
    std::future<void> sending = std::async(std::launch::async, [&] { near->Send(large + "!"); });
    const size_t received = far->ReadUntil("!").size();
    sending.get();
    REQUIRE(received == large.size() + 1);
    near->EndSending();
    REQUIRE(far->ended());
    far->Send("answer.");
    REQUIRE(near->ReadUntil(".") == "answer.");
    far->EndSending();
    REQUIRE(near->ended());
  }
}

TEST_CASE("a_far_end_that_does_not_close_is_left_after_its_time") {
  ProxyByHand proxy;
  const Variable variable("https_proxy", proxy.url());
  ProxyTunnels tunnels;
  const auto near = ConnectTo(*tunnels.Route(kEndpoint));
  const auto far = proxy.Accept();
  far->ReadUntil("\r\n\r\n");
  far->Send("HTTP/1.1 200 OK\r\n\r\nhello.");
  REQUIRE(near->ReadUntil(".") == "hello.");
  near->EndSending();
  REQUIRE(far->ended());
  REQUIRE(near->ended());
}

TEST_CASE("tunnels_that_are_not_used_make_room_for_others") {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = std::max(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, 2048));
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  ProxyByHand proxy;
  const Variable variable("https_proxy", proxy.url());
  ProxyTunnels tunnels;
  const std::string local = *tunnels.Route(kEndpoint);
  const auto near = ConnectTo(local);
  const auto far = proxy.Accept();
  far->ReadUntil("\r\n\r\n");
  REQUIRE(SetLogLevel("warning").ok());  // each has its line otherwise
  for (int i = 1; i <= 1024; ++i) {
    REQUIRE(tunnels.Route(absl::StrCat("tcp://host", i, ":1")).ok());
  }
  REQUIRE(SetLogLevel("info").ok());
  REQUIRE(*tunnels.Route(kEndpoint) == local);
}

TEST_CASE("a_refusal_ends_the_connection_and_the_next_one_is_tried") {
  ProxyByHand proxy;
  const Variable variable("https_proxy", proxy.url());
  ProxyTunnels tunnels;
  const std::string local = *tunnels.Route(kEndpoint);
  const auto refused = ConnectTo(local);
  {
    const auto far = proxy.Accept();
    far->ReadUntil("\r\n\r\n");
    far->Send("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    REQUIRE(refused->ended());
  }
  const auto near = ConnectTo(local);
  const auto far = proxy.Accept();
  far->ReadUntil("\r\n\r\n");
  far->Send("HTTP/1.1 200 OK\r\n\r\nhello.");
  REQUIRE(near->ReadUntil(".") == "hello.");
}

TEST_CASE("a_word_is_the_target_at_its_relay_also_behind_a_proxy") {
  ProxyByHand proxy, relay;
  const Variable variable("https_proxy", proxy.url());
  ProxyTunnels tunnels;
  const bool behind = GENERATE(false, true);
  const std::string host = behind ? "far.example" : "127.0.0.1";
  const Variable none("no_proxy", behind ? "" : "127.0.0.1");
  const std::string endpoint = absl::StrCat("tcp://", host, ":", relay.port());
  const auto near = ConnectTo(*tunnels.Route(endpoint, "d.1.W_x-1.tag"));
  const auto far = (behind ? proxy : relay).Accept();
  if (behind) {
    const std::string head = far->ReadUntil("\r\n\r\n");
    REQUIRE(absl::StartsWith(head, absl::StrCat("CONNECT ", endpoint.substr(6), " ")));
    far->Send("HTTP/1.1 200 OK\r\n\r\n");
  }
  REQUIRE(absl::StartsWith(far->ReadUntil("\r\n\r\n"), "CONNECT d.1.W_x-1.tag:1 "));
  far->Send("HTTP/1.1 200 OK\r\n\r\nhello.");
  REQUIRE(near->ReadUntil(".") == "hello.");
}

TEST_CASE("connections_that_wait_at_a_relay_come_when_it_answers_and_others_wait_then") {
  ProxyByHand relay, local;
  ProxyTunnels tunnels;
  const std::string endpoint = absl::StrCat("tcp://127.0.0.1:", relay.port());
  REQUIRE(tunnels.Await(local.port(), {{endpoint, "word"}}).ok());
  std::vector<std::unique_ptr<Stream>> waiting;
  const auto accept = [&] {
    waiting.push_back(relay.Accept());
    REQUIRE(absl::StartsWith(waiting.back()->ReadUntil("\r\n\r\n"), "CONNECT word:1 "));
  };
  accept();
  accept();
  waiting[0]->Send("HTTP/1.1 200 OK\r\n\r\nhello.");
  const auto near = local.Accept();
  REQUIRE(near->ReadUntil(".") == "hello.");
  accept();
  accept();
  waiting[1]->Send("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
  REQUIRE(waiting[1]->ended());
  accept();
  REQUIRE(tunnels.Await(local.port(), {}).ok());
  REQUIRE(near->ended());
  for (const auto& each : waiting) REQUIRE(each->ended());
}

TEST_CASE("the_end_of_all_tunnels_ends_connections_also_those_that_wait_for_the_proxy") {
  ProxyByHand proxy;
  const Variable variable("https_proxy", proxy.url());
  auto tunnels = std::make_unique<ProxyTunnels>();
  const std::string local = *tunnels->Route(kEndpoint);
  const auto open = ConnectTo(local);
  const auto far = proxy.Accept();
  far->ReadUntil("\r\n\r\n");
  far->Send("HTTP/1.1 200 OK\r\n\r\nhello.");
  REQUIRE(open->ReadUntil(".") == "hello.");
  const auto waiting = ConnectTo(local);
  const auto silent = proxy.Accept();
  silent->ReadUntil("\r\n\r\n");
  tunnels.reset();
  REQUIRE(open->ended());
  REQUIRE(waiting->ended());
  REQUIRE(far->ended());
}

}  // namespace
}  // namespace atl
