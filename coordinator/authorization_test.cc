#include "coordinator/authorization.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

bool May(Role role, const std::string& path) { return Authorize({role, "one"}, path).ok(); }

TEST_CASE("a_member_may_only_attach_as_what_it_is") {
  CHECK(May(Role::kWorker, "/atl.v1.WorkerControl/Attach"));
  CHECK_FALSE(May(Role::kWorker, "/atl.v1.ServerControl/Attach"));
  CHECK(May(Role::kParameterServer, "/atl.v1.ServerControl/Attach"));
  CHECK_FALSE(May(Role::kParameterServer, "/atl.v1.WorkerControl/Attach"));
  for (const std::string call : {"Submit", "Pause", "Remove", "List"}) {
    CHECK_FALSE(May(Role::kWorker, "/atl.v1.Jobs/" + call));
    CHECK_FALSE(May(Role::kParameterServer, "/atl.v1.Jobs/" + call));
  }
}

TEST_CASE("a_viewer_reads_and_an_operator_does_everything_of_the_command_line") {
  for (const std::string call : {"Validate", "List", "Get", "Watch", "Logs"}) {
    CHECK(May(Role::kViewer, "/atl.v1.Jobs/" + call));
    CHECK(May(Role::kOperator, "/atl.v1.Jobs/" + call));
  }
  for (const std::string call : {"Submit", "Pause", "Resume", "Cancel", "Remove", "Trace"}) {
    CHECK_FALSE(May(Role::kViewer, "/atl.v1.Jobs/" + call));
    CHECK(May(Role::kOperator, "/atl.v1.Jobs/" + call));
  }
  CHECK_FALSE(May(Role::kOperator, "/atl.v1.WorkerControl/Attach"));
}

TEST_CASE("a_call_that_no_rule_names_is_denied") {
  for (const Role role : {Role::kCoordinator, Role::kOperator, Role::kWorker}) {
    CHECK(absl::IsPermissionDenied(Authorize({role, "one"}, "/atl.v1.Secrets/Get")));
    CHECK(absl::IsPermissionDenied(Authorize({role, "one"}, "")));
  }
}

TEST_CASE("an_identity_is_read_from_its_uri") {
  CHECK(IdentityFromUri("atoll:worker/site-a-1").value() == Identity{Role::kWorker, "site-a-1"});
  CHECK(IdentityFromUri("atoll:operator/me").value() == Identity{Role::kOperator, "me"});
  for (const char* uri : {"", "atoll:", "atoll:worker", "atoll:worker/", "atoll:root/me",
                          "https:worker/a", "worker/a"}) {
    INFO(uri);
    CHECK(absl::IsInvalidArgument(IdentityFromUri(uri).status()));
  }
}

TEST_CASE("a_name_with_a_star_covers_the_names_that_begin_so") {
  CHECK(CoversName({Role::kWorker, "rack-*"}, "rack-1"));
  CHECK_FALSE(CoversName({Role::kWorker, "rack-*"}, "other-1"));
  CHECK_FALSE(CoversName({Role::kWorker, "rack-1"}, "rack-12"));
}

}  // namespace
}  // namespace atl
