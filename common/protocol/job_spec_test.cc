#include "common/protocol/job_spec.h"

#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

JobSpec GoodSpec() {
  JobSpec spec;
  spec.name = "tiny";
  spec.model.hidden = 64;
  spec.model.layers = 2;
  spec.model.heads = 4;
  spec.data.path = "corpus.txt";
  spec.schedule.train_tokens = 1 << 20;
  return spec;
}

std::string MessageAfter(const std::function<void(JobSpec&)>& change) {
  JobSpec spec = GoodSpec();
  change(spec);
  return std::string(Validate(spec).message());
}

TEST_CASE("a complete job is accepted") { REQUIRE(Validate(GoodSpec()).ok()); }

TEST_CASE("a refusal names the field, the value and the rule") {
  REQUIRE(MessageAfter([](JobSpec& s) { s.outer.momentum = 1.5; }) ==
          "outer.momentum = 1.5: must be at least 0 and below 1");
  REQUIRE(MessageAfter([](JobSpec& s) { s.inner.ema = 1; }) ==
          "inner.ema = 1: must be at least 0 and below 1");
  REQUIRE(MessageAfter([](JobSpec& s) { s.model.heads = 5; }) ==
          "model.hidden = 64: must be a multiple of model.heads = 5");
  REQUIRE(MessageAfter([](JobSpec& s) { s.data.path.clear(); }) ==
          "data.path is missing: the job needs it");
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.outer.min_servers = 0;
          }).find("outer.min_servers = 0: must be between 1 and 4096") == 0);
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.schedule.train_tokens = 0;
          }).find("schedule.train_tokens = 0: must be between 256 and") == 0);
  REQUIRE(MessageAfter([](JobSpec& s) { s.name = "Tiny Model"; }).find("name = \"Tiny Model\"") ==
          0);
}

TEST_CASE("a_batch_ramp_begins_at_0_and_rises_in_tokens_within_the_batch") {
  const auto with_ramp = [](std::vector<BatchStage> ramp) {
    return MessageAfter([&](JobSpec& s) { s.inner.batch_ramp = std::move(ramp); });
  };
  CHECK(with_ramp({{0, 2}, {1000, 8}}) == "");
  CHECK(with_ramp({{10, 2}}) == "inner.batch_ramp.tokens = 10: must be between 0 and 0");
  CHECK(with_ramp({{0, 2}, {5, 4}, {5, 8}}).find("inner.batch_ramp.tokens = 5: must be ") == 0);
  CHECK(with_ramp({{0, 0}}).find("inner.batch_ramp.sequences = 0: must be ") == 0);
  CHECK(with_ramp({{0, 9}}) == "inner.batch_ramp.sequences = 9: must be between 1 and 8");
}

TEST_CASE("a_warm_up_and_a_decay_fit_into_the_job") {
  const auto with_wsd = [](double warmup, double decay) {
    return MessageAfter([&](JobSpec& s) {
      s.inner.schedule = RateSchedule::kWsd;
      s.inner.warmup_fraction = warmup;
      s.inner.decay_fraction = decay;
    });
  };
  CHECK(with_wsd(0.25, 0.75) == "");
  CHECK(with_wsd(0, 1) == "");
  CHECK(with_wsd(0.25, 0.8).find("inner.decay_fraction = 0.8: ") == 0);
  CHECK(with_wsd(0, 1.5).find("inner.decay_fraction = 1.5: ") == 0);
}

TEST_CASE("documents_are_padded_where_they_end_and_fit_into_a_sequence") {
  const auto padded = [](DataFormat format, int64_t sequence_length) {
    return MessageAfter([&](JobSpec& s) {
      s.data.format = format;
      s.data.sequence_length = sequence_length;
      s.data.pad_documents = true;
    });
  };
  for (const DataFormat format : {DataFormat::kText, DataFormat::kJsonl, DataFormat::kShards}) {
    CHECK(padded(format, 3) == "");
  }
  CHECK(padded(DataFormat::kText, 2).find("data.sequence_length = 2: must be at least 3") == 0);
  for (const DataFormat format : {DataFormat::kTokens16, DataFormat::kTokens32,
                                  DataFormat::kMegatron, DataFormat::kChat, DataFormat::kIdx}) {
    CHECK(padded(format, format == DataFormat::kIdx ? 1 : 16).find("data.pad_documents = true: ") ==
          0);
  }
}

