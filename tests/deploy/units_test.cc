// The systemd units and the daemons that they start know the same flags.

#include <catch2/catch.hpp>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/cli/command.h"
#include "tests/cli/coordinator.h"

namespace atl {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path);
  INFO(path);
  REQUIRE(file);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::set<std::string> Matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    found.insert((*it)[1]);
  }
  return found;
}

TEST_CASE("every flag in a unit and its environment file is one of the daemon's") {
  for (const std::string daemon : {"coordinator", "paramserver", "worker"}) {
    INFO(daemon);
    const std::string folder = FreshFolder();
    Command help({absl::StrCat(daemon, "/atoll-", daemon), "--help"}, folder);
    REQUIRE(help.Wait() == 0);
    const std::set<std::string> known = Matches(help.rest(), "(--[a-z-]+)");
    const std::string unit = Read(absl::StrCat("deploy/systemd/atoll-", daemon, ".service"));
    const std::string environment = Read(absl::StrCat("deploy/systemd/", daemon, ".env"));

    const std::set<std::string> used = Matches(unit + environment, "(--[a-z-]+)=");
    REQUIRE(used.size() >= 5);
    for (const std::string& flag : used) {
      INFO(flag);
      CHECK(known.contains(flag));
    }
    // The variables that the unit reads are in its environment, if only to be empty.
    const std::set<std::string> set = Matches("\n" + environment, "\n([A-Z_]+)=");
    CHECK(Matches(unit, "\\$\\{?(ATOLL_[A-Z]+)") == set);
  }
}

}  // namespace
}  // namespace atl
