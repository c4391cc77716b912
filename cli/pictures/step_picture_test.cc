// Steps for Perfetto and as pictures.

#include "cli/pictures/step_picture.h"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

namespace atl::cli {
namespace {

TraceSpan Span(TraceKind kind, int64_t start_ms, int64_t end_ms, int32_t stage = 0) {
  TraceSpan span;
  span.kind = kind;
  span.stage = stage;
  span.start_ns = start_ms * 1'000'000;
  span.end_ns = end_ms * 1'000'000;
  return span;
}

// Two stages, one micro-batch: F, F, B, B, and all-reduces overlapping them.
StepTrace Step(int64_t link_ms) {
  StepTrace trace;
  trace.stages = {{0, 0, 0, 2, {"w1/0"}}, {0, 1, 2, 3, {"w2/0"}}};
  const int64_t there = 10 + link_ms, back = there + 20 + link_ms;
  trace.devices = {{"w1/0",
                    0,
                    0,
                    {Span(TraceKind::kForward, 0, 10), Span(TraceKind::kWait, 10, back),
                     Span(TraceKind::kInputGradient, back, back + 10),
                     Span(TraceKind::kSync, back + 5, back + 12)}},
                   {"w2/0",
                    0,
                    0,
                    {Span(TraceKind::kForward, there, there + 10, 1),
                     Span(TraceKind::kInputGradient, there + 10, there + 20, 1)}}};
  trace.messages = {
      {"w1/0", "w2/0", 1, 0, false, 0, 1, 64, 10'000'000, 10'000'000, there * 1'000'000}};
  trace.step_ns = (back + 12) * 1'000'000;
  return trace;
}

TEST_CASE("Steps are processes, with a thread for each device, its all-reduces and its links") {
  StepTrace predicted = Step(5), measured = Step(8);
  // The next one leaves before the last one is there.
  measured.messages.push_back(measured.messages[0]);
  measured.messages[1].start_ns = 12'000'000;
  const auto json =
      nlohmann::json::parse(StepsAsPerfetto({{"predicted", &predicted}, {"measured", &measured}}));
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> threads;
  std::map<std::string, int> slices;
  std::map<std::pair<int, int>, double> free_us;
  for (const auto& event : json["traceEvents"]) {
    const std::pair<int, int> thread(event["pid"], event["tid"]);
    if (event["name"] == "process_name") processes[thread.first] = event["args"]["name"];
    if (event["name"] == "thread_name") threads[thread] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    ++slices[event["cat"]];
    CHECK(event["ts"].get<double>() >= free_us[thread]);  // slices of a thread do not cross
    free_us[thread] = event["ts"].get<double>() + event["dur"].get<double>();
  }
  CHECK(processes == std::map<int, std::string>{{0, "predicted"}, {1, "measured"}});
  std::map<std::string, int> names;
  for (const auto& [thread, name] : threads) ++names[name];
  CHECK(names ==
        std::map<std::string, int>{
            {"w1/0: 0-1", 2}, {"all-reduces of w1/0", 2}, {"w2/0: 2-4", 2}, {"w1/0 > w2/0", 2}});
  CHECK(slices == std::map<std::string, int>{{"work", 8}, {"wait", 2}, {"sum", 2}, {"message", 3}});
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("Two steps share one scale in the picture, device by device") {
  const StepTrace predicted = Step(5), measured = Step(8);
  const std::string svg =
      StepsAsSvg({{"sea & <land>", {{"predicted", &predicted}, {"measured", &measured}}}});
  CHECK_THAT(svg, Catch::StartsWith("<svg") && Catch::EndsWith("</svg>\n") &&
                      Catch::Contains("sea &amp; &lt;land>") && Catch::Contains("w2/0: 2-4"));
  CHECK(Count(svg, ">predicted</text>") == 3);  // two devices and a link
  CHECK(Count(svg, ">measured</text>") == 3);
  CHECK(Count(svg, "<title>forward 0 of stage 1, 10.000 ms</title>") == 2);
  // The longer step fills the width: 230 + 1400.
  CHECK_THAT(svg, Catch::Contains("x2=\"1630.00\""));
  CHECK(Count(StepsAsSvg({{"one", {{"", &measured}}}}), "stroke-dasharray") == 0);
}

TEST_CASE("Ticks are round, and the legend has every colour of the picture") {
  const StepTrace step = Step(8);  // 58 ms
  const std::string svg = StepsAsSvg({{"one", {{"", &step}}}});
  for (const char* tick : {">0 ms<", ">10 ms<", ">50 ms<"}) CHECK(Count(svg, tick) == 1);
  CHECK(Count(svg, " ms</text>") == 6);
  for (const char* name : {"forward", "backward", "waiting for a message", "all-reduce", "idle"}) {
    CAPTURE(name);
    CHECK(Count(svg, std::string(">") + name + "</text>") == 1);
  }
  CHECK(Count(svg, ">commit</text>") == 0);
  // All of a device's time is drawn: what is not work is idle.
  CHECK(Count(svg, "<title>idle, 58.000 ms</title>") == 2);
}

TEST_CASE("Islands are charts one below the other, on one scale") {
  const StepTrace quick = Step(1), slow = Step(8);
  const std::string svg = StepsAsSvg({{"paris", {{"", &quick}}}, {"oslo", {{"", &slow}}}});
  CHECK(svg.find(">paris</text>") < svg.find(">oslo</text>"));
  CHECK(Count(svg, "w2/0: 2-4") == 2);
  CHECK(Count(svg, ">50 ms<") == 2);
}

TEST_CASE("An empty step is a picture, too") {
  const StepTrace empty;
  CHECK_THAT(StepsAsSvg({{"", {{"a", &empty}, {"b", &empty}}}}), Catch::EndsWith("</svg>\n"));
  CHECK(nlohmann::json::parse(StepsAsPerfetto({})).contains("traceEvents"));
}

}  // namespace
}  // namespace atl::cli
