// Safetensors files: numbers of every type, hostile headers, types that weights are written in.

#include <catch2/catch.hpp>

#include "common/model/testing/model_sizes.h"
#include "worker/model/testing/weights_fixture.h"

namespace atl {
namespace {

TEST_CASE("half precisions become fp32 exactly") {
  Folder folder;
  const std::string header = R"({"h":{"dtype":"F16","shape":[6],"data_offsets":[0,12]},)"
                             R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[12,16]},)"
                             R"("i":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}})";
  const std::string data = Raw<uint16_t>({0x3c00, 0xc000, 0x7bff, 0x0001, 0x8000, 0x7c00}) +
                           Raw<uint16_t>({0x3f80, 0xc049}) + Raw<int64_t>({1});
  const auto reader = SafetensorsReader::Open(folder.Write("f", Safetensors(header, data)));
  std::vector<float> half(6), brain(2), one(1);
  Must(reader->Read("h", half));
  REQUIRE(half == std::vector<float>{1, -2, 65504, 0x1p-24f, -0.0f, INFINITY});
  Must(reader->Read("b", brain));
  REQUIRE(brain == std::vector<float>{1, -3.140625f});
  REQUIRE_THAT(std::string(reader->Read("i", one).message()), Contains("is I64; expected F32"));
}

TEST_CASE("a hostile safetensors file is refused before its numbers are believed") {
  Folder folder;
  const auto why = [&](const std::string& header, size_t data_bytes = 8) {
    return WhyNotOpen(folder.Write("f", Safetensors(header, std::string(data_bytes, 'x'))));
  };
  const auto tensor = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  REQUIRE(
      SafetensorsReader::Open(folder.Write("f", Safetensors(tensor("[2]", "[0,8]"), "12345678")))
          .ok());
  REQUIRE_THAT(why(tensor("[3]", "[0,8]")), Contains("tensor \"a\" has shape [3]"));
  REQUIRE_THAT(why(tensor("[3]", "[0,12]")), Contains("data_offsets"));
  REQUIRE_THAT(why(tensor("[4294967296,4294967296]", "[0,8]")), Contains("shape"));
  REQUIRE_THAT(why(tensor("[-2]", "[0,8]")), Contains("is -2; expected a whole number"));
  REQUIRE_THAT(why(tensor("[18446744073709551615]", "[0,8]")), Contains("whole number"));
  REQUIRE_THAT(why(tensor("[2.0]", "[0,8]")), Contains("whole number"));
  REQUIRE_THAT(why(tensor("[2]", "[8,0]")), Contains("data from byte 8 to 0"));
  REQUIRE_THAT(why(tensor("[1]", "[4,8]")), Contains("gap at byte 0"));
  REQUIRE_THAT(why(tensor("[1]", "[0,4]")), Contains("has 8 bytes of data, its header says 4"));
  REQUIRE_THAT(why(tensor("[1,1,1,1,1,1,1,1,2]", "[0,8]")), Contains("more than 8 dimensions"));
  REQUIRE_THAT(why(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                   R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
               Contains("overlap"));
  REQUIRE_THAT(why(R"({"a":1})"), Contains("is not {dtype, shape, data_offsets}"));
  REQUIRE_THAT(why(R"({"a":{"dtype":"X","shape":[2],"data_offsets":[0,8]}})"),
               Contains("the dtype \"X\""));
  REQUIRE_THAT(why(R"({"a":{},"a":{}})"), Contains("key \"a\" is given twice"));
  REQUIRE_THAT(why(std::string(100000, '[')), Contains("f: "));
  REQUIRE_THAT(why("[1]"), Contains("expected a JSON object"));
  REQUIRE_THAT(why("{"), Contains("not valid JSON"));
  REQUIRE_THAT(WhyNotOpen(folder.Write("f", Raw<uint64_t>({uint64_t{1} << 60}) + "{}")),
               Contains("says that its header has"));
  REQUIRE_THAT(WhyNotOpen(folder.Write("f", "1234567")), Contains("too short"));
}

TEST_CASE("a file cut anywhere, or with any bit of its header wrong, never reads outside") {
  Folder folder;
  Must(Weights::Random(TinyModel(ModelFamily::kLlama, true)).WriteTo(folder.path()));
  const std::string whole = folder.Read("model.safetensors");
  for (size_t bytes = 0; bytes < whole.size(); bytes += 97) {
    WhyNotOpen(folder.Write("cut", whole.substr(0, bytes)));
  }
  Rng rng(1);
  for (int i = 0; i < 400; ++i) {
    std::string broken = whole;
    broken[rng.Below(1000)] ^= static_cast<char>(1 << rng.Below(8));
    const auto reader = SafetensorsReader::Open(folder.Write("broken", broken));
    if (!reader.ok()) continue;  // a changed name or number may still make a valid file
    for (const auto& [name, entry] : reader->tensors()) {
      REQUIRE(entry.end <= static_cast<int64_t>(whole.size()));
    }
  }
}

// ---- weights in half precision ----

TEST_CASE("weights_are_rounded_to_the_nearest_even_number_of_the_type_they_are_written_in") {
  // Ties between two numbers of bf16 (8 bits) and of fp16 (11 bits), a subnormal of fp16, and a
  // number just above a tie.
  const std::vector<float> values = {1 + 0x1p-8f,  1 + 3 * 0x1p-8f, 1 + 0x1p-11f, 1 + 3 * 0x1p-11f,
                                     3 * 0x1p-25f, -0x1p-25f,       -65504,       1 + 0x1.1p-8f};
  const std::map<WeightType, std::vector<float>> expected = {
      {WeightType::kFp32, values},
      {WeightType::kBf16, {1, 1 + 0x1p-6f, 1, 1, 3 * 0x1p-25f, -0x1p-25f, -65536, 1 + 0x1p-7f}},
      {WeightType::kFp16,
       {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1, 1 + 0x1p-9f, 0x1p-23f, -0.0f, -65504, 1 + 0x1p-8f}}};
  Folder folder;
  for (const auto& [type, rounded] : expected) {
    CAPTURE(Describe(type).name);
    auto writer = SafetensorsWriter::Create(folder / "f",
                                            std::vector<SafetensorsWriter::Spec>{{"t", {8}}}, type);
    Must(writer.status());
    Must(writer->Append(values));
    Must(writer->Finish());
    const auto reader = SafetensorsReader::Open(folder / "f");
    CHECK(reader->tensors().at("t").dtype == Describe(type).safetensors);
    std::vector<float> read(8);
    Must(reader->Read("t", read));
    CHECK(read == rounded);
  }
}

TEST_CASE("every_number_of_half_precision_is_written_as_itself") {
  Folder folder;
  const WeightType type = GENERATE(WeightType::kFp16, WeightType::kBf16);
  std::string bits;
  for (uint32_t i = 0; i < 65536; ++i) bits += Raw<uint16_t>({static_cast<uint16_t>(i)});
  const std::string dtype = Describe(type).safetensors;
  const auto reader = SafetensorsReader::Open(folder.Write(
      "f",
      Safetensors(R"({"t":{"dtype":")" + dtype + R"(","shape":[65536],"data_offsets":[0,131072]}})",
                  bits)));
  Must(reader.status());
  std::vector<float> values(65536), again(65536);
  Must(reader->Read("t", values));
  auto writer = SafetensorsWriter::Create(
      folder / "g", std::vector<SafetensorsWriter::Spec>{{"t", {65536}}}, type);
  Must(writer->Append(values));
  Must(writer->Finish());
  Must(SafetensorsReader::Open(folder / "g")->Read("t", again));
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      REQUIRE(std::isnan(again[i]));
    } else {
      REQUIRE(std::bit_cast<uint32_t>(values[i]) == std::bit_cast<uint32_t>(again[i]));
    }
  }
}

