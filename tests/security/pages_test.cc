// Attempts on the coordinator's web page and on its /metrics, and who may read and act there.

#include "common/http/testing/half_sent.h"
#include "tests/security/cluster.h"

namespace atl {
namespace {

const std::map<std::string, std::string> kAction = {{"X-Atoll-Action", "1"}};

TEST_CASE("every_attempt_on_the_page_and_on_the_coordinators_metrics_is_refused") {
  Cluster cluster;
  const std::string folder = FreshFolder();
  const auto write = [&](const std::string& name, const KeyAndCertificate& made) {
    return WriteIdentity(folder, name, made);
  };
  const Identity me{Role::kOperator, "me"}, revoked{Role::kOperator, "revoked"};
  const KeyAndCertificate others =
      MakeAuthority(NewClusterId(), UnixNow() - 10, UnixNow() + 3600).value();
  REQUIRE(cluster.Revoke("operator", "revoked").ok());
  struct Attempt {
    const char* what;
    std::string scheme;
    HttpIdentity shown;
    int page, metrics;  // 0: no connection
  };
  for (const Attempt& attempt : std::vector<Attempt>{
           {"no certificate", "https", {}, 0, 403},
           {"plaintext", "http", {}, 0, 0},
           {"wrong authority", "https", write("stranger", cluster.Certificate(me, 0, 0, &others)),
            0, 0},
           {"expired", "https",
            write("expired", cluster.Certificate(me, UnixNow() - 100, UnixNow() - 10)), 0, 0},
           {"not valid yet", "https",
            write("early", cluster.Certificate(me, UnixNow() + 500, UnixNow() + 900)), 0, 0},
           {"token", "https", write("token", TokenCertificate(cluster.Token({"operator"})).value()),
            0, 0},
           {"revoked", "https", write("revoked", cluster.Certificate(revoked)), 403, 403},
       }) {
    INFO(attempt.what);
    const auto at = [&](const std::string& url) {
      return absl::StrCat(attempt.scheme, url.substr(url.find("://")));
    };
    const std::string page = at(cluster.page_url());
    CHECK(HttpGet(page + "/api/v1/jobs", {}, attempt.shown).status == attempt.page);
    CHECK(HttpPost(page + "/api/v1/pause?job=none", kAction, attempt.shown).status == attempt.page);
    CHECK(HttpGet(at(cluster.metrics_url()) + "/metrics", {}, attempt.shown).status ==
          attempt.metrics);
  }
  for (const v1::AuditEntry& entry : cluster.AuditEntries()) {
    INFO(entry.ShortDebugString());
    CHECK((entry.call() != "Jobs/Pause" || entry.denial() == v1::TRUST_DENIAL_REVOKED));
  }
  const HttpIdentity rightful = write("me", cluster.Certificate(me));
  CHECK(HttpGet(cluster.page_url() + "/api/v1/jobs", {}, rightful).status == 200);
  CHECK(HttpGet(cluster.metrics_url() + "/metrics", {}, rightful).status == 200);
}

TEST_CASE("a_page_over_tls_lets_operators_act_and_viewers_read") {
  Cluster cluster;
  const std::string folder = FreshFolder();
  const auto identity = [&](Role role, const std::string& name) {
    return WriteIdentity(folder, name, cluster.Certificate({role, name}));
  };
  const std::string url = cluster.page_url();
  struct Row {
    Role role;
    std::string name;
    int reads, acts;
  };
  for (const Row& row :
       {Row{Role::kOperator, "me", 200, 404}, Row{Role::kViewer, "guest", 200, 403},
        Row{Role::kWorker, "w1", 403, 403}}) {
    INFO(row.name);
    const HttpIdentity who = identity(row.role, row.name);
    CHECK(HttpGet(url + "/api/v1/jobs", {}, who).status == row.reads);
    CHECK(HttpPost(url + "/api/v1/pause?job=none", kAction, who).status == row.acts);
  }
  const std::string monitor = cluster.metrics_url();
  CHECK(HttpGet(monitor + "/healthz").status == 200);
  CHECK(HttpGet(monitor + "/readyz").status == 200);
  CHECK(HttpGet(monitor + "/metrics", {}, identity(Role::kViewer, "monitor")).status == 200);
  bool audited = false;
  for (const v1::AuditEntry& entry : cluster.AuditEntries()) {
    audited |= entry.who() == "operator/me" && entry.call() == "Jobs/Pause" &&
               entry.target() == "none" && !entry.done();
  }
  CHECK(audited);
}

TEST_CASE("clients_that_say_nothing_delay_neither_the_health_check_nor_the_page") {
  Cluster cluster;
  const std::string monitor = cluster.metrics_url(), page = cluster.page_url();
  std::vector<int> ports;
  for (const std::string& url : {monitor, page})
    ports.push_back(std::stoi(url.substr(url.rfind(':') + 1)));
  const HttpIdentity files =
      WriteIdentity(FreshFolder(), "guest", cluster.Certificate({Role::kViewer, "guest"}));
  CHECK(AnsweredBesideHalfSent(ports, [&] {
    return HttpGet(monitor + "/healthz").status == 200 &&
           HttpGet(page + "/", {}, files).status == 200;
  }));
}

}  // namespace
}  // namespace atl
