// The hub, played by a server on loopback: resolve, tree and revision addresses, and a storage host
// to which large files are redirected.

#include "common/object_store/hub.h"

#include <httplib.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/object_store/signature.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

// ---- vocabulary of these tests ----

class Listener {
 public:
  explicit Listener(const httplib::Server::Handler& handler) {
    server_.Get(".*", handler);
    server_.set_keep_alive_max_count(1);
    port_ = server_.bind_to_any_port("127.0.0.1");
    REQUIRE(port_ > 0);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~Listener() {
    server_.stop();
    thread_.join();
  }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }

 private:
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

std::string Sha256(const std::string& text) {
  const ByteSpan buffer = std::as_bytes(std::span(text));
  return Sha256Hex({&buffer, 1});
}

// A data set, a model and a gated model; all files of more than 20 bytes lie in the storage.
class Hub {
 public:
  Hub()
      : storage_([this](const auto& request, auto& response) { AnswerStorage(request, response); }),
        hub_([this](const auto& request, auto& response) { AnswerHub(request, response); }) {
    std::string name = (fs::temp_directory_path() / "atoll_hub_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
    setenv("HF_ENDPOINT", hub_.url().c_str(), 1);
    setenv("HF_HOME", (folder_ / "hf").c_str(), 1);
    setenv("ATOLL_DATA_CACHE", (folder_ / "cache").c_str(), 1);
    unsetenv("HF_TOKEN");
    unsetenv("HF_HUB_CACHE");
  }
  ~Hub() {
    fs::remove_all(folder_);
    for (const char* name : {"HF_ENDPOINT", "HF_HOME", "HF_TOKEN"}) unsetenv(name);
  }

  void Put(const std::string& repo, const std::string& path, const std::string& text) {
    files_[repo][path] = text;
  }
  fs::path folder() const { return folder_; }
  int requests() const { return requests_; }
  bool redirected_with_token = false;
  bool gated = false;
  bool down = false;
  bool wrong_bytes = false;

 private:
  static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

  // The files of what an address names behind `prefix`; null after a refusal.
  const std::map<std::string, std::string>* Find(const std::string& repo,
                                                 const httplib::Request& request,
                                                 httplib::Response& response) {
    const auto found = files_.find(repo);
    if (found == files_.end()) {
      response.status = 401;  // as the hub answers of what is not there
      response.set_header("X-Error-Code", "RepoNotFound");
      return nullptr;
    }
    if (gated && request.get_header_value("Authorization") != "Bearer secret") {
      response.status = 403;
      response.set_header("X-Error-Message", "Access is restricted");
      return nullptr;
    }
    return &found->second;
  }

  void AnswerHub(const httplib::Request& request, httplib::Response& response) {
    const std::lock_guard lock(mutex_);
    ++requests_;
    if (down) {
      response.status = 503;
      return;
    }
    std::string path = request.path;
    if (const size_t at = path.find("/resolve/"); at != std::string::npos) {
      const std::string repo = path.substr(1, at - 1);
      const std::string rest = path.substr(at + 9);
      const auto* const files = Find(repo, request, response);
      if (files == nullptr) return;
      const auto file = files->find(rest.substr(rest.find('/') + 1));
      if (file == files->end()) {
        response.status = 404;
        return;
      }
      if (file->second.size() > 20) {
        response.status = 302;
        response.set_header("Location", absl::StrCat(storage_.url(), "/blob?of=", repo, "|",
                                                     file->first, "&Signature=a/b"));
        return;
      }
      response.set_header("ETag", "\"" + Sha256(file->second).substr(0, 8) + "\"");
      response.set_content(file->second, "text/plain");
      return;
    }
    const bool is_dataset = absl::StartsWith(path, "/api/datasets/");
    path = path.substr(is_dataset ? 14 : 12);
    const bool tree = absl::StrContains(path, "/tree/");
    const size_t at = path.find(tree ? "/tree/" : "/revision/");
    const std::string repo = (is_dataset ? "datasets/" : "") + path.substr(0, at);
    const auto* const files = Find(repo, request, response);
    if (files == nullptr) return;
    if (!tree) {
      response.set_content(absl::StrCat("{\"sha\": \"", kCommit, "\"}"), "application/json");
      return;
    }
    // One file a page.
    const int page = std::atoi(request.get_param_value("cursor").c_str());
    std::string list = "[{\"type\": \"directory\", \"path\": \"d\", \"oid\": \"x\", \"size\": 0}";
    int number = 0;
    for (const auto& [name, text] : *files) {
      if (number++ != page) continue;
      const std::string lfs =
          text.size() > 20 ? absl::StrCat(", \"lfs\": {\"oid\": \"", Sha256(text), "\"}") : "";
      absl::StrAppend(&list, ", {\"type\": \"file\", \"oid\": \"", Sha256(text).substr(0, 8),
                      "\", \"size\": ", text.size(), ", \"path\": \"", name, "\"", lfs, "}");
    }
    if (page + 1 < number) {
      response.set_header("Link", absl::StrCat("<", hub_.url(), request.path, "?cursor=", page + 1,
                                               ">; rel=\"next\""));
    }
    response.set_content(list + "]", "application/json");
  }

  void AnswerStorage(const httplib::Request& request, httplib::Response& response) {
    const std::lock_guard lock(mutex_);
    redirected_with_token |= request.has_header("Authorization");
    if (request.method == "HEAD") {  // the address is signed for GET
      response.status = 403;
      return;
    }
    const std::string of = request.get_param_value("of");
    std::string text = files_[of.substr(0, of.find('|'))][of.substr(of.find('|') + 1)];
    response.set_header("ETag", "\"" + Sha256(text).substr(0, 8) + "\"");
    if (wrong_bytes) text[0] ^= 1;
    response.set_content(text, "application/octet-stream");
  }

  std::mutex mutex_;
  std::map<std::string, std::map<std::string, std::string>> files_;
  fs::path folder_;
  std::atomic<int> requests_ = 0;
  Listener storage_, hub_;
};

std::string ReadObject(const std::string& url, const std::string& name) {
  RetryOptions retry;
  retry.tries = 1;
  const auto store = OpenHubStore(url, retry);
  REQUIRE(store.ok());
  const auto info = (*store)->Stat(name, {});
  if (!info.ok()) return std::string(info.status().message());
  std::string text(static_cast<size_t>(info->bytes), '\0');
  const absl::Status status =
      (*store)->Read(name, 0, std::as_writable_bytes(std::span(text)), {.tag = info->tag});
  return status.ok() ? text : std::string(status.message());
}

std::string FileText(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

const std::string kLong = "a text of more than twenty bytes, which lies in the storage";

// ---- tests ----

TEST_CASE("addresses_of_the_hub_are_taken_apart") {
  const auto place = [](const std::string& url) {
    const auto found = ParseHubPath(url);
    return found.ok() ? absl::StrCat(static_cast<int>(found->type), " ", found->repo, " ",
                                     found->revision, " ", found->path)
                      : "none";
  };
  CHECK(place("hf://o/n/d/a.txt") == "0 o/n main d/a.txt");
  CHECK(place("hf://datasets/o/n@v1/a.txt") == "1 o/n v1 a.txt");
  CHECK(place("hf://models/o/n") == "2 o/n main ");
  CHECK(place("hf://datasets/o/n@refs/convert/parquet/a/0.parquet") ==
        "1 o/n refs/convert/parquet a/0.parquet");
  CHECK(place("hf://datasets/o/n@refs%2Fpr%2F1/a") == "1 o/n refs/pr/1 a");
  CHECK(place("hf://datasets/o/n@~parquet/a/0.parquet") ==
        "1 o/n refs/convert/parquet a/0.parquet");
  for (const char* bad : {"hf://", "hf://o", "hf://o/", "hf://o/n@", "hf://o/n/../x", "hf:///n/a",
                          "http://o/n", "hf://spaces/o/n/a"}) {
    CHECK(place(bad) == "none");
  }
}

TEST_CASE("files_of_data_sets_and_models_are_read_also_behind_a_redirection") {
  Hub hub;
  hub.Put("datasets/o/n", "d/a.txt", "short");
  hub.Put("datasets/o/n", "d/b.txt", kLong);
  hub.Put("o/m", "c.txt", "of the model");
  CHECK(ReadObject("hf://datasets/o/n/d", "a.txt") == "short");
  CHECK(ReadObject("hf://o/n/d", "b.txt") == kLong);
  CHECK(ReadObject("hf://o/m", "c.txt") == "of the model");
  CHECK_THAT(ReadObject("hf://o/n", "none.txt"), Contains("HTTP 404"));
  CHECK_THAT(ReadObject("hf://o/none", "a.txt"), Contains("HTTP 401") && Contains("HF_TOKEN"));
}

TEST_CASE("files_are_listed_page_by_page") {
  Hub hub;
  for (const char* name : {"d/a.txt", "d/b.txt", "d/e/c.txt", "other"}) {
    hub.Put("datasets/o/n", name, kLong);
  }
  const auto listed = (*OpenHubStore("hf://datasets/o/n/d"))->List("", 10, {});
  REQUIRE(listed.ok());
  REQUIRE(listed->size() == 3);
  CHECK((listed->at(2).name == "e/c.txt" && listed->at(2).bytes == std::ssize(kLong)));
}

TEST_CASE("the_token_goes_to_the_hub_alone") {
  Hub hub;
  hub.gated = true;
  hub.Put("datasets/o/n", "a.txt", kLong);
  CHECK_THAT(ReadObject("hf://datasets/o/n", "a.txt"), Contains("HTTP 403"));
  setenv("HF_TOKEN", "secret", 1);
  CHECK(ReadObject("hf://datasets/o/n", "a.txt") == kLong);
  CHECK_FALSE(hub.redirected_with_token);
  unsetenv("HF_TOKEN");
  fs::create_directories(hub.folder() / "hf");
  std::ofstream(hub.folder() / "hf" / "token") << "secret\n";
  CHECK(ReadObject("hf://datasets/o/n", "a.txt") == kLong);
}

TEST_CASE("a_models_files_are_fetched_once_and_what_is_not_wanted_is_left") {
  Hub hub;
  hub.Put("org/fetched", "config.json", "{}");
  hub.Put("org/fetched", "tokenizer.json", "{\"tokenizer\": 1}");
  hub.Put("org/fetched", "model.safetensors", kLong);
  hub.Put("org/fetched", "pytorch_model.bin", "pickle");
  CHECK(*FetchFromHub("/plain/path", HubFiles::kConfig) == "/plain/path");
  const auto weights = FetchFromHub("hf://org/fetched", HubFiles::kWeights);
  INFO(weights.status().message());
  REQUIRE(weights.ok());
  const fs::path folder = *weights;
  CHECK(FileText(folder / "config.json") == "{}");
  CHECK(FileText(folder / "model.safetensors") == kLong);
  CHECK_FALSE(fs::exists(folder / "pytorch_model.bin"));
  const int before = hub.requests();
  CHECK(*FetchFromHub("hf://org/fetched", HubFiles::kWeights) == *weights);
  CHECK(hub.requests() == before);
}

TEST_CASE("bytes_that_are_not_those_of_the_hub_are_refused") {
  Hub hub;
  hub.Put("org/wrong", "config.json", kLong);
  hub.wrong_bytes = true;
  const auto fetched = FetchFromHub("hf://org/wrong", HubFiles::kConfig);
  CHECK(absl::IsDataLoss(fetched.status()));
  CHECK_THAT(std::string(fetched.status().message()), Contains("SHA-256"));
}

TEST_CASE("the_hubs_own_cache_is_used_for_the_same_commit_and_where_the_hub_is_down") {
  Hub hub;
  hub.Put("org/kept", "config.json", "{\"from\": \"hub\"}");
  const fs::path repo = hub.folder() / "hf" / "hub" / "models--org--kept";
  const std::string commit = "0123456789abcdef0123456789abcdef01234567";
  fs::create_directories(repo / "snapshots" / commit);
  fs::create_directories(repo / "refs");
  std::ofstream(repo / "snapshots" / commit / "config.json") << "{\"from\": \"cache\"}";
  std::ofstream(repo / "refs" / "main") << commit;
  const auto found = FetchFromHub("hf://org/kept", HubFiles::kConfig);
  REQUIRE(found.ok());
  CHECK(FileText(fs::path(*found) / "config.json") == "{\"from\": \"cache\"}");
  hub.down = true;
  const auto down = FetchFromHub("hf://models/org/kept", HubFiles::kConfig);
  REQUIRE(down.ok());
  CHECK(FileText(fs::path(*down) / "config.json") == "{\"from\": \"cache\"}");
  CHECK(absl::IsUnavailable(FetchFromHub("hf://org/kept", HubFiles::kTokenizer).status()));
}

}  // namespace
}  // namespace atl
