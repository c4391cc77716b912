// Decoders of what the command line reads: a model's class names, this person's clusters, and what
// `atoll doctor` looks at.

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "cli/contexts.h"
#include "cli/doctor/doctor.h"
#include "cli/doctor/doctor_checks.h"
#include "cli/model/model_folder.h"
#include "common/check.h"
#include "common/machine/limits.h"
#include "common/trust/pki.h"
#include "common/version.h"
#include "tests/fuzz/decoder.h"
#include "tests/fuzz/scratch.h"
#include "worker/model/weights.h"

namespace atl::fuzz {
namespace {

// -------------------------------------------------------------------------------- class names

constexpr int64_t kClasses = 3;  // where the model's own number is not known

bool AcceptsClassNames(std::string_view bytes) {
  Folder().Write("config.json", bytes);
  const auto config = ReadModelConfig(Folder().folder());
  const int64_t classes = config.ok() ? config->vocab : kClasses;
  const auto names = cli::ReadClassNames(Folder().folder(), classes);
  if (!names.ok()) return false;
  if (names->empty()) return true;
  ATOLL_CHECK(std::ssize(*names) == classes, classes);
  const auto json = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  ATOLL_CHECK(json["id2label"].size() == names->size(), classes);
  if (!config.ok()) return true;
  // The written names are read again, and are the same.
  ATOLL_CHECK(cli::WriteClassNames(Folder().folder(), *names).ok());
  const auto again = cli::ReadClassNames(Folder().folder(), classes);
  ATOLL_CHECK(again.ok() && *again == *names);
  return true;
}

std::vector<std::string> ClassNamesSeeds() {
  return {R"({"model_type": "resnet", "num_labels": 2, "id2label": {"0": "cat", "1": "dog"}})",
          R"({"id2label": {"0": "", "2": "b", "1": "b"}})", R"({"id2label": null})"};
}

const Registration kClassNames({"class_names", ClassNamesSeeds, AcceptsClassNames});

// ----------------------------------------------------------------------------------- contexts

bool AcceptsClientConfig(std::string_view bytes) {
  const auto config = cli::ParseConfig({bytes.data(), bytes.size()}, "config.toml");
  if (!config.ok()) return false;
  for (const v1::ClientContext& context : config->contexts()) {
    (void)cli::CheckContextName(context.name());
  }
  // The written configuration is read again, and is the same.
  const auto again = cli::ParseConfig(cli::FormatConfig(*config), "again");
  ATOLL_CHECK(again.ok(), again.status().message());
  ATOLL_CHECK(google::protobuf::util::MessageDifferencer::Equals(*again, *config));
  return true;
}

std::vector<std::string> ClientConfigSeeds() {
  return {R"(context = "lab"

[[contexts]]
name = "lab"
coordinator = "coordinator.example:7000,10.0.0.2:7000"
identity = "/home/me/.config/atoll/contexts/lab"

[[contexts]]
name = "a \"b\" \\ \u0007"
)"};
}

const Registration kClientConfig({"client_config", ClientConfigSeeds, AcceptsClientConfig});

// ------------------------------------------------------------------------------- atoll doctor

enum DoctorInput : uint8_t { kMemoryLimit, kAddress, kCertificate, kStatus, kDoctorInputs };

// A line each, and one for a remedy, whatever others' words are.
void Print(const std::vector<cli::Finding>& findings) {
  size_t lines = 0;
  for (const cli::Finding& finding : findings) lines += finding.remedy.empty() ? 1 : 2;
  const std::string text = cli::FindingsText(findings);
  ATOLL_CHECK(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) == lines, text);
  (void)cli::FindingsJson(findings);
}

bool IsGood(const std::vector<cli::Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const cli::Finding& finding) {
    return finding.level == cli::Level::kProblem;
  });
}

bool AcceptsStatus(std::string_view bytes) {
  constexpr int64_t kRequestedMs = 1'700'000'000'000;
  v1::ClusterStatus status;
  if (!status.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return false;
  const auto findings = cli::StatusFindings(status, kRequestedMs, kRequestedMs + 20);
  Print(findings);
  return findings.size() == 2;
}

// The root of a machine whose control group has these limits, as /proc and /sys show them.
std::string WriteMachine(std::string_view limit) {
  const std::string root = Folder().folder() + "/machine";
  for (const char* folder : {"/proc/self", "/sys/fs/cgroup/group"}) {
    std::filesystem::create_directories(root + folder);
  }
  Folder().Write("machine/proc/meminfo", "MemTotal:       8388608 kB\n");
  Folder().Write("machine/proc/self/cgroup", "0::/group\n");
  Folder().Write("machine/proc/self/mountinfo",
                 "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  for (const char* file : {"memory.max", "cpu.max", "cpuset.cpus.effective"}) {
    Folder().Write(std::string("machine/sys/fs/cgroup/group/") + file, limit);
  }
  return root;
}

bool AcceptsDoctorInput(std::string_view bytes) {
  Input input(bytes);
  const auto kind = input.Take<uint8_t>() % kDoctorInputs;
  const absl::string_view rest(input.Rest().data(), input.Rest().size());
  if (kind == kStatus) return AcceptsStatus(input.Rest());
  if (kind == kAddress) {
    const auto address = cli::ParseHostPort(rest);
    ATOLL_CHECK(!address.ok() || address->port > 0, rest);
    return address.ok();
  }
  std::vector<cli::Finding> findings;
  if (kind == kMemoryLimit) {
    const MachineLimits limits = ReadMachineLimits(WriteMachine(input.Rest()));
    ATOLL_CHECK(limits.memory_bytes >= 0 && limits.cpus >= 1, rest);
    findings = {cli::CheckMemory(limits), cli::CheckCpu(limits)};
  } else {
    const std::string path = Folder().Write("certificate.pem", input.Rest());
    using std::filesystem::perms;  // a key that others may read is refused
    std::filesystem::permissions(path, perms::owner_read | perms::owner_write);
    const TlsOptions tls{.ca_path = path, .cert_path = path, .key_path = path};
    findings = {cli::CheckTls("certificates", tls, "localhost:1", 1'700'000'000)};
  }
  Print(findings);
  return IsGood(findings);
}

std::vector<std::string> DoctorSeeds() {
  constexpr int64_t kFromS = 1'600'000'000, kUntilS = 2'000'000'000;
  const auto authority = MakeAuthority("0123456789abcdef", kFromS, kUntilS);
  ATOLL_CHECK(authority.ok(), authority.status().message());
  v1::ClusterStatus status;
  status.set_software_version(kSoftwareVersion);
  status.set_unix_ms(1'700'000'000'001);
  const auto seed = [](DoctorInput kind, const std::string& bytes) {
    return std::string(1, static_cast<char>(kind)) + bytes;
  };
  return {seed(kMemoryLimit, "max\n"),
          seed(kMemoryLimit, "4294967296\n"),
          seed(kAddress, "tcp-server.example:7000"),
          seed(kAddress, "[::1]:7000"),
          seed(kCertificate, authority->certificate + authority->key),
          seed(kStatus, status.SerializeAsString())};
}

const Registration kDoctor({"doctor", DoctorSeeds, AcceptsDoctorInput});

}  // namespace
}  // namespace atl::fuzz