TEST_CASE("chat_date_is_a_day_of_format_chat_alone") {
  const auto dated = [](DataFormat format, const std::string& date) {
    return MessageAfter([&](JobSpec& s) {
      s.data.format = format;
      s.data.chat_date = date;
    });
  };
  CHECK(dated(DataFormat::kChat, "2026-03-04") == "");
  CHECK(dated(DataFormat::kJsonl, "2026-03-04").find("data.chat_date = ") == 0);
  for (const char* date : {"2026-13-01", "2026-3-4", "today", "2026-03-04T05:06:07"}) {
    CHECK(dated(DataFormat::kChat, date).find("data.chat_date = ") == 0);
  }
}

TEST_CASE("bad_documents_are_skipped_in_formats_of_lines_alone") {
  const auto skipping = [](DataFormat format) {
    return MessageAfter([&](JobSpec& s) {
      s.data.format = format;
      s.data.on_bad_document = OnBadDocument::kSkip;
    });
  };
  CHECK(skipping(DataFormat::kJsonl) == "");
  CHECK(skipping(DataFormat::kChat) == "");
  CHECK(skipping(DataFormat::kText).find("data.on_bad_document = \"skip\": ") == 0);
}

TEST_CASE("documents_are_packed_in_formats_that_say_where_they_end") {
  const auto packed = [](DataFormat format, Documents documents, bool padded = false) {
    return MessageAfter([&](JobSpec& s) {
      s.data.format = format;
      s.data.documents = documents;
      s.data.pad_documents = padded;
    });
  };
  for (const DataFormat format : {DataFormat::kJsonl, DataFormat::kChat, DataFormat::kShards}) {
    CHECK(packed(format, Documents::kMask) == "");
    CHECK(packed(format, Documents::kContinue) == "");
  }
  CHECK(packed(DataFormat::kText, Documents::kText) == "");
  CHECK(packed(DataFormat::kText, Documents::kMask).find("data.documents = \"mask\": ") == 0);
  CHECK(packed(DataFormat::kMegatron, Documents::kContinue)
            .find("data.documents = \"continue\": documents end where data.format is ") == 0);
  CHECK(packed(DataFormat::kJsonl, Documents::kMask, true)
            .find("data.documents = \"mask\": with data.pad_documents ") == 0);
}

TEST_CASE("what does not go together in outer rounds is refused by name") {
  const auto fragments = [](JobSpec& s) { s.outer.fragments = 2; };
  REQUIRE(MessageAfter(fragments) == "");
  REQUIRE(MessageAfter([&](JobSpec& s) {
            fragments(s);
            s.outer.pull_encoding = Encoding::kInt4;
          }) == "");
  REQUIRE(MessageAfter([&](JobSpec& s) {
            fragments(s);
            s.outer.optimizer = "delayed_nesterov";
          }).find("outer.fragments = 2: must be 1 with an outer.optimizer") == 0);
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.outer.fragment_delay_steps = 1;
          }).find("outer.fragment_delay_steps = 1: must be 0 without outer.steps_per_round") == 0);
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.layout.link_limits = {{"a", "b", 1e9}};
          }).find("outer.steps_per_round = 0: must be given with layout.link_limits") == 0);
}

TEST_CASE("averaged moments are refused by name where they cannot be") {
  const auto message = [](const std::function<void(OuterSpec&)>& change) {
    return MessageAfter([&](JobSpec& s) {
      s.outer.average_moments_steps = 16;
      change(s.outer);
    });
  };
  CHECK(message([](OuterSpec&) {}).empty());
  const std::string refused = "outer.average_moments_steps = 16: must be 0 with outer.fragments";
  CHECK(message([](OuterSpec& o) { o.fragments = 2; }).find(refused) == 0);
  CHECK(message([](OuterSpec& o) { o.optimizer = "delayed_nesterov"; }).find(refused) == 0);
  CHECK(message([](OuterSpec& o) {
          o.site.rounds = 4;
          o.push_encoding = o.pull_encoding = Encoding::kFloat32;
        }).find(refused) == 0);
  CHECK(message([](OuterSpec& o) {
          o.average_moments_steps = -1;
        }).find("outer.average_moments_steps = -1: must be between 0 and") == 0);
  CHECK(message([](OuterSpec& o) {
          o.push_encoding = WithMoments(Encoding::kInt4);
        }).find("outer.push_encoding, outer.pull_encoding: must be without moments") == 0);
}

