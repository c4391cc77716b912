// Tests of what a stream writes next, and when it finishes.

#include "coordinator/streams.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace atl {
namespace {

// In gRPC's place: keeps what is written and how the call ends.
class FakeReactor {
 public:
  virtual ~FakeReactor() = default;
  virtual void OnWriteDone(bool ok) = 0;
  virtual void OnCancel() = 0;
  void StartWrite(const std::string* message) { written.push_back(*message); }
  void Finish(const grpc::Status& status) { finished.push_back(status.error_code()); }

  std::vector<std::string> written;
  std::vector<grpc::StatusCode> finished;
};

using Stream = SendingStream<FakeReactor, std::string>;
using Written = std::vector<std::string>;

TEST_CASE("messages_are_written_one_by_one_and_more_than_the_limit_are_refused") {
  Stream stream;
  CHECK(stream.Send("a", 2));
  CHECK(stream.Send("b", 2));
  CHECK_FALSE(stream.Send("c", 2));
  CHECK(stream.written == Written{"a"});
  stream.OnWriteDone(true);
  CHECK(stream.written == Written{"a", "b"});
  CHECK(stream.Send("c", 2));
}

TEST_CASE("the_newest_of_a_kind_goes_before_what_waits_and_replaces_the_one_before") {
  Stream stream;
  stream.Send("a", 8);
  stream.SendNewest("first list");
  stream.Send("b", 8);
  stream.SendNewest("second list");
  for (int i = 0; i < 3; ++i) stream.OnWriteDone(true);
  CHECK(stream.written == Written{"a", "second list", "b"});
  CHECK(stream.idle());
  stream.SendNewest("third list");
  CHECK(stream.written.back() == "third list");
}

TEST_CASE("a_stream_that_ends_writes_what_waits_and_finishes_once") {
  Stream stream;
  stream.Send("a", 8);
  stream.SendNewest("list");
  stream.End(grpc::Status(grpc::StatusCode::ABORTED, ""));
  stream.SendNewest("too late");
  CHECK_FALSE(stream.Send("too late", 8));
  CHECK(stream.finished.empty());
  stream.OnWriteDone(true);
  stream.OnWriteDone(true);
  stream.End(grpc::Status::OK);
  CHECK(stream.written == Written{"a", "list"});
  CHECK(stream.finished == std::vector{grpc::StatusCode::ABORTED});
}

TEST_CASE("a_peer_that_has_disconnected_ends_the_stream_with_what_waits") {
  Stream stream;
  stream.Send("a", 8);
  stream.SendNewest("list");
  stream.OnWriteDone(false);
  CHECK(stream.ended());
  CHECK(stream.finished == std::vector{grpc::StatusCode::CANCELLED});
}

}  // namespace
}  // namespace atl
