#include "paramserver/storage/salvage.h"

#include <catch2/catch.hpp>

#include "common/testing/files_simulated.h"
#include "paramserver/core/job_state.h"
#include "paramserver/storage/log.h"

namespace atl::ps {
namespace {

constexpr char kJob[] = "lm-1";

// Two servers, each with half of a layer of 4 and "b" with a layer of 2 as well.
class Folders {
 public:
  void Log(const std::string& folder, const LogRecord& record) {
    auto& writer = writers_[folder];
    if (writer == nullptr) {
      writer = std::make_unique<LogWriter>(&disk, folder + "/jobs/" + kJob, LogEnd(), LogOptions());
    }
    REQUIRE(writer->Append(++sequences_[folder], record).ok());
    REQUIRE(writer->Sync().ok());
  }
  void Assign() {
    AssignShards a{kJob, {{0, 0, 2, 0}}, 1, 0, 0};
    AssignShards b{kJob, {{1, 0, 2, 2}, {2, 1, 2, 0}}, 1, 0, 0};
    a.definition.facts.layers = b.definition.facts.layers = {{"first", 4}, {"second", 2}};
    Log("a", AssignedRecord{1, a});
    Log("b", AssignedRecord{1, b});
  }
  // All shards of a contribution: every element is `value`.
  void Push(const ContributionId& by, float value) {
    for (const auto& [folder, shard] : {std::pair("a", 0), std::pair("b", 1), std::pair("b", 2)}) {
      auto values = std::make_shared<std::vector<float>>(2, value);
      Log(folder,
          PushedRecord{{kJob, by.island, by.generation, by.incarnation, by.base_version, shard},
                       Encoding::kFloat32,
                       {values, std::as_bytes(std::span(*values))}});
    }
  }
  void Commit(const std::string& folder, Version version, const ContributionId& by) {
    Log(folder, CommittedRecord{version, {{by, 1}}, {}});
  }
  // Version 0 is 10 everywhere, version 1 is 9.
  void TrainOneRound() {
    Assign();
    Push({0, 1, 1, kNoVersion}, 10);
    for (const char* folder : {"a", "b"}) Commit(folder, 0, {0, 1, 1, kNoVersion});
    Push({0, 1, 1, 0}, 1);
    for (const char* folder : {"a", "b"}) Commit(folder, 1, {0, 1, 1, 0});
  }
  absl::StatusOr<SalvagedJob> Salvaged(const std::vector<std::string>& from = {"a", "b"}) {
    const auto before = disk.operations;
    auto job = Salvage(disk, from, "", &pool_);
    CHECK(disk.operations == before);  // it changes nothing
    return job;
  }

  SimulatedFiles disk{1};

 private:
  ThreadPool pool_{1};
  std::map<std::string, std::unique_ptr<LogWriter>> writers_;
  std::map<std::string, LogSequence> sequences_;
};

const std::vector<std::vector<float>> kVersion1 = {{9, 9, 9, 9}, {9, 9}};

TEST_CASE("the_newest_version_comes_out_of_all_folders_together") {
  Folders folders;
  folders.TrainOneRound();
  const auto job = folders.Salvaged();
  REQUIRE(job.ok());
  CHECK(job->job == kJob);
  CHECK(job->version == 1);
  CHECK(job->layers == kVersion1);
  CHECK(job->notes.empty());
}

TEST_CASE("a_round_that_one_server_has_not_logged_is_made_from_the_pushes_that_it_has") {
  Folders folders;
  folders.TrainOneRound();
  folders.Push({0, 1, 1, 1}, 2);
  folders.Commit("a", 2, {0, 1, 1, 1});
  const auto job = folders.Salvaged();
  REQUIRE(job.ok());
  CHECK(job->version == 2);
  CHECK(job->layers == std::vector<std::vector<float>>{{7, 7, 7, 7}, {7, 7}});
}

TEST_CASE("behind_damage_all_go_back_to_the_newest_version_that_is_whole") {
  Folders folders;
  folders.TrainOneRound();
  auto& bytes = folders.disk.Bytes("b/jobs/lm-1/log-00000000000000000001");
  const size_t whole = bytes.size();
  folders.Push({0, 1, 1, 1}, 2);
  for (const char* folder : {"a", "b"}) folders.Commit(folder, 2, {0, 1, 1, 1});
  bytes[whole + 70] ^= std::byte(1);  // in the push of version 2
  const auto job = folders.Salvaged();
  REQUIRE(job.ok());
  CHECK(job->version == 1);
  CHECK(job->layers == kVersion1);
  CHECK(job->notes.size() == 2);
}

TEST_CASE("a_charter_that_cannot_be_is_no_job") {
  AssignShards assign{kJob, {{0, 0, 2, 0}}, 1, 0, 0};
  assign.definition.facts.layers = {{"first", 2}};
  const auto salvaged = [](const AssignShards& a) {
    Folders folders;
    folders.Log("a", AssignedRecord{1, a});
    const ContributionId by{0, 1, 1, kNoVersion};
    auto values = std::make_shared<std::vector<float>>(2, 1.0f);
    folders.Log("a", PushedRecord{{kJob, 0, 1, 1, kNoVersion, 0},
                                  Encoding::kFloat32,
                                  {values, std::as_bytes(std::span(*values))}});
    folders.Commit("a", 0, by);
    folders.Push({0, 1, 1, 0}, 1);
    folders.Commit("a", 1, {0, 1, 1, 0});
    return folders.Salvaged({"a"}).status();
  };
  CHECK(salvaged(assign).ok());
  AssignShards larger = assign;
  larger.definition.facts.layers[0].elements = int64_t{1} << 36;  // of which two are there
  CHECK(absl::IsFailedPrecondition(salvaged(larger)));
  AssignShards no_fragments = assign;
  no_fragments.definition.spec.outer.fragments = 0;
  CHECK(absl::IsNotFound(salvaged(no_fragments)));
}

TEST_CASE("a_folder_that_is_missing_is_named_by_the_layer_that_it_holds") {
  Folders folders;
  folders.TrainOneRound();
  const auto job = folders.Salvaged({"b"});
  REQUIRE(job.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(job.status().message().find("layer 0 (first)") != std::string::npos);
  CHECK(absl::IsNotFound(folders.Salvaged({"a", "c"}).status()));
}

}  // namespace
}  // namespace atl::ps
