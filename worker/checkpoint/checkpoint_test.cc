#include "worker/checkpoint/checkpoint.h"

#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace atl::worker {
namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "checkpoint-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

CheckpointState State(int64_t step) {
  CheckpointState state;
  state.about = {"tale-1", 2, 9, step, {{4, 8}, {12, 20}}};
  state.optimizer_steps = step + 1;
  const float x = static_cast<float>(step);
  state.layers = {{{x, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}}, {{x}, {1}, {2}, {3}}};
  return state;
}

void CheckSame(const CheckpointState& a, const CheckpointState& b) {
  CHECK(a.about.island == b.about.island);
  CHECK(a.about.base_version == b.about.base_version);
  CHECK(a.about.inner_step == b.about.inner_step);
  CHECK(a.about.consumed == b.about.consumed);
  CHECK(a.optimizer_steps == b.optimizer_steps);
  REQUIRE(a.layers.size() == b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    CHECK(a.layers[i].theta == b.layers[i].theta);
    CHECK(a.layers[i].base == b.layers[i].base);
    CHECK(a.layers[i].first_moment == b.layers[i].first_moment);
    CHECK(a.layers[i].second_moment == b.layers[i].second_moment);
    CHECK(a.layers[i].residual == b.layers[i].residual);
  }
}

// The file of this name in the newest checkpoint.
fs::path Newest(const Folder& folder, const std::string& file) {
  std::string name;
  std::ifstream(folder.path + "/tale-1/current") >> name;
  return fs::path(folder.path) / "tale-1" / name / file;
}

TEST_CASE("A checkpoint of quantised pushes has the residual") {
  Folder folder;
  CheckpointStore store(folder.path);
  CheckpointState state = State(5);
  state.layers[0].residual = {0.5f, -0.25f, 0};
  state.layers[1].residual = {1e-8f};
  REQUIRE(store.Write(state).ok());
  const auto read = store.Read("tale-1");
  REQUIRE(read.ok());
  CheckSame(*read, state);
}

TEST_CASE("A checkpoint comes back as it was, and the newer one replaces it") {
  Folder folder;
  CheckpointStore store(folder.path);
  CHECK(absl::IsNotFound(store.Read("tale-1").status()));
  for (const int64_t step : {32, 64, 64}) {
    REQUIRE(store.Write(State(step)).ok());
    const auto read = store.Read("tale-1");
    REQUIRE(read.ok());
    CheckSame(*read, State(step));
  }
  std::vector<std::string> problems;
  const auto list = store.List(&problems);
  REQUIRE(list.size() == 1);
  CHECK(list[0].inner_step == 64);
  CHECK(problems.empty());
  store.Remove("tale-1");
  CHECK(store.List(&problems).empty());
}

TEST_CASE("A checkpoint that was being written when the worker died changes nothing") {
  Folder folder;
  CheckpointStore store(folder.path);
  REQUIRE(store.Write(State(32)).ok());
  fs::create_directory(folder.path + "/tale-1/step-64-0");
  std::ofstream(folder.path + "/tale-1/step-64-0/layer-0") << "half";
  CheckSame(*store.Read("tale-1"), State(32));
  REQUIRE(store.Write(State(64)).ok());
  CheckSame(*store.Read("tale-1"), State(64));
}

// No file can grow beyond so many bytes while this lives: writing the rest fails, as on a full
// disk.
class FilesEndAt {
 public:
  explicit FilesEndAt(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FilesEndAt() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*const handler_)(int);
};

std::vector<std::string> FilesOf(const Folder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path + "/tale-1")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("A checkpoint that cannot be written takes no space, and the one before stays") {
  Folder folder;
  CheckpointStore store(folder.path);
  REQUIRE(store.Write(State(32)).ok());
  const std::vector<std::string> only = {"current", "step-32-0"};
  // Left by a process that died.
  fs::create_directory(folder.path + "/tale-1/step-48-0");
  std::ofstream(folder.path + "/tale-1/step-48-0/layer-0") << "half";
  CheckpointState large = State(64);
  large.layers[1] = {std::vector<float>(100000), std::vector<float>(100000),
                     std::vector<float>(100000), std::vector<float>(100000)};
  for (const int64_t step : {64, 96}) {
    large.about.inner_step = step;
    absl::Status written;
    {
      FilesEndAt limit(4096);  // the first layer fits, the second does not
      written = store.Write(large);
    }
    CHECK_FALSE(written.ok());
    CHECK(FilesOf(folder) == only);
    CheckSame(*store.Read("tale-1"), State(32));
  }
  REQUIRE(store.Write(large).ok());
  CHECK(FilesOf(folder) == std::vector<std::string>{"current", "step-96-0"});
}

TEST_CASE("The first checkpoint cannot be written: nothing is left") {
  Folder folder;
  CheckpointStore store(folder.path);
  {
    FilesEndAt limit(8);
    CHECK_FALSE(store.Write(State(32)).ok());
  }
  CHECK(FilesOf(folder).empty());
  CHECK(absl::IsNotFound(store.Read("tale-1").status()));
}

TEST_CASE("Every damaged byte is noticed, reported, and the checkpoint left out") {
  for (const std::string file : {"layer-0", "layer-1", "manifest"}) {
    Folder folder;
    CheckpointStore store(folder.path);
    REQUIRE(store.Write(State(32)).ok());
    const fs::path path = Newest(folder, file);
    const auto size = fs::file_size(path);
    SECTION(file + ": a flipped bit anywhere") {
      for (uintmax_t at = 0; at < size; at += 3) {
        std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
        bytes.seekg(static_cast<std::streamoff>(at));
        const char was = static_cast<char>(bytes.get());
        const auto put = [&](char c) {
          bytes.seekp(static_cast<std::streamoff>(at));
          bytes.put(c);
          bytes.flush();
        };
        put(static_cast<char>(was ^ 4));
        CHECK_FALSE(store.Read("tale-1").ok());
        put(was);
      }
      CHECK(store.Read("tale-1").ok());
    }
    SECTION(file + ": cut short") {
      fs::resize_file(path, size / 2);
      std::vector<std::string> problems;
      CHECK(store.List(&problems).empty());
      REQUIRE(problems.size() == 1);
      CHECK(problems[0].find(file) != std::string::npos);
    }
    SECTION(file + ": missing") {
      fs::remove(path);
      CHECK_FALSE(store.Read("tale-1").ok());
    }
  }
}

TEST_CASE("What a checkpoint holds is told by its manifest, and damage of a layer by reading it") {
  Folder folder;
  CheckpointStore store(folder.path);
  REQUIRE(store.Write(State(32)).ok());
  std::ofstream(Newest(folder, "layer-0"), std::ios::binary) << std::string(4 * 3 * 4, 'x');
  std::vector<std::string> problems;
  const auto list = store.List(&problems);
  REQUIRE(list.size() == 1);
  CHECK(list[0].consumed == State(32).about.consumed);
  CHECK(problems.empty());
  CHECK(absl::IsDataLoss(store.Read("tale-1").status()));
}

TEST_CASE("A job's name cannot lead out of the folder") {
  Folder folder;
  CheckpointStore store(folder.path + "/inner");
  CheckpointState state = State(1);
  state.about.job = "../outside";
  CHECK_FALSE(store.Write(state).ok());
  CHECK_FALSE(store.Read("../outside").ok());
  CHECK_FALSE(fs::exists(folder.path + "/outside"));
}

}  // namespace
}  // namespace atl::worker
