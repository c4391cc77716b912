#include "cli/model/export_folder.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/model/model_folder.h"

namespace atl::cli {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "atoll_export_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::string Write(const std::string& name) const {
    fs::create_directories(fs::path(at(name)).parent_path());
    std::ofstream(at(name)) << name;
    return at(name);
  }

 private:
  fs::path path_;
};

TEST_CASE("an export goes into a new folder, an empty one or an earlier export, and no other") {
  Folder folder;
  CHECK(CheckExportFolder(folder.at("new")).ok());
  fs::create_directory(folder.at("empty"));
  CHECK(CheckExportFolder(folder.at("empty")).ok());
  folder.Write("old/config.json");
  folder.Write("old/model-00001-of-00002.safetensors");
  folder.Write("old/tokenizer.json");
  CHECK(CheckExportFolder(folder.at("old")).code() == absl::StatusCode::kAlreadyExists);
  folder.Write("old/atoll-job");
  CHECK(CheckExportFolder(folder.at("old")).ok());
  folder.Write("old/notes.txt");
  CHECK(CheckExportFolder(folder.at("old")).code() == absl::StatusCode::kAlreadyExists);
  CHECK(CheckExportFolder(folder.Write("file")).code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("a tokenizer's files are copied, under their usual names") {
  Folder folder;
  fs::create_directory(folder.at("to"));
  folder.Write("from/tokenizer.json");
  folder.Write("from/tokenizer_config.json");
  folder.Write("from/weights.bin");
  CHECK(CopyTokenizer(folder.at("from"), folder.at("to"))->size() == 2);
  CHECK(fs::exists(folder.at("to/tokenizer_config.json")));
  CHECK_FALSE(fs::exists(folder.at("to/weights.bin")));
  CHECK(CopyTokenizer(folder.Write("my/words.model"), folder.at("to")).value() ==
        std::vector<std::string>{"tokenizer.model"});
  CHECK(fs::exists(folder.at("to/tokenizer.model")));
  CHECK(absl::IsNotFound(CopyTokenizer(folder.at("nowhere"), folder.at("to")).status()));
}

TEST_CASE("tokenizer_json_without_a_config_gets_one_and_a_config_that_is_there_stays") {
  Folder folder;
  fs::create_directory(folder.at("to"));
  CHECK(CopyTokenizer(folder.Write("alone/words.json"), folder.at("to")).value() ==
        std::vector<std::string>{"tokenizer.json"});
  const auto read = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const nlohmann::json made =
      nlohmann::json::parse(read(folder.at("to/tokenizer_config.json")), nullptr, false);
  CHECK(made == nlohmann::json{{"clean_up_tokenization_spaces", false},
                               {"tokenizer_class", "PreTrainedTokenizerFast"}});
  folder.Write("both/tokenizer.json");
  folder.Write("both/tokenizer_config.json");
  CHECK(CopyTokenizer(folder.at("both"), folder.at("to")).ok());
  CHECK(read(folder.at("to/tokenizer_config.json")) == "both/tokenizer_config.json");
  fs::create_directory(folder.at("model"));
  CHECK(CopyTokenizer(folder.Write("my/words.model"), folder.at("model")).ok());
  CHECK_FALSE(fs::exists(folder.at("model/tokenizer_config.json")));
}

TEST_CASE("how text is generated comes from the folder of the model") {
  Folder folder;
  fs::create_directory(folder.at("to"));
  folder.Write("from/config.json");
  const std::string copy = folder.at("to/generation_config.json");
  ModelSpec model;
  CHECK(CopyGenerationConfig(model, folder.at("to")).ok());
  model.initial_weights_path = folder.at("from");
  CHECK(CopyGenerationConfig(model, folder.at("to")).ok());
  CHECK_FALSE(fs::exists(copy));
  folder.Write("from/generation_config.json");
  CHECK(CopyGenerationConfig(model, folder.at("to")).ok());
  CHECK(fs::exists(copy));
  folder.Write("to/atoll-job");
  CHECK(CheckExportFolder(folder.at("to")).ok());
  CHECK(CopyGenerationConfig(model, folder.at("from")).ok());
  fs::remove(copy);
  model = ModelSpec();
  model.config_path = folder.at("from/config.json");
  CHECK(CopyGenerationConfig(model, folder.at("to")).ok());
  CHECK(fs::exists(copy));
  model.config_path = folder.at("nowhere/config.json");
  CHECK(absl::IsNotFound(CopyGenerationConfig(model, folder.at("to"))));
}

TEST_CASE("names of classes go into config.json and come back, one for each of the model's") {
  Folder folder;
  folder.Write("config.json");
  std::ofstream(folder.at("config.json"))
      << R"({"model_type": "resnet", "num_labels": 3, "depths": [1, 1], "hidden_sizes": [8, 16],)"
      << R"( "embedding_size": 8, "layer_type": "basic"})";
  const std::string path = folder.at("");
  CHECK(ReadClassNames(path, 3)->empty());
  REQUIRE(WriteClassNames(path, {"cat", "dog"}).ok());
  CHECK(*ReadClassNames(path, 3) == std::vector<std::string>{"cat", "dog", "LABEL_2"});
  CHECK(absl::IsInvalidArgument(ReadClassNames(path, 4).status()));
}

TEST_CASE("a_class_that_is_named_twice_while_another_has_no_name_is_refused") {
  Folder folder;
  std::ofstream(folder.at("config.json")) << R"({"id2label": {"0": "", "00": "cat"}})";
  CHECK(absl::IsInvalidArgument(ReadClassNames(folder.at(""), 2).status()));
}

}  // namespace
}  // namespace atl::cli
