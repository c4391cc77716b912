#include "common/http/http_server.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "common/http/testing/half_sent.h"
#include "common/http/testing/http_get.h"

namespace atl {
namespace {

HttpReply Echo(const HttpRequest& request) {
  HttpReply reply;
  reply.body = request.method + " " + request.path + " " + request.Query("a");
  return reply;
}

std::unique_ptr<HttpServer> Serve(const HttpServer::Handler& handler, int max_streams = 1) {
  auto server = HttpServer::Start({"--http-listen", "127.0.0.1:0", {}, 4, max_streams}, handler);
  REQUIRE(server.ok());
  return *std::move(server);
}

TEST_CASE("a_request_reaches_the_handler_with_its_path_and_query") {
  const auto server = Serve(Echo);
  CHECK(HttpGet(server->url() + "/jobs/x?a=b%20c").body == "GET /jobs/x b c");
  CHECK(HttpPost(server->url() + "/stop").body == "POST /stop ");
}

TEST_CASE("plaintext_beyond_loopback_is_refused_without_insecure") {
  const auto server = HttpServer::Start({"--http-listen", "0.0.0.0:0", {}, 4, 0}, Echo);
  CHECK(absl::IsInvalidArgument(server.status()));
  TlsOptions insecure;
  insecure.insecure = true;
  const auto allowed = HttpServer::Start({"--http-listen", "0.0.0.0:0", insecure, 4, 0}, Echo);
  CHECK(allowed.ok());
  CHECK_FALSE(IsLoopbackAddress("0.0.0.0:80"));
  CHECK(IsLoopbackAddress("[::1]:80"));
  CHECK_FALSE(IsLoopbackAddress("127.evil.example:80"));
}

TEST_CASE("a_taken_port_is_an_error_that_names_the_flag") {
  const auto server = Serve(Echo);
  const auto second = HttpServer::Start(
      {"--metrics-listen", "127.0.0.1:" + std::to_string(server->port()), {}, 4, 0}, Echo);
  REQUIRE(absl::IsUnavailable(second.status()));
  CHECK(second.status().message().find("--metrics-listen") != std::string::npos);
}

TEST_CASE("loopback_is_not_served_under_another_hosts_name") {
  const auto server = Serve(Echo);
  CHECK(HttpGet(server->url() + "/", {{"Host", "evil.example:80"}}).status == 403);
  CHECK(HttpGet(server->url() + "/", {{"Host", "127.evil.example:80"}}).status == 403);
  CHECK(HttpGet(server->url() + "/", {{"Host", "localhost:80"}}).status == 200);
}

TEST_CASE("streams_are_sent_until_they_end_and_are_bounded") {
  const auto stream = [](const HttpRequest&) {
    HttpReply reply;
    reply.type = "text/event-stream";
    reply.next = [left = 3](std::string* chunk) mutable {
      *chunk = "data: " + std::to_string(left) + "\n\n";
      return left-- > 0;
    };
    return reply;
  };
  CHECK(HttpGet(Serve(stream)->url() + "/").body == "data: 3\n\ndata: 2\n\ndata: 1\n\n");
  CHECK(HttpGet(Serve(stream, 0)->url() + "/").status == 503);
}

TEST_CASE("bytes_that_are_no_request_get_a_refusal_or_nothing") {
  const HttpOptions options{"--http-listen", "127.0.0.1:0", {}, 4, 1};
  const auto answer = [&](const std::string& bytes) {
    return HttpServer::AnswerBytes(options, Echo, bytes).substr(0, 12);
  };
  const std::string host = "Host: localhost\r\n\r\n";
  CHECK(answer("GET /x?a=1 HTTP/1.1\r\n" + host) == "HTTP/1.1 200");
  CHECK(answer("GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n") == "HTTP/1.1 403");
  CHECK(answer("GET x y z\r\n" + host) == "HTTP/1.1 400");
  CHECK(answer("GET /" + std::string(9000, 'x') + " HTTP/1.1\r\n" + host) == "HTTP/1.1 414");
  CHECK(answer("").empty());
}

TEST_CASE("half_sent_requests_delay_no_other") {
  const auto server = Serve(Echo);
  CHECK(AnsweredBesideHalfSent({server->port()},
                               [&] { return HttpGet(server->url() + "/healthz").status == 200; }));
}

TEST_CASE("handlers_answer_as_many_requests_at_once_as_the_option_says") {
  std::atomic<int> now = 0, most = 0;
  const auto server =
      HttpServer::Start({"--http-listen", "127.0.0.1:0", {}, 2, 0}, [&](const HttpRequest&) {
        const int here = ++now;
        if (here > most) most = here;
        // Until a second one is there, and a third one would be.
        for (int i = 0; i < 12'000 && most < 2; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        --now;
        return HttpReply();
      });
  REQUIRE(server.ok());
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] { HttpGet((*server)->url() + "/"); });
  }
  for (std::thread& client : clients) client.join();
  CHECK(most == 2);
}

