#include "cli/profile.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"

namespace atl::cli {
namespace {

// Two workers near each other and one far away; four layers.
v1::ClusterProfile Measured() {
  v1::ClusterProfile profile;
  profile.set_job("lm-1");
  profile.set_model_digest("00ff");
  for (const char* worker : {"a", "b", "c"}) {
    v1::Device* device = profile.mutable_cluster()->add_devices();
    device->set_id(absl::StrCat(worker, "/0"));
    device->set_type(worker[0] == 'b' ? "cpu #2" : "cpu");
    device->set_node(worker);
    device->set_site(worker[0] == 'c' ? "site2" : "site1");
    device->set_memory_bytes(int64_t{1} << 30);
  }
  for (const char* from : {"a", "b", "c"}) {
    for (const char* to : {"a", "b", "c"}) {
      if (from[0] == to[0]) continue;
      const bool far = from[0] == 'c' || to[0] == 'c';
      v1::Link* link = profile.mutable_cluster()->add_links();
      link->set_from(absl::StrCat(from, "/0"));
      link->set_to(absl::StrCat(to, "/0"));
      link->add_edges()->set_latency_ns(far ? 20'000'000 : 100'000);
      link->mutable_edges(0)->set_bandwidth_bytes_per_s(far ? 12.5e6 : 1.25e9);
      link->set_residual_ratio(0.02);
      link->set_age_s(90);
      link->set_live(far);
    }
  }
  for (const char* type : {"cpu", "cpu #2"}) {
    for (int layer = 0; layer < 4; ++layer) {
      v1::LayerTime* time = profile.add_times();
      time->set_type(type);
      time->set_tensor_parallel(1);
      time->set_micro_batch_sequences(2);
      time->set_layer(layer);
      time->set_forward_ns(type[3] == '\0' ? 1'500'000 : 3'000'000);
      if (layer > 0) time->set_input_gradient_ns(1'000'000);
      time->set_weight_gradient_ns(1'000'000);
      time->set_spread_ratio(0.04);
    }
  }
  return profile;
}

TEST_CASE("a profile shows devices, groups of two levels, times of each kind of layer, and links") {
  const std::string text = ProfileText(Measured());
  INFO(text);
  CHECK_THAT(text, Catch::Contains("b/0     cpu #2  site1  1.00 GiB"));
  CHECK_THAT(text, Catch::Contains("1: a/0 | b/0\n") && Catch::Contains("2: c/0\n"));
  CHECK_THAT(text, Catch::Contains("layer times of lm-1 (model 00ff)"));
  CHECK_THAT(text, Catch::Contains("1.500") && Catch::Contains("3.000"));
  CHECK_THAT(text, Catch::Contains("100.0") && Catch::Contains("2.0%") &&
                       Catch::Contains("1 min 30 s ago, by training"));
  size_t blocks = 0;
  for (size_t at = text.find("block"); at != std::string::npos; at = text.find("block", at + 1)) {
    ++blocks;
  }
  CHECK(blocks == 2);  // one of each type stands for all
}

TEST_CASE("a profile prints when a link was measured at rest, and drift") {
  v1::ClusterProfile profile = Measured();
  CHECK_THAT(ProfileText(profile), Catch::Contains("1 min 30 s ago, at rest\n") &&
                                       Catch::Contains("\"#2\": of the same kind, but what was") &&
                                       !Catch::Contains("not as measured"));
  profile.mutable_cluster()->mutable_devices(1)->set_type("cpu");
  profile.add_troubles("a/0 is 1.6 times slower than measured");
  CHECK_THAT(ProfileText(profile),
             Catch::Contains("\nnot as measured (times and links above are as they are now)\n"
                             "  a/0 is 1.6 times slower than measured\n") &&
                 !Catch::Contains("of the same kind"));
}

TEST_CASE("a profile begins with measurements under way") {
  v1::ClusterProfile profile = Measured();
  CHECK_THAT(ProfileText(profile), !Catch::Contains("not complete"));
  profile.add_measuring("a measures the link to c (2 of 2)");
  CHECK_THAT(ProfileText(profile),
             Catch::StartsWith("not complete yet\n  a measures the link to c (2 of 2)\n\ndevices"));
}

TEST_CASE("a profile without measurements is reported") {
  v1::ClusterProfile profile = Measured();
  profile.clear_times();
  profile.mutable_cluster()->clear_links();
  profile.set_assumptions("3 of 3 devices not measured");
  const std::string text = ProfileText(profile);
  CHECK_THAT(text, Catch::Contains("layer times: none measured") &&
                       Catch::Contains("links: none measured") &&
                       Catch::Contains("plans assume: 3 of 3 devices not measured"));
}

}  // namespace
}  // namespace atl::cli