TEST_CASE("rounds of a site's servers are refused by name where they cannot be") {
  const auto message = [](const std::function<void(OuterSpec&)>& change) {
    return MessageAfter([&](JobSpec& s) {
      s.outer.site.rounds = 4;
      change(s.outer);
    });
  };
  const auto begins = [&](const std::function<void(OuterSpec&)>& change, const std::string& text) {
    INFO(message(change));
    CHECK(message(change).find(text) == 0);
  };
  CHECK(message([](OuterSpec&) {}).empty());
  CHECK(message([](OuterSpec& o) {
          o.site = {1 << 20, "nesterov_gain", "gain_target=1.5", 0.5, 0.9};
          o.push_encoding = Encoding::kBfloat16;
          o.optimizer = "delayed_nesterov";
          o.pull_encoding = Encoding::kInt8;
          o.shard_copies = 2;
        }).empty());
  begins([](OuterSpec& o) { o.site.rounds = -1; }, "outer.site.rounds = -1: must be between 0 and");
  begins([](OuterSpec& o) { o.site.rounds = (1 << 20) + 1; }, "outer.site.rounds = 1048577: must");
  begins([](OuterSpec& o) { o.site.learning_rate = 100; }, "outer.site.learning_rate = 100: must");
  begins([](OuterSpec& o) { o.site.momentum = 1; }, "outer.site.momentum = 1: must be at least 0");
  begins([](OuterSpec& o) { o.site.optimizer = "adam"; }, "outer.site.optimizer = \"adam\": must");
  begins([](OuterSpec& o) { o.site.parameters = "pushes=2"; },
         "outer.site.parameters = \"pushes=2\": sgd has no parameters");
  begins([](OuterSpec& o) { o.site.optimizer = "delayed_nesterov"; },
         "outer.site.optimizer = \"delayed_nesterov\": must be one for which not");
  begins([](OuterSpec& o) { o.fragments = 2; }, "outer.fragments = 2: must be 1 with outer.site");
  begins([](OuterSpec& o) { o.push_encoding = Encoding::kInt8; },
         "outer.push_encoding = \"int8\": must be \"float32\" or \"bfloat16\"");
  CHECK(MessageAfter([](JobSpec& s) {
          s.outer.contributes_to = "job-1";
        }).find("outer.contributes_to = \"job-1\": must be left out") == 0);
  CHECK(MessageAfter([](JobSpec& s) {
          s.outer.site.momentum = 2;
        }).find("outer.site.momentum = 2: must") == 0);  // also without rounds
}

TEST_CASE("a_most_of_a_round_and_a_robust_merge_need_rounds_of_several_pushes") {
  const auto message = [](double max_share, const std::string& merge,
                          const std::string& optimizer = "sgd") {
    return MessageAfter([&](JobSpec& s) {
      s.outer.max_share = max_share;
      s.outer.merge = merge;
      s.outer.optimizer = optimizer;
    });
  };
  CHECK(message(0.25, "geometric_median").empty());
  CHECK(message(0.01, "trimmed_norms", "nesterov").empty());
  CHECK(message(1, "mean", "delayed_nesterov").empty());
  CHECK(message(0, "mean").find("outer.max_share = 0: must be at least 0.01") == 0);
  CHECK(message(1.5, "mean").find("outer.max_share = 1.5: must") == 0);
  CHECK(message(0.5, "radial").find("outer.max_share = 0.5: must be 1 with outer.merge") == 0);
  CHECK(message(1, "median").find("outer.merge = \"median\": must be one of mean, radial") == 0);
  const std::string single = "outer.optimizer = \"delayed_nesterov\": each push makes a round";
  CHECK(message(0.5, "mean", "delayed_nesterov").find(single) == 0);
  CHECK(message(1, "geometric_median", "delayed_nesterov").find(single) == 0);
}

