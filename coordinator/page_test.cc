// The web page and the metrics of a coordinator, over HTTP.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "common/http/testing/half_sent.h"
#include "common/http/testing/http_get.h"
#include "coordinator/server.h"

namespace atl {
namespace {

using nlohmann::json;

class Page {
 public:
  explicit Page(const std::string& listen = "127.0.0.1:0", bool insecure = false) {
    std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/page-XXXXXX";
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = folder;
    options.http_listen = listen;
    options.metrics_listen = "127.0.0.1:0";
    options.tls.insecure = insecure;
    auto server = CoordinatorServer::Start(options);
    INFO(server.status().ToString());
    REQUIRE(server.ok());
    server_ = *std::move(server);
    thread_ = std::thread([this] { (void)server_->Run(); });
  }
  ~Page() {
    server_->Stop();
    thread_.join();
  }
  std::string url() const {
    const std::string url = server_->page_url();
    return absl::StrCat("http://127.0.0.1", url.substr(url.rfind(':')));
  }
  HttpAnswer Get(const std::string& path) { return HttpGet(url() + path); }
  HttpAnswer Act(const std::string& path) {
    return HttpPost(url() + path, {{"X-Atoll-Action", "1"}});
  }
  HttpAnswer Monitor(const std::string& path) { return HttpGet(server_->metrics_url() + path); }

 private:
  std::unique_ptr<CoordinatorServer> server_;
  std::thread thread_;
};

TEST_CASE("a_query_that_is_no_text_is_refused_as_such") {
  Page page;
  for (const char* query : {"job=%00%ff", "job=%ff", "job=a%0ab", "%fe=x", "job=%c3", "job=%1b"}) {
    CHECK(page.Get(absl::StrCat("/api/v1/job?", query)).status == 400);
    CHECK(page.Get(absl::StrCat("/api/v1/logs?", query)).status == 400);
  }
  CHECK(page.Get("/api/v1/job?job=%c3%a9").status == 404);
}

TEST_CASE("the_page_and_its_assets_are_served_with_their_types") {
  Page page;
  CHECK(page.Get("/").type == "text/html; charset=utf-8");
  CHECK(absl::StrContains(page.Get("/").body, "app.js"));
  CHECK(page.Get("/app.js").type == "text/javascript; charset=utf-8");
  CHECK(page.Get("/app.css").status == 200);
  CHECK(page.Get("/../server.cc").status == 404);
  CHECK(page.Get("/api/v1/nothing").status == 404);
}

TEST_CASE("calls_answer_with_protobufs_json") {
  Page page;
  const json status = json::parse(page.Get("/api/v1/status").body);
  CHECK(status["epoch"] == "1");
  CHECK(status["members"].empty());
  CHECK(json::parse(page.Get("/api/v1/jobs").body)["jobs"].empty());
  CHECK(json::parse(page.Get("/api/v1/logs").body).is_array());
  const HttpAnswer none = page.Get("/api/v1/job?job=none-1");
  CHECK(none.status == 404);
  CHECK(absl::StrContains(json::parse(none.body)["text"].get<std::string>(), "none-1"));
  CHECK(page.Get("/api/v1/history?job=none-1").status == 404);
}

TEST_CASE("events_of_a_job_that_is_not_there_end") {
  Page page;
  const HttpAnswer events = page.Get("/api/v1/events?job=none-1");
  CHECK(events.type == "text/event-stream");
  CHECK(absl::StrContains(events.body, "event: end"));
}

TEST_CASE("actions_need_the_pages_own_header_and_loopback") {
  {
    Page page;
    CHECK(HttpPost(page.url() + "/api/v1/pause?job=none-1").status == 403);
    CHECK(page.Act("/api/v1/pause?job=none-1").status == 404);  // it came to the job
    CHECK(HttpPost(page.url() + "/api/v1/drain?server=none").status == 403);
    CHECK(page.Act("/api/v1/drain?server=none").status == 404);
    CHECK(page.Get("/api/v1/pause?job=none-1").status == 404);
    CHECK(json::parse(page.Get("/api/v1/session").body)["actions"] == true);
  }
  Page open("0.0.0.0:0", true);
  CHECK(open.Act("/api/v1/pause?job=none-1").status == 403);
  CHECK(open.Act("/api/v1/drain?server=none").status == 403);
  CHECK_FALSE(json::parse(open.Get("/api/v1/session").body).contains("actions"));
}

TEST_CASE("a_coordinator_ends_while_pages_watch_it") {
  std::vector<std::unique_ptr<HalfSent>> watchers;
  {
    Page page;
    const std::string url = page.url();
    for (int i = 0; i < 3; ++i) {
      watchers.push_back(
          std::make_unique<HalfSent>(std::stoi(url.substr(url.rfind(':') + 1)),
                                     "GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"));
      CHECK(absl::StartsWith(watchers.back()->Read(), "HTTP/1.1 200"));
    }
    // Requests come and go meanwhile.
    for (int i = 0; i < 20; ++i) REQUIRE(page.Get("/api/v1/status").status == 200);
  }
  for (const auto& watcher : watchers) {
    while (!watcher->Read().empty()) {
    }
  }
}

TEST_CASE("monitors_read_metrics_health_and_readiness") {
  Page page;
  const HttpAnswer metrics = page.Monitor("/metrics");
  CHECK(metrics.status == 200);
  CHECK(absl::StrContains(metrics.body, "atoll_coordinator_epoch 1\n"));
  CHECK(absl::StrContains(metrics.body, "atoll_disk_free_bytes "));
  CHECK(page.Monitor("/healthz").status == 200);
  CHECK(page.Monitor("/readyz").status == 200);
}

}  // namespace
}  // namespace atl
