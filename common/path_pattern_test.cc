#include "common/path_pattern.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

namespace atl {
namespace {

namespace fs = std::filesystem;

class Tree {
 public:
  Tree() {
    std::string name = (fs::temp_directory_path() / "atoll_path_pattern_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
    for (const char* file : {"a.txt", "x/b.txt", "x/y/c.txt", "x/y/d.md", ".h/e.txt", "x/.f.txt"}) {
      fs::create_directories((root_ / file).parent_path());
      std::ofstream(root_ / file) << "text";
    }
    fs::create_directory_symlink("..", root_ / "x" / "loop");
  }
  ~Tree() { fs::remove_all(root_); }

  std::string at(const std::string& name) const { return (root_ / name).string(); }
  // Returns the matches by their names in the tree.
  std::vector<std::string> Expand(const std::string& pattern, int64_t entries_max = 1000) const {
    const auto found = ExpandPattern(RealFiles(), (root_ / pattern).string(), entries_max);
    if (!found.ok()) return {std::string(found.status().message())};
    std::vector<std::string> names;
    for (const std::string& path : *found) names.push_back(path.substr(root_.string().size() + 1));
    return names;
  }

 private:
  fs::path root_;
};

using Names = std::vector<std::string>;

TEST_CASE("a_pattern_expands_to_the_names_that_it_matches") {
  const Tree tree;
  CHECK(tree.Expand("*.txt") == Names{"a.txt"});
  CHECK(tree.Expand("*/*.txt") == Names{"x/b.txt"});
  CHECK(tree.Expand("x/*") == Names{"x/b.txt", "x/loop/", "x/y/"});
  CHECK(tree.Expand("x/[ab].tx?") == Names{"x/b.txt"});
  CHECK(tree.Expand("*.png").empty());
  CHECK(tree.Expand("none/*").empty());
}

TEST_CASE("two_stars_match_any_number_of_folders_and_follow_no_links") {
  const Tree tree;
  CHECK(tree.Expand("**/*.txt") == Names{"a.txt", "x/b.txt", "x/y/c.txt"});
  CHECK(tree.Expand("x/**/*.txt") == Names{"x/b.txt", "x/y/c.txt"});
  CHECK(tree.Expand("**/y/**/*.md") == Names{"x/y/d.md"});
  CHECK(tree.Expand("x/y/**") == Names{"x/y/c.txt", "x/y/d.md"});
  CHECK(tree.Expand("x/**") == Names{"x/b.txt", "x/y/c.txt", "x/y/d.md"});
  CHECK(tree.Expand("**/*", 3) == Names{"too many files to look at; name a narrower pattern"});
}

TEST_CASE("links_to_folders_below_two_stars_are_left_out_by_name") {
  const Tree tree;
  LeftOut left_out;
  REQUIRE(ExpandPattern(RealFiles(), tree.at("x/*"), 1000, &left_out).ok());
  CHECK(left_out.Text().empty());
  for (const char* pattern : {"**/*.txt", "x/**"}) {
    LeftOut links;
    REQUIRE(ExpandPattern(RealFiles(), tree.at(pattern), 1000, &links).ok());
    CHECK(links.Text() == "leaves out 1: " + tree.at("x/loop") + " (a link to a folder)");
  }
}

TEST_CASE("a_link_to_nothing_that_matches_is_refused_by_its_name") {
  const Tree tree;
  fs::create_symlink("../annex/objects/a", tree.at("x/gone.txt"));
  for (const char* pattern : {"x/*", "x/*.txt", "**/*.txt", "x/**"}) {
    const absl::Status status = ExpandPattern(RealFiles(), tree.at(pattern)).status();
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(status.message().find(tree.at("x/gone.txt")) == 0);
  }
  CHECK(tree.Expand("*/b.txt") == Names{"x/b.txt"});
  CHECK(tree.Expand("*/*.md").empty());
}

TEST_CASE("names_are_matched_as_the_expansion_matches_them") {
  CHECK(MatchesPattern("*.txt", "a.txt"));
  CHECK_FALSE(MatchesPattern("*.txt", "x/a.txt"));
  CHECK(MatchesPattern("**/*.txt", "a.txt"));
  CHECK(MatchesPattern("**/*.txt", "x/y/a.txt"));
  CHECK(MatchesPattern("x/**", "x/y/a.txt"));
  CHECK_FALSE(MatchesPattern("**/*.txt", ".h/a.txt"));
  CHECK_FALSE(MatchesPattern("**/b/*.txt", "a/c/a.txt"));
  CHECK(FindPattern("s3://bucket/a/b*/c") == 14);
  CHECK(FindPattern("plain/path") == std::string_view::npos);
}

TEST_CASE("what_a_shell_would_replace_is_refused_with_the_word") {
  const auto refusal = [](const std::string& path) {
    return std::string(CheckPlainPath("data.path", path).message());
  };
  CHECK(refusal("~/a.txt").find("\"~\"") != std::string::npos);
  CHECK(refusal("~me/a.txt").find("\"~me\"") != std::string::npos);
  CHECK(refusal("/d/$DATA_1/a").find("\"$DATA_1\"") != std::string::npos);
  CHECK(refusal("${HOME}/a").find("\"${HOME}\"") != std::string::npos);
  CHECK(refusal("/d/{a,b}.txt").find("\"{a,b}\"") != std::string::npos);
  CHECK(refusal("/d/{0..9}.txt").find("\"{0..9}\"") != std::string::npos);
  for (const char* plain : {"a.txt", "/a~/b", "cost$5", "s3://bucket/$a", "a$", "{a}", "a}{b,"}) {
    CHECK(refusal(plain).empty());
  }
}

TEST_CASE("addresses_that_are_not_read_are_refused_by_their_scheme") {
  const auto refusal = [](const std::string& path) {
    return std::string(CheckPlainPath("data.path", path).message());
  };
  for (const std::string scheme : {"gs", "abfss", "ftp", "hdfs", "file", "s3a", "S3"}) {
    CHECK(refusal(scheme + "://a/b").find("\"" + scheme + "://\"") != std::string::npos);
  }
  for (const char* read : {"s3://b/c", "https://h/c?u=gs://x", "hf://a/b/c", "d/gs://c"}) {
    CHECK(refusal(read).empty());
  }
}

}  // namespace
}  // namespace atl