TEST_CASE("numbers_beyond_the_type_are_refused_by_name") {
  Folder folder;
  Weights weights = Weights::Random(TinyModel(ModelFamily::kLlama, true));
  weights.values[1][5] = 65520;
  CHECK_THAT(std::string(weights.WriteTo(folder.path(), 1 << 30, WeightType::kFp16).message()),
             Contains("tensor \"model.layers.0.") &&
                 Contains("has the value 65520, beyond what fp16 holds; write it as fp32"));
  CHECK_FALSE(std::filesystem::exists(folder / "model.safetensors"));
  Must(weights.WriteTo(folder.path(), 1 << 30, WeightType::kBf16));
}

TEST_CASE("folder_in_half_precision_says_so_and_its_shards_hold_twice_as_many_numbers") {
  Folder folder;
  const Weights original = Weights::Random(TinyModel(ModelFamily::kLlama, false));
  Must(original.WriteTo(folder / "bf16", 1000, WeightType::kBf16));
  Must(original.WriteTo(folder / "fp32", 2000));
  CHECK_THAT(folder.Read("bf16/config.json"), Contains("\"torch_dtype\": \"bfloat16\""));
  const auto index = [&](const std::string& name) {
    return folder.Read(name + "/model.safetensors.index.json");
  };
  const int64_t bytes = 2 * atl::testing::ParameterCount(original.config);
  CHECK_THAT(index("bf16"), Contains(absl::StrCat("\"total_size\": ", bytes, "\n")));
  CHECK_THAT(index("fp32"), Contains(absl::StrCat("\"total_size\": ", 2 * bytes, "\n")));
  const std::string map = index("bf16");
  CHECK(map.substr(map.find("weight_map")) ==
        index("fp32").substr(index("fp32").find("weight_map")));
  Weights copy(original.config);
  Must(copy.ReadFrom(folder / "bf16"));
  for (size_t l = 0; l < copy.values.size(); ++l) {
    for (size_t i = 0; i < copy.values[l].size(); ++i) {
      REQUIRE(copy.values[l][i] == Approx(original.values[l][i]).epsilon(1.0 / 256).margin(0));
    }
  }
}

// ---- weights from a seed ----

}  // namespace
}  // namespace atl
