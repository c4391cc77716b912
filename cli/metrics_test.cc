#include "cli/metrics.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <sstream>

#include "cli/tensorboard/event.pb.h"

namespace atl::cli {
namespace {

void AddRound(v1::Curve* c, double version, double loss) {
  c->add_unix_s(1000 + version);
  c->add_version(version);
  c->add_tokens(100);
  c->add_loss(loss);
  c->add_loss_min(loss);
  c->add_loss_max(loss);
  c->add_seconds(2);
  c->add_rounds(1);
  c->add_contributions(1);
  c->add_rejected(0);
  c->add_staleness(0);
  c->add_steps(8);
  if (version > 1) return;  // of an older version
  c->add_learning_rate(0.1);
  c->add_gradient_norm(0.5);
}

v1::JobHistory TwoRounds() {
  v1::JobHistory history;
  history.set_job("lm-1");
  AddRound(history.mutable_rounds(), 1, 3);
  AddRound(history.mutable_rounds(), 2, 2.5);
  v1::IslandCurve* island = history.add_islands();
  island->set_island(4);
  AddRound(island->mutable_curve(), 1, 3);
  v1::ValidationPoint* validation = history.add_validation();
  validation->set_unix_s(1003);
  validation->set_version(2);
  validation->set_loss(2.75);
  v1::ValidationLoss* set = validation->add_sets();
  set->set_name("law");
  set->set_version(2);
  set->set_loss(3.25);
  v1::TaskScore* score = validation->add_scores();
  score->set_name("arc");
  score->set_version(2);
  score->set_kind(v1::TASK_KIND_CHOICES);
  score->set_accuracy(0.5);
  score->set_accuracy_standard_error(0.25);
  score->set_normalised_accuracy(0.75);
  return history;
}

TEST_CASE("csv_has_a_line_a_point_and_as_many_fields_in_each") {
  std::istringstream text(HistoryAsCsv(TwoRounds()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  REQUIRE(lines.size() == 7);
  for (const std::string& line : lines) {
    CHECK(std::count(line.begin(), line.end(), ',') ==
          std::count(lines[0].begin(), lines[0].end(), ','));
  }
  CHECK(lines[1].rfind("rounds,,1001.000,1,100,3,", 0) == 0);
  CHECK(lines[3].rfind("island,4,1001.000,1,100,3,", 0) == 0);
  CHECK(lines[4].rfind("validation,,1003.000,2,,2.75,", 0) == 0);
  CHECK(lines[5].rfind("validation/law,,1003.000,2,,3.25,", 0) == 0);
  CHECK(lines[6] == "evaluation/arc,,1003.000,2,,,,,,,,,,,,,0.5,0.25,0.75,0,,,,");
}

TEST_CASE("csv_keeps_milliseconds_and_every_digit_of_a_count") {
  v1::JobHistory history;
  AddRound(history.mutable_rounds(), 1, 3);
  history.mutable_rounds()->set_unix_s(0, 1795730250.369);
  history.mutable_rounds()->set_tokens(0, 12'345'678'901'234);
  CHECK(HistoryAsCsv(history).find("rounds,,1795730250.369,1,12345678901234,3,") !=
        std::string::npos);
}

// TFRecords, as TensorFlow documents them; the masked CRC32C of the length is checked against a
// known value.
std::vector<tensorboard::Event> Parse(const std::string& bytes) {
  std::vector<tensorboard::Event> events;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    REQUIRE(bytes.size() - at >= 16);
    std::memcpy(&length, bytes.data() + at, 8);
    REQUIRE(bytes.size() - at >= 16 + length);
    tensorboard::Event event;
    REQUIRE(event.ParseFromArray(bytes.data() + at + 12, static_cast<int>(length)));
    events.push_back(event);
    at += 16 + length;
  }
  return events;
}

TEST_CASE("an_event_file_begins_with_its_version_and_has_a_scalar_a_point") {
  const auto events = Parse(HistoryAsEvents(TwoRounds()));
  REQUIRE(events.size() > 2);
  CHECK(events[0].file_version() == "brain.Event:2");
  const auto scalar = [&](const std::string& tag, int64_t step) -> double {
    for (const auto& event : events) {
      if (event.step() != step || event.summary().value_size() == 0) continue;
      if (event.summary().value(0).tag() == tag) return event.summary().value(0).simple_value();
    }
    return -1;
  };
  CHECK(scalar("loss/all", 2) == 2.5);
  CHECK(scalar("loss/island_4", 1) == 3);
  CHECK(scalar("loss/validation", 2) == 2.75);
  CHECK(scalar("loss/validation/law", 2) == 3.25);
  CHECK(scalar("accuracy/arc", 2) == 0.5);
  CHECK(scalar("normalised_accuracy/arc", 2) == 0.75);
  CHECK(scalar("perplexity/arc", 2) == -1);  // choices have none
  CHECK(scalar("tokens_per_second/all", 1) == 50);
}

TEST_CASE("an_event_file_is_followed_by_what_came_later_alone") {
  const v1::JobHistory both = TwoRounds();
  const WrittenEvents all = NewestEvents(both);
  CHECK(HistoryAsEvents(both, all).empty());
  CHECK(all.validated_version == 2);
  WrittenEvents loss_alone = all;  // scores of a version come after its loss
  loss_alone.scored.clear();
  const auto scores = Parse(HistoryAsEvents(both, loss_alone));
  REQUIRE(!scores.empty());
  CHECK(scores[0].summary().value(0).tag() == "accuracy/arc");
  const auto events = Parse(HistoryAsEvents(both, WrittenEvents{both.rounds().unix_s(0), -1}));
  REQUIRE(!events.empty());
  for (const auto& event : events) {
    CHECK(event.file_version().empty());
    CHECK(event.step() == 2);
  }
}

TEST_CASE("records_carry_the_masked_crc_of_their_length") {
  // The checksum is of the eight bytes 18 00 00 00 00 00 00 00, from a file that TensorFlow wrote:
  // its first event "brain.Event:2" has 24 bytes.
  v1::JobHistory empty;
  empty.set_submitted_unix_ms(1'000);
  const std::string bytes = HistoryAsEvents(empty);
  REQUIRE(bytes.size() == 16 + 24);
  CHECK(bytes.substr(8, 4) == std::string("\xa3\x7f\x4b\x22", 4));
}

}  // namespace
}  // namespace atl::cli
