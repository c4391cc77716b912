#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "coordinator/plan_io/cluster_file.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/plan_io/testing/two_sites.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/testing/models.h"

namespace atl {
namespace {

absl::StatusOr<plan::Cluster> Read(const std::string& text) {
  const auto spec = ParseClusterToml(text, "cluster.toml");
  if (!spec.ok()) return spec.status();
  return ToCluster(*spec);
}

// With the first `from` in it replaced.
std::string Changed(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string Refusal(const std::string& text, const std::string& from, const std::string& to) {
  return std::string(Read(Changed(text, from, to)).status().message());
}

TEST_CASE("A description in TOML becomes the planner's cluster") {
  const auto cluster = Read(kTwoSites);
  INFO(cluster.status().ToString());
  REQUIRE(cluster.ok());
  REQUIRE(cluster->devices.size() == 3);
  CHECK(cluster->types[cluster->devices[2].type].memory_bytes == 50'000'000'000);
  const plan::Link out = cluster->LinkBetween(0, 2);
  CHECK(out.latency_s == Approx(0.02));
  CHECK(out.bytes_per_s == Approx(1e9).epsilon(1e-4));                         // the trunk's
  CHECK(cluster->LinkBetween(2, 0).bytes_per_s == Approx(3e9).epsilon(1e-4));  // both edges
  CHECK(cluster->LinkBetween(0, 1).bytes_per_s == Approx(300e9));
}

TEST_CASE("Bad descriptions are refused with what is wrong and where") {
  CHECK_THAT(Refusal(kTwoSites, "type = \"a100-80\"", "type = \"a1000\""),
             Catch::Contains("device \"a0\"") && Catch::Contains("a1000"));
  CHECK_THAT(Refusal(kTwoSites, "node =", "nodde ="),
             Catch::Contains("devices[0].nodde: there is no such field; did you mean node?"));
  CHECK_THAT(Refusal(kTwoSites, "[[trunks]]", "[[trunk]]"),
             Catch::StartsWith("cluster.toml:") && Catch::Contains("did you mean trunks?"));
  CHECK_THAT(Refusal(kTwoSites, "latency_ns = ", "latency_ns = 0."),
             Catch::Contains("links[0].edges[0].latency_ns: must be a whole number"));
  CHECK_THAT(Refusal(kTwoSites, "id = \"a1\"", "id = \"a0\""), Catch::Contains("twice"));
  CHECK_THAT(Refusal(kTwoSites, "trunk = \"sea\"", "trunk = \"air\""), Catch::Contains("\"air\""));
  CHECK_THAT(Refusal(kTwoSites, "= 5e9", "= -5e9"), Catch::Contains("\"paris\" to \"oslo\""));
  CHECK_THAT(Refusal(kTwoSites, "to = \"paris\"", "to = \"rome\""), Catch::Contains("\"rome\""));
  CHECK_THAT(Refusal(kTwoSites, "[[trunks]]", "[[trunks"), Catch::Contains("cluster.toml:"));
  std::string island = kTwoSites;
  island.resize(island.rfind("[[links]]"));
  CHECK_THAT(std::string(Read(island).status().message()),
             Catch::Contains("no link from site \"oslo\""));
}

TEST_CASE("names_that_are_empty_or_not_printable_doubled_links_and_self_links_are_refused") {
  const auto refused = [](const std::string& text) {
    return Read(text).status().code() == absl::StatusCode::kInvalidArgument;
  };
  const auto changed = [](const std::string& from, const std::string& to) {
    return Changed(kTwoSites, from, to);
  };
  CHECK(refused(changed("id = \"a0\"", "id = \"\"")));
  CHECK(refused(changed("id = \"a0\"", "id = \"a\\u0007\"")));
  CHECK(refused(changed("node = \"n0\"", "node = \"n\\u001b[2J\"")));
  CHECK(refused(changed("name = \"sea\"", "name = \"\"")));
  CHECK(refused(changed("memory_bytes = 50", "memory_bytes = -50")));
  CHECK(refused(changed("latency_ns = 20", "latency_ns = -20")));
  const std::string edges = "edges = [{ bandwidth_bytes_per_s = 1e9 }]\n";
  CHECK(refused(std::string(kTwoSites) + "[[links]]\nfrom = \"paris\"\nto = \"oslo\"\n" + edges));
  CHECK(refused(std::string(kTwoSites) + "[[links]]\nfrom = \"a0\"\nto = \"a0\"\n" + edges));
  const std::string pair = "[[links]]\nfrom = \"a0\"\nto = \"b0\"\n" + edges;
  CHECK(Read(kTwoSites + pair).ok());
  CHECK(refused(kTwoSites + pair + pair));
  const absl::Status bad = Read(changed("id = \"a0\"", "id = \"a\\u001b\"")).status();
  CHECK(bad.message().find('\x1b') == absl::string_view::npos);
}

TEST_CASE("a_link_between_sites_may_have_a_limit_of_bytes_a_day_and_no_other_may") {
  const std::string link = "from = \"paris\"\nto = \"oslo\"\n";
  const auto with = [&](const std::string& line) {
    return Changed(kTwoSites, link, absl::StrCat(link, line, "\n"));
  };
  const auto cluster = Read(with("bytes_per_day = 5e9"));
  REQUIRE(cluster.ok());
  CHECK(cluster->bytes_per_day.size() == 1);
  CHECK(cluster->bytes_per_day.at({"paris", "oslo"}) == 5e9);
  for (const char* bad : {"bytes_per_day = -1.0", "bytes_per_day = inf", "bytes_per_day = nan"}) {
    CHECK(absl::IsInvalidArgument(Read(with(bad)).status()));
  }
  const std::string pair =
      "[[links]]\nfrom = \"a0\"\nto = \"b0\"\nbytes_per_day = 1e9\n"
      "edges = [{ bandwidth_bytes_per_s = 1e9 }]\n";
  CHECK_THAT(std::string(Read(kTwoSites + pair).status().message()),
             Catch::Contains("only a link from one site to another"));
}

TEST_CASE("prices_that_are_no_numbers_folders_and_control_characters_are_named_with_their_place") {
  CHECK_THAT(Refusal(kTwoSites, "memory_bytes = 50_000_000_000", "price_per_hour = nan"),
             Catch::Contains("device \"b0\": price_per_hour = nan"));
  CHECK_THAT(Refusal(kTwoSites, "trunk = \"sea\"", "price_per_gb = -inf"),
             Catch::Contains("price_per_gb = -inf"));
  CHECK_THAT(Refusal(kTwoSites, "latency_ns = 20_000_000", "latency_ns = -20"),
             Catch::Contains("latency_ns = -20"));
  CHECK_THAT(Refusal(kTwoSites, "\"h20\"", "\"h20\\u001b\""), Catch::Contains("\"h20\\x1b\""));
  CHECK_THAT(std::string(LoadClusterSpec("/tmp").status().message()),
             Catch::StartsWith("/tmp: is a folder"));
}

constexpr char kOwnType[] = R"(
[[types]]
name = "mine"
memory_bytes = 24_000_000_000
flops_per_s = 50e12
memory_bytes_per_s = 500e9
link_bytes_per_s = 8e9

[[types]]
name = "a100-80"
link_bytes_per_s = 25e9

[[devices]]
id = "a0"
type = "mine"
node = "n0"

[[devices]]
id = "a1"
type = "mine"
node = "n0"

[[devices]]
id = "b0"
type = "a100-80"
node = "n1"
)";

TEST_CASE("types_of_a_file_have_its_figures_and_the_catalogues_where_it_has_none") {
  const auto cluster = Read(kOwnType);
  INFO(cluster.status().ToString());
  REQUIRE(cluster.ok());
  const plan::DeviceType& mine = cluster->types[cluster->devices[0].type];
  CHECK(mine.name == "mine");
  CHECK(mine.memory_bytes == 24'000'000'000);
  CHECK(mine.flops_per_s == 50e12);
  CHECK(mine.memory_bytes_per_s == 500e9);
  CHECK(cluster->LinkBetween(0, 1).bytes_per_s == 8e9);
  const plan::DeviceType& known = cluster->types[cluster->devices[2].type];
  CHECK(known.link_bytes_per_s == 25e9);
  CHECK(known.flops_per_s == plan::FindDeviceType("a100-80")->flops_per_s);
}

TEST_CASE("a_type_of_a_file_without_a_figure_that_its_devices_need_is_refused") {
  CHECK_THAT(Refusal(kOwnType, "link_bytes_per_s = 8e9", ""),
             Catch::Contains("\"a0\"") && Catch::Contains("link_bytes_per_s"));
  CHECK_THAT(Refusal(kOwnType, "flops_per_s = 50e12", ""), Catch::Contains("flops_per_s"));
  CHECK_THAT(Refusal(kOwnType, "memory_bytes = 24_000_000_000", ""),
             Catch::Contains("memory_bytes"));
  CHECK_THAT(Refusal(kOwnType, "= 50e12", "= -50e12"), Catch::Contains("flops_per_s = -5e+13"));
  CHECK_THAT(Refusal(kOwnType, "name = \"a100-80\"", "name = \"mine\""), Catch::Contains("twice"));
  // A cluster of one device a node needs no rate between devices.
  const std::string second = "id = \"a1\"\ntype = \"mine\"\nnode = ";
  CHECK(Read(Changed(Changed(kOwnType, "link_bytes_per_s = 8e9", ""), second + "\"n0\"",
                     second + "\"n2\""))
            .ok());
}

TEST_CASE("The example of a cluster file is one") {
  const auto cluster = LoadClusterFile("deploy/jobs/two_sites.toml");
  INFO(cluster.status().ToString());
  REQUIRE(cluster.ok());
  CHECK(cluster->devices.size() == 4);
  CHECK(cluster->site_to_site.size() == 2);
}

TEST_CASE("Edges, conflicts, trunks and changes of bandwidth reach the planner") {
  const std::string text = Changed(kTwoSites, "bandwidth_bytes_per_s = 1e9 }]",
                                   "bandwidth_bytes_per_s = 1e9, conflict = \"one\", "
                                   "changes = [{ time_ns = 5_000_000, factor = 0.5 }] }]");
  const auto cluster = Read(text);
  INFO(cluster.status().ToString());
  REQUIRE(cluster.ok());
  const plan::Link out = cluster->LinkBetween(0, 2);
  REQUIRE(out.edges.size() == 1);
  CHECK(out.edges[0].trunk == 0);
  const plan::Link back = cluster->LinkBetween(2, 0);
  REQUIRE(back.edges.size() == 2);
  CHECK(back.edges[0].conflict_set == -1);
  CHECK(back.edges[1].conflict_set == 0);
  REQUIRE(back.edges[1].changes.size() == 1);
  CHECK(back.edges[1].changes[0].time_s == Approx(0.005));
  CHECK_THAT(Refusal(text, "factor = 0.5", "factor = -1"), Catch::Contains("oslo -> paris"));
}

// Two pairs in one node; the links between the pairs are slow.
std::string TwoPairs(const std::string& within) {
  std::string text;
  for (int d = 0; d < 4; ++d) {
    absl::StrAppend(&text, "[[devices]]\nid = \"g", d, "\"\ntype = \"a100-80\"\nnode = \"n\"\n");
  }
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      if (from == to) continue;
      absl::StrAppend(&text, "[[links]]\nfrom = \"g", from, "\"\nto = \"g", to,
                      "\"\nedges = [{ latency_ns = 100_000, bandwidth_bytes_per_s = ",
                      from / 2 == to / 2 ? within : "1e8", " }]\n");
    }
  }
  return text;
}

constexpr char kTimes[] =
    "latency_ns = 20_000_000, times = [{ bytes = 100_000, time_ns = 120_000_000 }, "
    "{ bytes = 1_100_000, time_ns = 220_000_000 }]";

TEST_CASE("times_by_size_of_an_edge_hold_in_place_of_its_bandwidth") {
  const auto cluster =
      Read(Changed(kTwoSites, "latency_ns = 20_000_000, bandwidth_bytes_per_s = 2e9", kTimes));
  INFO(cluster.status());
  REQUIRE(cluster.ok());
  const plan::Link& link = cluster->LinkBetweenSites("oslo", "paris");
  REQUIRE(link.edges.size() == 2);
  plan::Link alone = *plan::MakeLink({link.edges[0]}, {});
  CHECK(alone.bytes_per_s == Approx(10e6));  // left out: that of the last two sizes
  CHECK(alone.Seconds(100'000) == Approx(0.12));
  CHECK(alone.Seconds(1'100'000) == Approx(0.22));
  CHECK(alone.Seconds(50'000) == Approx(0.07));
  CHECK(alone.Seconds(2'100'000) == Approx(0.32));
  CHECK(alone.SerialSeconds(100'000) == Approx(0.1));
  CHECK(link.Seconds(2'100'000) < alone.Seconds(2'100'000));  // the other edge helps
}

TEST_CASE("damaged_times_by_size_are_refused_with_their_link_row_and_value") {
  const auto refusal = [](const std::string& times) {
    return Refusal(kTwoSites, "bandwidth_bytes_per_s = 2e9",
                   absl::StrCat("bandwidth_bytes_per_s = 2e9, times = [", times, "]"));
  };
  CHECK(refusal("{ bytes = 100_000, time_ns = 120_000_000 }").empty());
  for (const auto& [times, where] :
       {std::pair("{ bytes = 0, time_ns = 120_000_000 }", "times[0].bytes = 0"),
        std::pair("{ bytes = 10, time_ns = -1 }", "times[0].time_ns = -1"),
        std::pair("{ bytes = 10, time_ns = 20_000_000 }", "times[0].time_ns = 20000000"),
        std::pair("{ bytes = 10, time_ns = 30_000_000 }, { bytes = 9, time_ns = 40_000_000 }",
                  "times[1].bytes = 9"),
        std::pair("{ bytes = 10, time_ns = nan }", "time_ns")}) {
    INFO(times);
    CHECK_THAT(refusal(times), Catch::Contains(where));
  }
  std::string many;
  for (int i = 1; i <= 65; ++i) {
    absl::StrAppend(&many, "{ bytes = ", i, ", time_ns = ", 20'000'000 + i, " }, ");
  }
  CHECK_THAT(refusal(many), Catch::Contains("\"oslo\" to \"paris\"") && Catch::Contains("65"));
}

TEST_CASE("all_reduces_of_tensor_parallel_devices_take_the_described_links_between_them") {
  const auto pairs = Read(TwoPairs("3e11"));
  REQUIRE(pairs.ok());
  CHECK(pairs->types.size() == 1);
  const plan::Model model = *plan::FindModel("gpt3-2.7b");
  const plan::Costs costs(model, {}, {});
  const auto seconds = [&](const plan::Cluster& cluster, const std::vector<int>& devices) {
    const plan::StageCosts all = plan::GroupCosts(cluster, costs, 1, devices, {});
    return all.TotalSeconds(0, all.layers());
  };
  // Two all-reduces in F and two in B of every block, each of the block's output in both
  // directions.
  double link_s = 0;
  for (const plan::Layer& layer : model.layers) {
    if (layer.forward_flops > 0)
      link_s += 4 * (2 * 1e-4 + static_cast<double>(layer.out_bytes) / 1e8);
  }
  CHECK(seconds(*pairs, {1, 2}) - seconds(*pairs, {0, 1}) == Approx(link_s).epsilon(0.01));
  CHECK(seconds(*pairs, {0, 1, 2, 3}) > link_s);
  // The search takes them, too.
  const plan::Job job{.global_batch = 16, .micro_batches = {1}, .tensor_parallel = {2}};
  const auto fast = plan::PlanJob(*pairs, costs, job, {});
  const auto slow = plan::PlanJob(*Read(TwoPairs("1e8")), costs, job, {});
  REQUIRE((fast.ok() && slow.ok()));
  CHECK(slow->outcome.step_s > fast->outcome.step_s + 4 * link_s);
}

TEST_CASE("devices_with_other_links_to_their_neighbours_are_types_of_their_own") {
  const std::string link =
      "from = \"g2\"\nto = \"g3\"\nedges = [{ latency_ns = 100_000, bandwidth_bytes_per_s = ";
  const auto cluster = Read(Changed(TwoPairs("3e11"), link + "3e11", link + "2e11"));
  REQUIRE(cluster.ok());
  REQUIRE(cluster->types.size() == 2);
  CHECK(cluster->types[0].ring_links.at(2).bytes_per_s == Approx(3e11).epsilon(1e-3));
  CHECK(cluster->types[1].ring_links.at(2).bytes_per_s == Approx(2e11).epsilon(1e-3));
  CHECK(cluster->types[0].name == cluster->types[1].name);
}

TEST_CASE("A_V_of_two_stages_per_device_is_a_program_per_device") {
  plan::Cluster cluster;
  cluster.types = {*plan::FindDeviceType("a100-80")};
  for (int d = 0; d < 4; ++d) {
    cluster.devices.push_back({"d" + std::to_string(d), "n", "site", 0});
  }
  const plan::Costs costs(*plan::FindModel("gpt2-large"), {}, {});
  const plan::Job job{.global_batch = 8};
  plan::Plan plan;
  plan.layout.replicas.resize(1);
  plan.layout.replicas[0].micro_batches = 8;
  for (int d = 0; d < 4; ++d) plan.layout.replicas[0].stages.push_back({{d}, 0, 0});
  REQUIRE(plan::CutReplica(cluster, costs, 1, plan.layout.replicas[0]).ok());
  REQUIRE(plan::Reshape(cluster, costs, plan::Shape::kVShaped, plan.layout));
  auto outcome = plan::EvaluateLayout(cluster, costs, plan.layout, {});
  REQUIRE(outcome.ok());
  plan.outcome = *std::move(outcome);
  const v1::Plan message = ToMessage(cluster, costs, {{"", cluster, plan}}, 1);
  CHECK(message.islands(0).programs_size() == 4);
  CHECK(message.islands(0).replicas(0).stages_size() == 8);
  CHECK(message.islands(0).link_orders_size() == 0);  // no send order within a site
  int64_t last_ns = 0, period_ns = 0;
  for (const v1::DeviceProgram& program : message.islands(0).programs()) {
    CHECK(program.busy_ns() > 0);
    CHECK(program.busy_ns() <= program.last_ns() - program.first_ns());
    last_ns = std::max(last_ns, program.last_ns());
    period_ns = std::max(period_ns, program.last_ns() - program.first_ns());
  }
  CHECK(message.makespan_ns() == last_ns);
  CHECK(message.period_ns() == period_ns);
  CHECK(message.period_ns() <= message.makespan_ns());
}

// Runs all programs of a plan at once: a receive waits for its send. True when all get to the end.
bool Completes(const v1::PlannedIsland& island) {
  std::multiset<std::string> sent;
  std::vector<int> next(island.programs_size(), 0);
  for (bool any = true; any;) {
    any = false;
    for (int p = 0; p < island.programs_size(); ++p) {
      const v1::DeviceProgram& program = island.programs(p);
      while (next[p] < program.operations_size()) {
        const v1::Operation& op = program.operations(next[p]);
        const std::string after =
            absl::StrCat(op.micro_batch(), op.kind() == v1::OPERATION_KIND_SEND
                                               ? absl::StrCat(program.device(), ">", op.peer())
                                               : absl::StrCat(op.peer(), ">", program.device()));
        if (op.kind() == v1::OPERATION_KIND_SEND) sent.insert(after);
        if (op.kind() == v1::OPERATION_KIND_RECEIVE) {
          const auto message = sent.find(after);
          if (message == sent.end()) break;
          sent.erase(message);
        }
        ++next[p];
        any = true;
      }
    }
  }
  for (int p = 0; p < island.programs_size(); ++p) {
    if (next[p] < island.programs(p).operations_size()) return false;
  }
  return sent.empty();
}

TEST_CASE("A plan's message holds programs that run to their end, and is valid JSON") {
  const auto cluster = Read(kTwoSites);
  REQUIRE(cluster.ok());
  const plan::Costs costs(*plan::FindModel("llama-7b"), {}, {});
  const plan::Job job{.global_batch = 16, .micro_batches = {1}, .tensor_parallel = {1}};
  const auto plan = plan::PlanJob(*cluster, costs, job, {});
  REQUIRE(plan.ok());
  const v1::Plan message = ToMessage(*cluster, costs, {{"", *cluster, *plan}}, 2048);
  REQUIRE(message.islands_size() == 1);
  CHECK(Completes(message.islands(0)));
  REQUIRE(message.islands(0).replicas(0).stages_size() > 1);  // no device holds the model alone
  double shares = 0;
  for (const v1::Replica& replica : message.islands(0).replicas()) shares += replica.sample_share();
  CHECK(shares == Approx(1));
  CHECK(message.islands(0).programs_size() + message.idle_devices_size() == 3);
  CHECK(message.bound_ns() <= message.step_ns());
  CHECK(message.islands(0).link_orders_size() == 0);  // the file says what edges share
  const auto json = nlohmann::json::parse(ToJson(message));
  CHECK(json["reason"] == plan->reason);
}

}  // namespace
}  // namespace atl