TEST_CASE("a layout that no model or batch allows is refused by its field") {
  REQUIRE(MessageAfter([](JobSpec& s) { s.layout.stages = 5; }) ==
          "layout.stages = 5: must be at most 4: the model's layers with embedding and head");
  REQUIRE(MessageAfter([](JobSpec& s) { s.layout.replicas = 9; }) ==
          "layout.replicas = 9: must be at most inner.batch_sequences = 8");
  REQUIRE(
      MessageAfter([](JobSpec& s) {
        s.inner.optimizer = InnerOptimizer::kMuon;
        s.layout.tensor_parallel = 2;
      }) ==
      "layout.tensor_parallel = 2: must be 1 (or 0) with inner.optimizer = \"muon\", which steps "
      "whole matrices");
  REQUIRE(MessageAfter([](JobSpec& s) { s.layout.tensor_parallel = 5; }) ==
          "layout.tensor_parallel = 5: must be at most model.heads = 4");
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.model.family = ModelFamily::kLlama;
            s.model.heads = 8;
            s.model.key_value_heads = 4;
            s.layout.tensor_parallel = 8;
          }) == "layout.tensor_parallel = 8: must be at most model.key_value_heads = 4");
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.model.feed_forward = 2;
            s.layout.tensor_parallel = 4;
          }) == "layout.tensor_parallel = 4: must be at most model.feed_forward = 2");
  REQUIRE(
      MessageAfter([](JobSpec& s) {
        s.layout.tensor_split_ratios = {2, 1};
      }) ==
      "layout.tensor_split_ratios has 2 numbers: must have layout.tensor_parallel = 0 of them; say "
      "how many devices share each layer");
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.layout.tensor_parallel = 2;
            s.layout.tensor_split_ratios = {2, 0};
          }) == "layout.tensor_split_ratios = 0: must be between 1 and 1048576");
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.layout.tensor_parallel = 2;
            s.layout.tensor_split_ratios = {2, 1};
          }) ==
          "layout.tensor_split_ratios = [2, 1]: the model's 4 key-value heads cannot be cut so; "
          "give each device a whole number of them, at least 1, 4 in all");
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.layout.tensor_parallel = 2;
            s.layout.tensor_split_ratios = {3, 1};
          }).empty());
  REQUIRE(MessageAfter([](JobSpec& s) { s.layout.chunks_max = 6; }) ==
          "layout.chunks_max = 6: must be a power of two");
  REQUIRE(MessageAfter([](JobSpec& s) { s.layout.workers_per_island = 2; }) ==
          "layout.workers_per_island = 2: must be 0 or 1 with layout.island = \"worker\"");
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.layout.schedule = "fastest";
          }).find("layout.schedule = \"fastest\": must be one of gpipe, 1f1b,") == 0);
  JobSpec spec = GoodSpec();
  spec.layout = {IslandScope::kSite, 4, 2, 2, 1, "compact-zb", Recompute::kAll, 4, {}};
  REQUIRE(Validate(spec).ok());
}

TEST_CASE("what a layout leaves out and limits is refused by its field where it cannot be") {
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.outer.steps_per_round = 64;
            s.layout.exclude = {"worker-3", "worker-4/1"};
            s.layout.sites = {"paris"};
            s.layout.memory_reserve_bytes = 1 << 30;
            s.layout.link_limits = {{"paris", "rome", 1e9}, {"rome", "paris", 1e9}};
          }).empty());
  const auto refused = [](auto change, const char* field) {
    const std::string message = MessageAfter(change);
    INFO(message);
    CHECK(message.find(field) == 0);
  };
  refused([](JobSpec& s) { s.layout.exclude = {"w", "w"}; }, "layout.exclude names \"w\" twice");
  refused([](JobSpec& s) { s.layout.exclude = {""}; }, "layout.exclude has a name");
  refused([](JobSpec& s) { s.layout.sites = {"a\nb"}; }, "layout.sites has a name");
  refused([](JobSpec& s) { s.layout.exclude.resize(kExcludedMax + 1); },
          "the number of layout.exclude");
  refused([](JobSpec& s) { s.layout.memory_reserve_bytes = -1; },
          "layout.memory_reserve_bytes = -1");
  refused([](JobSpec& s) { s.layout.link_limits = {{"a", "", 1}}; }, "layout.link_limits.to");
  refused([](JobSpec& s) { s.layout.link_limits = {{"a", "a", 1}}; }, "layout.link_limits.to");
  for (const double bytes : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
    refused(
        [&](JobSpec& s) {
          s.layout.link_limits = {{"a", "b", bytes}};
        },
        "layout.link_limits.bytes_per_day");
  }
  refused(
      [](JobSpec& s) {
        s.layout.link_limits = {{"a", "b", 1}, {"a", "b", 2}};
      },
      "layout.link_limits.from = \"a\", to = \"b\"");
}