// ---- clients that mean no good ----

// Sends bytes until the server ends the connection; how many it took, at most `most`.
size_t SendUntilEnded(int port, const std::string& first, const std::string& again, size_t most) {
  HalfSent client(port, first);
  size_t sent = first.size();
  while (sent < most && client.Send(again)) sent += again.size();
  return sent;
}

TEST_CASE("headers_without_end_and_lines_without_end_are_not_read_on") {
  const auto server = Serve(Echo);
  const std::string begin = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n";
  constexpr size_t kMost = size_t{64} << 20;
  CHECK(SendUntilEnded(server->port(), begin, "a: b\r\n", kMost) < kMost / 2);
  CHECK(SendUntilEnded(server->port(), begin, "a\r\n", kMost) < kMost / 2);
  CHECK(SendUntilEnded(server->port(), begin, std::string(1000, 'x'), kMost) < kMost / 2);
  const HttpOptions options{"--http-listen", "127.0.0.1:0", {}, 4, 1};
  std::string many = begin;
  for (int i = 0; i < 10'000; ++i) many += "a: b\r\n";
  CHECK(HttpServer::AnswerBytes(options, Echo, many + "\r\n").substr(0, 12) == "HTTP/1.1 400");
}

TEST_CASE("compressed_bodies_and_bodies_without_end_are_refused") {
  const HttpOptions options{"--http-listen", "127.0.0.1:0", {}, 4, 1};
  const std::string head = "POST /x HTTP/1.1\r\nHost: localhost\r\n";
  const auto answer = [&](const std::string& rest) {
    return HttpServer::AnswerBytes(options, Echo, head + rest).substr(0, 12);
  };
  CHECK(answer("Content-Length: 3\r\n\r\nabc") == "HTTP/1.1 200");
  CHECK(answer("Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc") == "HTTP/1.1 415");
  std::string chunks = "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 2000; ++i) chunks += "3e8\r\n" + std::string(1000, 'x') + "\r\n";
  CHECK(answer(chunks + "0\r\n\r\n") != "HTTP/1.1 200");
}

TEST_CASE("clients_that_send_a_byte_now_and_then_keep_no_other_from_its_answer") {
  const auto server = Serve(Echo);
  std::atomic<bool> stop = false;
  std::thread slow([&] {
    std::vector<std::unique_ptr<HalfSent>> clients;
    while (!stop) {
      while (clients.size() < 140) {
        clients.push_back(std::make_unique<HalfSent>(server->port(), "GET /healthz HTTP/1.1\r\n"));
      }
      std::erase_if(clients, [](const auto& client) { return !client->Send("a"); });
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
  std::this_thread::sleep_for(std::chrono::seconds(1));
  int answered = 0;
  for (int i = 0; i < 10; ++i) {
    answered += HttpGet(server->url() + "/healthz").status == 200;
  }
  stop = true;
  slow.join();
  CHECK(answered == 10);
}

TEST_CASE("health_is_answered_while_every_other_request_waits_for_its_handler") {
  std::atomic<bool> go_on = false;
  HttpOptions options{"--http-listen", "127.0.0.1:0", {}, 2, 0};
  options.open_paths = {"/healthz"};
  const auto server = HttpServer::Start(options, [&](const HttpRequest& request) {
    while (request.path != "/healthz" && !go_on) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return HttpReply();
  });
  REQUIRE(server.ok());
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] { HttpGet((*server)->url() + "/metrics"); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(HttpGet((*server)->url() + "/healthz").status == 200);
  go_on = true;
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace atl
