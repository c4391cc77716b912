#include "worker/path_roots.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace atl::worker {
namespace {

// A folder "root" and one "secret" beside it.
struct Disk {
  std::string base = std::string(std::getenv("TEST_TMPDIR")) + "/roots-XXXXXX";
  Disk() {
    REQUIRE(mkdtemp(base.data()) != nullptr);
    for (const char* folder : {"/root/sub", "/secret", "/root-of-others"}) {
      std::filesystem::create_directories(base + folder);
    }
    for (const char* file :
         {"/root/a.txt", "/root/sub/b.txt", "/secret/key", "/root-of-others/c.txt"}) {
      std::ofstream(base + file) << "text";
    }
    std::filesystem::create_symlink(base + "/secret/key", base + "/root/link.txt");
    std::filesystem::create_symlink(base + "/secret", base + "/root/folder");
  }
  absl::Status Data(const std::string& path, const std::string& root = "/root") const {
    JobSpec spec;
    spec.data.path = path.find("://") == std::string::npos ? base + path : path;
    return CheckJobPaths(spec, {{root.find("://") == std::string::npos ? base + root : root}, {}});
  }
};

TEST_CASE("what_lies_in_the_root_may_be_read_and_nothing_else") {
  const Disk disk;
  CHECK(disk.Data("/root/a.txt").ok());
  CHECK(disk.Data("/root/sub/b.txt").ok());
  CHECK(disk.Data("/root/sub/../a.txt").ok());
  CHECK(disk.Data("/root/sub/*.txt").ok());
  CHECK(disk.Data("/root/sub/missing").ok());  // its own error follows
  for (const char* path :
       {"/secret/key", "/root/../secret/key", "/root-of-others/c.txt", "/root/link.txt",
        "/root/*.txt", "/root/folder/key", "/root", "/root/folder", "/secret/missing"}) {
    INFO(path);
    CHECK(absl::IsPermissionDenied(disk.Data(path)));
  }
}

TEST_CASE("links_deep_in_a_folder_of_classes_are_followed") {
  const Disk disk;
  const std::string images = disk.base + "/root/images/cat";
  std::filesystem::create_directories(images);
  std::ofstream(images + "/a.jpg") << "picture";
  std::filesystem::create_symlink(images + "/a.jpg", images + "/b.jpg");
  CHECK(disk.Data("/root/images").ok());
  std::filesystem::create_symlink(disk.base + "/secret/key", images + "/c.jpg");
  CHECK(absl::IsPermissionDenied(disk.Data("/root/images")));
  CHECK(absl::IsPermissionDenied(disk.Data("/root/imag*")));
  std::filesystem::remove(images + "/c.jpg");
  std::filesystem::create_directory_symlink(images, images + "/loop");
  CHECK(disk.Data("/root/images").ok());
  std::filesystem::create_directory_symlink(disk.base + "/root/sub", images + "/other");
  CHECK(disk.Data("/root/images").ok());
  std::filesystem::create_symlink(disk.base + "/secret/key", disk.base + "/root/sub/key");
  CHECK(absl::IsPermissionDenied(disk.Data("/root/images")));
}

TEST_CASE("urls_begin_with_a_root_at_a_path_boundary") {
  const Disk disk;
  CHECK(disk.Data("s3://bucket/data/x.bin", "s3://bucket/data").ok());
  CHECK(disk.Data("s3://bucket/data/x.bin", "s3://bucket/data/").ok());
  for (const char* path : {"s3://bucket/data-of-others/x", "s3://bucket/data/../x",
                           "s3://bucket/data/%2E%2e/x", "http://169.254.169.254/latest"}) {
    INFO(path);
    CHECK(absl::IsPermissionDenied(disk.Data(path, "s3://bucket/data")));
  }
  CHECK(absl::IsPermissionDenied(disk.Data("s3://bucket/data/x.bin", "/root")));
  CHECK(absl::IsPermissionDenied(disk.Data("/root/a.txt", "s3://bucket")));
}

TEST_CASE("every_path_of_a_job_is_checked_under_its_own_root") {
  const Disk disk;
  const PathRoots roots{{disk.base + "/root/sub"}, {disk.base + "/root-of-others"}};
  const auto check = [&](auto set) {
    JobSpec spec;
    set(spec);
    return absl::IsPermissionDenied(CheckJobPaths(spec, roots));
  };
  const std::string secret = disk.base + "/secret/key";
  CHECK(check([&](JobSpec& s) { s.data.validation_path = secret; }));
  CHECK(check([&](JobSpec& s) { s.data.tokenizer_path = secret; }));
  CHECK(check([&](JobSpec& s) { s.data.validation = {{"held", secret}}; }));
  CHECK(check([&](JobSpec& s) { s.data.sources = {{disk.base + "/root/sub/b.txt"}, {secret}}; }));
  CHECK(check([&](JobSpec& s) { s.model.config_path = secret; }));
  CHECK(check([&](JobSpec& s) { s.model.initial_weights_path = disk.base + "/secret"; }));
  CHECK_FALSE(check([&](JobSpec& s) { s.data.path = disk.base + "/root/sub/b.txt"; }));
  CHECK_FALSE(
      check([&](JobSpec& s) { s.model.initial_weights_path = disk.base + "/root-of-others"; }));
  PathRoots writable = roots;
  writable.remote = {disk.base + "/root", "s3://bucket/ours"};
  JobSpec saving;
  saving.data.path = disk.base + "/root/sub/b.txt";
  for (const std::string& remote : {disk.base + "/root/sub", std::string("s3://bucket/ours/x")}) {
    saving.checkpoint.remote = remote;
    CHECK(CheckJobPaths(saving, writable).ok());
  }
  for (const std::string& remote : {disk.base + "/secret", std::string("s3://bucket/other")}) {
    saving.checkpoint.remote = remote;
    CHECK(absl::IsPermissionDenied(CheckJobPaths(saving, writable)));
  }
  JobSpec any;
  any.data.path = secret;
  CHECK(CheckJobPaths(any, {}).ok());  // without roots the system's permissions decide
}

TEST_CASE("a_workers_own_keys_are_never_read_with_roots_or_without") {
  const Disk disk;
  const auto refused = [&](const std::string& path, const std::vector<std::string>& roots) {
    PathRoots limits;
    limits.data = roots;
    limits.never = {disk.base + "/secret", disk.base + "/root/sub/b.txt"};
    JobSpec spec;
    spec.data.path = disk.base + path;
    return absl::IsPermissionDenied(CheckJobPaths(spec, limits));
  };
  CHECK(refused("/root", {disk.base}));  // a link in it leads there
  for (const std::vector<std::string>& roots :
       {std::vector<std::string>{}, std::vector<std::string>{disk.base}}) {
    CHECK(refused("/secret/key", roots));
    CHECK(refused("/secret", roots));
    CHECK(refused("/sec*/key", roots));
    CHECK(refused("/root/link.txt", roots));  // leads there
    CHECK(refused("/root/sub/*.txt", roots));
    CHECK_FALSE(refused("/root/a.txt", roots));
    CHECK_FALSE(refused("/root-of-others/c.txt", roots));
  }
}

TEST_CASE("redirections_stay_below_a_root_where_any_is_given") {
  CHECK(MayReadUrl("https://elsewhere/x", {}));
  const PathRoots roots{{"https://host/data"}, {"https://host/models"}};
  CHECK(MayReadUrl("https://host/data/x", roots));
  CHECK(MayReadUrl("https://host/models/x", roots));
  CHECK_FALSE(MayReadUrl("https://host/other", roots));
  CHECK_FALSE(MayReadUrl("https://host/data/../other", roots));
  CHECK(MayReadUrl("https://cdn/x", {{}, {"https://host/models"}}));  // data may be anywhere
}

TEST_CASE("a_root_that_is_not_there_is_a_mistake") {
  CHECK(absl::IsInvalidArgument(CheckRoots({{"/nowhere/at/all"}, {}})));
  CHECK(CheckRoots({{"s3://bucket"}, {"/tmp"}}).ok());
}

}  // namespace
}  // namespace atl::worker