TEST_CASE("workers take part unless their names, all their devices or their sites say otherwise") {
  LayoutSpec layout;
  CHECK(WhyNoPart(layout, "w", "", 2).empty());
  layout.exclude = {"v", "w/1"};
  CHECK(WhyNoPart(layout, "w", "", 2).empty());
  CHECK_FALSE(WhyNoPart(layout, "v", "", 2).empty());
  layout.exclude.push_back("w/0");
  CHECK_FALSE(WhyNoPart(layout, "w", "", 2).empty());
  CHECK(WhyNoPart(layout, "w", "", 3).empty());
  layout.sites = {"paris"};
  CHECK(WhyNoPart(layout, "u", "paris", 1).empty());
  CHECK_FALSE(WhyNoPart(layout, "u", "rome", 1).empty());
  CHECK_FALSE(WhyNoPart(layout, "u", "", 1).empty());
  CHECK(BytesForJob(layout, 100) == 100);
  layout.memory_reserve_bytes = 40;
  CHECK(BytesForJob(layout, 100) == 60);
  CHECK(BytesForJob(layout, 30) == 1);
  CHECK(BytesForJob(layout, 0) == 0);  // not known
}

TEST_CASE("copies of an island's state: how many, and where") {
  REQUIRE(MessageAfter([](JobSpec& s) { s.checkpoint.peer_copies = 3; }) ==
          "checkpoint.peer_copies = 3: must be between 0 and 2");
  REQUIRE(!MessageAfter([](JobSpec& s) { s.checkpoint.peer_every_steps = -1; }).empty());
  for (const char* remote : {"s3://", "folder/below", "https://host/path"}) {
    REQUIRE(MessageAfter([&](JobSpec& s) { s.checkpoint.remote = remote; }) ==
            absl::StrCat("checkpoint.remote = \"", remote,
                         "\": must be s3://BUCKET/PREFIX or the absolute path of a folder that all "
                         "workers share, or left out"));
  }
  for (const char* remote : {"s3://bucket", "s3://bucket/prefix", "/mnt/shared"}) {
    REQUIRE(MessageAfter([&](JobSpec& s) { s.checkpoint.remote = remote; }) == "");
  }
}

TEST_CASE("an image folder needs the size of its squares, and other data none") {
  const auto after = [](DataFormat format, int64_t image_size) {
    return MessageAfter([&](JobSpec& s) {
      s.data.format = format;
      s.data.sequence_length = IsImages(format) ? 1 : 256;
      s.data.image_size = image_size;
    });
  };
  CHECK(after(DataFormat::kImageFolder, 64) == "");
  CHECK(after(DataFormat::kImageFolder, 0).find("data.image_size = 0: ") == 0);
  CHECK(after(DataFormat::kImageFolder, kImageSideMax + 1).find("data.image_size = ") == 0);
  CHECK(after(DataFormat::kIdx, 64).find("data.image_size") == 0);
  CHECK(after(DataFormat::kText, 64).find("data.image_size") == 0);
}

TEST_CASE("not-a-number and infinity are never in range") {
  REQUIRE(!MessageAfter([](JobSpec& s) { s.inner.learning_rate = std::nan(""); }).empty());
  REQUIRE(!MessageAfter([](JobSpec& s) { s.inner.clip_norm = 1.0 / 0.0; }).empty());
}

