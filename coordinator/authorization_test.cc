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

TEST_CASE("a_token_joins_and_does_nothing_else") {
  CHECK(May(Role::kJoiner, "/atl.v1.Trust/Join"));
  for (const std::string call : {"Trust/Renew", "Trust/CreateToken", "Jobs/List", "Status/Get",
                                 "WorkerControl/Attach", "ServerControl/Attach", "Backups/Make"}) {
    CHECK_FALSE(May(Role::kJoiner, "/atl.v1." + call));
  }
  CHECK_FALSE(May(Role::kJoiner, "/grpc.health.v1.Health/Check"));
}

TEST_CASE("only_operators_let_others_in_and_out") {
  for (const std::string call : {"CreateToken", "DeleteToken", "List", "Revoke", "Audit"}) {
    for (const Role role : {Role::kWorker, Role::kParameterServer, Role::kViewer}) {
      CHECK_FALSE(May(role, "/atl.v1.Trust/" + call));
    }
    CHECK(May(Role::kOperator, "/atl.v1.Trust/" + call));
  }
  CHECK(May(Role::kWorker, "/atl.v1.Trust/Renew"));
  CHECK_FALSE(May(Role::kOperator, "/atl.v1.Trust/Join"));
}

TEST_CASE("a_call_that_no_rule_names_is_denied") {
  for (const Role role : {Role::kCoordinator, Role::kOperator, Role::kWorker}) {
    CHECK(Authorize({role, "one"}, "/atl.v1.Secrets/Get").denial == v1::TRUST_DENIAL_ROLE);
    CHECK(Authorize({role, "one"}, "").denial == v1::TRUST_DENIAL_ROLE);
  }
}

TEST_CASE("a_call_whose_name_begins_as_an_allowed_one_is_not_allowed_by_that") {
  CHECK(May(Role::kViewer, "/atl.v1.Jobs/Get"));
  CHECK_FALSE(May(Role::kViewer, "/atl.v1.Jobs/GetSecrets"));
  CHECK_FALSE(May(Role::kViewer, "/atl.v1.Jobs/ListAndRemove"));
  CHECK_FALSE(May(Role::kJoiner, "/atl.v1.Trust/JoinAsOperator"));
  CHECK_FALSE(May(Role::kWorker, "/atl.v1.Trust/RenewAny"));
  CHECK(May(Role::kWorker, "/grpc.health.v1.Health/Check"));
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
