#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "common/http/http_server.h"
#include "coordinator/tracing/otlp.h"
#include "coordinator/tracing/round_spans.h"

namespace atl {
namespace {

using Environment = std::map<std::string, std::string>;

absl::StatusOr<std::optional<OtlpSettings>> Settings(const Environment& environment) {
  return ReadOtlpSettings(
      [&](const char* name) -> const char* {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      "atoll-coordinator");
}

StoreWrite Pushed(const ContributionId& contribution) {
  ContributionRecord record;
  record.job = "j-1";
  record.contribution = contribution;
  return {record};
}

StoreWrite Decided(int64_t round, Version version, const ContributionId& accepted,
                   const ContributionId& rejected) {
  DecisionRecord record;
  record.job = "j-1";
  record.round = round;
  record.version = version;
  record.participants.resize(2);
  record.participants[0].contribution = accepted;
  record.participants[0].accepted = true;
  record.participants[1].contribution = rejected;
  record.participants[1].reason = "norm";
  return {record};
}

StoreWrite Committed(Version version) {
  ProgressRecord record;
  record.job = "j-1";
  record.version = version;
  return {record};
}

struct Traced {
  Traced() {
    JobRecord job;
    job.job = "j-1";
    Store(0, {job});
  }
  std::vector<Span> Store(int64_t unix_ms, const StoreWrite& write) {
    std::vector<Span> ended;
    const std::vector<StoreWrite> writes = {write};
    for (const JobEvent& event : log.Read(unix_ms, Tick{}, writes)) {
      for (const Span& span : spans.On(event)) ended.push_back(span);
    }
    return ended;
  }
  RoundLog log;
  RoundSpans spans;
};

TEST_CASE("a_round_is_a_trace_from_its_first_push_to_its_commit") {
  const ContributionId one{1, 1, 1, 4}, two{2, 1, 1, 4};
  Traced traced;
  CHECK(traced.Store(1000, Pushed(one)).empty());
  CHECK(traced.Store(2000, Pushed(two)).empty());
  CHECK(traced.Store(3000, Decided(7, 5, one, two)).empty());
  const std::vector<Span> ended = traced.Store(3500, Committed(5));
  REQUIRE(ended.size() == 4);
  CHECK(ended[0].name == "outer round");
  CHECK(ended[0].begin_unix_ms == 1000);
  CHECK(ended[0].end_unix_ms == 3500);
  CHECK(ended[0].trace_id.size() == 32);
  for (size_t i = 1; i < ended.size(); ++i) {
    CHECK(ended[i].parent_id == ended[0].span_id);
    CHECK(ended[i].trace_id == ended[0].trace_id);
    CHECK(ended[i].span_id.size() == 16);
  }
  CHECK(ended[1].begin_unix_ms == 1000);
  CHECK(ended[1].error.empty());
  CHECK(ended[2].begin_unix_ms == 2000);
  CHECK(ended[2].end_unix_ms == 3000);
  CHECK(ended[2].error == "norm");
  CHECK(ended[3].begin_unix_ms == 3000);
  CHECK(traced.Store(3600, Committed(5)).empty());
}

TEST_CASE("a_void_round_ends_with_its_decision_and_is_an_error") {
  Traced traced;
  const auto ended = traced.Store(3000, Decided(7, kNoVersion, {1, 1, 1, 4}, {2, 1, 1, 4}));
  REQUIRE(ended.size() == 3);
  CHECK_FALSE(ended[0].error.empty());
}

TEST_CASE("settings_are_those_of_the_standard_variables") {
  CHECK_FALSE(Settings({})->has_value());
  CHECK_FALSE(
      Settings({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}, {"OTEL_SDK_DISABLED", "true"}})
          ->has_value());
  CHECK_FALSE(
      Settings({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}, {"OTEL_TRACES_EXPORTER", "none"}})
          ->has_value());
  const auto settings = Settings({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/"},
                                  {"OTEL_EXPORTER_OTLP_HEADERS", "key=a%2Cb, other=c"},
                                  {"OTEL_RESOURCE_ATTRIBUTES", "service.name=x,site=paris"},
                                  {"OTEL_SERVICE_NAME", "mine"},
                                  {"OTEL_BSP_SCHEDULE_DELAY", "100"}});
  REQUIRE(settings.ok());
  REQUIRE(settings->has_value());
  CHECK((*settings)->url == "http://c:4318/v1/traces");
  CHECK((*settings)->headers ==
        std::vector<std::pair<std::string, std::string>>{{"key", "a,b"}, {"other", "c"}});
  CHECK((*settings)->resource == std::vector<std::pair<std::string, std::string>>{
                                     {"site", "paris"}, {"service.name", "mine"}});
  CHECK((*settings)->delay_ms == 100);
  CHECK((*Settings({{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://c/x"}}))->url == "https://c/x");
}

TEST_CASE("settings_that_cannot_be_honoured_are_refused") {
  const Environment endpoint = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}};
  for (const auto& [name, value] : Environment{{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"},
                                               {"OTEL_EXPORTER_OTLP_TIMEOUT", "soon"},
                                               {"OTEL_EXPORTER_OTLP_HEADERS", "key"},
                                               {"OTEL_EXPORTER_OTLP_HEADERS", "a\nb: c=1"},
                                               {"OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318"}}) {
    Environment environment = endpoint;
    environment[name] = value;
    const auto settings = Settings(environment);
    CAPTURE(name);
    CHECK(settings.status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("a_collector_receives_spans_as_otlp_json") {
  std::mutex mutex;
  std::vector<HttpRequest> requests;
  auto server = HttpServer::Start({.flag = "collector", .listen = "127.0.0.1:0"},
                                  [&](const HttpRequest& request) {
                                    const std::lock_guard lock(mutex);
                                    requests.push_back(request);
                                    return HttpReply{};
                                  });
  REQUIRE(server.ok());
  OtlpSettings settings = **Settings({{"OTEL_EXPORTER_OTLP_ENDPOINT", (*server)->url()},
                                      {"OTEL_EXPORTER_OTLP_HEADERS", "key=secret"}});
  settings.batch_max = 2;
  const Span span{std::string(32, 'a'),
                  std::string(16, 'b'),
                  std::string(16, 'c'),
                  "push",
                  1,
                  2,
                  {{"atoll.island", int64_t{3}}, {"atoll.accepted", false}},
                  "norm"};
  { OtlpExporter(settings).Export({span, span, span}); }  // its end sends the rest
  const std::lock_guard lock(mutex);
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].method == "POST");
  CHECK(requests[0].path == "/v1/traces");
  CHECK(requests[0].Header("content-type") == "application/json");
  CHECK(requests[0].Header("key") == "secret");
  const auto body = nlohmann::json::parse(requests[0].body);
  const auto& sent = body["resourceSpans"][0]["scopeSpans"][0]["spans"];
  REQUIRE(sent.size() == 2);
  CHECK(sent[0]["traceId"] == span.trace_id);
  CHECK(sent[0]["parentSpanId"] == span.parent_id);
  CHECK(sent[0]["startTimeUnixNano"] == "1000000");
  CHECK(sent[0]["attributes"][0]["value"]["intValue"] == "3");
  CHECK(sent[0]["status"]["code"] == 2);
  CHECK(body["resourceSpans"][0]["resource"]["attributes"][0]["value"]["stringValue"] ==
        "atoll-coordinator");
}

}  // namespace
}  // namespace atl