TEST_CASE("a model is either numbers or a config file") {
  REQUIRE(MessageAfter([](JobSpec& s) {
            s.model.config_path = "config.json";
          }).find("model.config_path is given together with") == 0);
  JobSpec spec = GoodSpec();
  spec.model = ModelSpec{};
  spec.model.config_path = "config.json";
  REQUIRE(Validate(spec).ok());
}

TEST_CASE("adapters_are_checked_by_name") {
  const auto lora = [](JobSpec& s) {
    s.model.initial_weights_path = "/base";
    s.adapter = {.kind = AdapterKind::kLora, .rank = 8, .targets = {"q_proj", "v_proj"}};
  };
  CHECK(MessageAfter(lora).empty());
  const auto refused = [&](auto change, const char* field) {
    const std::string message = MessageAfter([&](JobSpec& s) {
      lora(s);
      change(s);
    });
    INFO(message);
    CHECK(message.find(field) == 0);
  };
  refused([](JobSpec& s) { s.adapter.kind = AdapterKind::kNone; }, "adapter.kind");
  refused([](JobSpec& s) { s.adapter.rank = 0; }, "adapter.rank = 0");
  refused([](JobSpec& s) { s.adapter.rank = kAdapterRankMax + 1; }, "adapter.rank");
  refused([](JobSpec& s) { s.adapter.alpha = 0; }, "adapter.alpha = 0");
  refused([](JobSpec& s) { s.adapter.alpha = 2 * kAdapterAlphaMax; }, "adapter.alpha = 2");
  refused([](JobSpec& s) { s.adapter.path = "hf://org/adapter"; }, "adapter.path");
  refused(
      [](JobSpec& s) {
        s.adapter.path = "/adapter";
        s.adapter.init = AdapterInit::kGaussian;
      },
      "adapter.init");
  refused([](JobSpec& s) { s.adapter.targets.clear(); }, "the number of adapter.targets");
  refused([](JobSpec& s) { s.adapter.targets = {"a", "a"}; }, "adapter.targets has \"a\"");
  refused([](JobSpec& s) { s.adapter.targets = {"all-linear", "a"}; }, "adapter.targets has");
  refused([](JobSpec& s) { s.model.initial_weights_path = ""; }, "model.initial_weights_path");
}

TEST_CASE("objectives_are_checked_by_name") {
  const auto dpo = [](JobSpec& s) {
    s.model.initial_weights_path = "/base";
    s.adapter = {.kind = AdapterKind::kLora, .targets = {"all-linear"}};
    s.data.format = DataFormat::kChat;
    s.objective = {.kind = ObjectiveKind::kDpo, .beta = 0.5, .label_smoothing = 0.1};
  };
  CHECK(MessageAfter(dpo).empty());
  const auto refused = [&](auto change, const char* field) {
    const std::string message = MessageAfter([&](JobSpec& s) {
      dpo(s);
      change(s);
    });
    INFO(message);
    CHECK(message.find(field) == 0);
  };
  refused([](JobSpec& s) { s.objective.kind = ObjectiveKind::kModel; }, "objective.kind");
  refused([](JobSpec& s) { s.objective.beta = 0; }, "objective.beta = 0");
  refused([](JobSpec& s) { s.objective.beta = NAN; }, "objective.beta = nan");
  refused([](JobSpec& s) { s.objective.label_smoothing = 0.5; }, "objective.label_smoothing");
  refused([](JobSpec& s) { s.objective.reference = "/q"; }, "objective.reference");
  const auto whole = [](JobSpec& s, const std::string& reference) {
    s.adapter = {};
    s.model.initial_weights_path.clear();
    s.objective.reference = reference;
  };
  refused([&](JobSpec& s) { whole(s, ""); }, "objective.reference is missing");
  refused([&](JobSpec& s) { whole(s, "hf://q"); }, "objective.reference = \"hf://q\"");
  CHECK(MessageAfter([&](JobSpec& s) {
          dpo(s);
          whole(s, "/q");
        }).empty());
  refused([](JobSpec& s) { s.data.format = DataFormat::kJsonl; },
          "objective.kind = \"dpo\": data.format");
  refused([](JobSpec& s) { s.inner.batch_sequences = kPairsMax + 1; }, "inner.batch_sequences");
}

}  // namespace
}  // namespace atl
