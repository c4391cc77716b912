#include "common/net/frame.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "common/check.h"
#include "common/net/socket.h"

namespace atl {
namespace {

// Bytes since the hello: of years at any rate, and sums with a message's cost stay numbers.
constexpr int64_t kCreditMax = int64_t{1} << 62;

absl::Status Bad(absl::string_view field, int64_t value) {
  return absl::InvalidArgumentError(absl::StrCat(field, " ", value, " is out of range"));
}

absl::Status CheckEncoding(v1::TensorEncoding encoding) {
  return IsEncoding(int64_t{encoding} - 1) ? absl::OkStatus() : Bad("encoding", encoding);
}

struct Bounded {
  const char* field;
  int64_t value, least;
  int64_t most = std::numeric_limits<int64_t>::max();
};
absl::Status CheckNumbers(std::initializer_list<Bounded> numbers) {
  for (const Bounded& number : numbers) {
    const bool in_range = number.value >= number.least && number.value <= number.most;
    if (!in_range) return Bad(number.field, number.value);
  }
  return absl::OkStatus();
}

absl::Status Check(const v1::PushOpen& open) {
  ATOLL_RETURN_IF_ERROR(CheckJob(open.job()));
  ATOLL_RETURN_IF_ERROR(CheckEncoding(open.encoding()));
  ATOLL_RETURN_IF_ERROR(CheckChunkBytes(open.chunk_bytes()));
  return CheckNumbers({{"island", open.island(), 0},
                       {"shard", open.shard(), 0},
                       {"base_version", open.base_version(), -kElementsMax},
                       {"element_count", open.element_count(), open.part() ? 1 : 0, kElementsMax},
                       {"begin", open.begin(), 0, open.part() ? kElementsMax : 0}});
}

absl::Status Check(const v1::PullOpen& open) {
  ATOLL_RETURN_IF_ERROR(CheckJob(open.job()));
  ATOLL_RETURN_IF_ERROR(CheckChunkBytes(open.chunk_bytes()));
  return CheckNumbers({{"shard", open.shard(), 0},
                       {"version", open.version(), kNoVersion},
                       {"elements", open.elements(), 0, kElementsMax},
                       {"begin", open.begin(), 0, open.elements() == 0 ? 0 : kElementsMax},
                       {"first_chunk", open.first_chunk(), 0, kElementsMax}});
}

absl::Status Check(const v1::TransferStart& start) {
  return CheckNumbers({{"element_count", start.element_count(), 0, kElementsMax},
                       {"first_chunk", start.first_chunk(), 0},
                       {"version", start.version(), 0}});
}

absl::Status CheckReason(absl::string_view reason) {
  return reason.size() > kReasonBytesMax ? Bad("reason's length", reason.size()) : absl::OkStatus();
}

absl::Status Check(const v1::PeerHello& hello) {
  ATOLL_RETURN_IF_ERROR(CheckJob(hello.job()));
  ATOLL_RETURN_IF_ERROR(CheckChunkBytes(hello.chunk_bytes()));
  for (const std::string* name : {&hello.from(), &hello.to()}) {
    if (!CheckJob(*name).ok() || name->size() > 63) {
      return absl::InvalidArgumentError("a worker's name has 1 to 63 of [a-z0-9-]");
    }
  }
  return CheckNumbers({{"generation", hello.generation(), 0},
                       {"plan", hello.plan(), 0},
                       {"lane", hello.lane(), 0, kPeerLanesMax - 1}});
}

absl::Status Check(const v1::PeerWelcome& welcome) {
  ATOLL_RETURN_IF_ERROR(CheckNumbers({{"limits", welcome.limits_size(), 4, 4}}));
  for (const int64_t limit : welcome.limits()) {
    ATOLL_RETURN_IF_ERROR(CheckNumbers({{"limit", limit, 0, kElementsMax}}));
  }
  return absl::OkStatus();
}

absl::Status Check(const v1::PeerOpen& open) {
  return CheckNumbers({{"channel", open.channel(), 0, 3},
                       {"header's length", std::ssize(open.header()), 0, 512},
                       {"bytes", open.bytes(), 0, kElementsMax},
                       {"sequence", open.sequence(), 1}});
}

absl::Status CheckLengths(std::initializer_list<std::pair<const std::string*, size_t>> fields) {
  for (const auto& [field, length] : fields) {
    if (field->size() != length) return Bad("length of a key or tag", field->size());
  }
  return absl::OkStatus();
}

absl::Status Check(const v1::LinkHello& hello) {
  return CheckLengths({{&hello.key(), kLinkKeyBytes},
                       {&hello.once(), kLinkKeyBytes},
                       {&hello.tag(), kLinkTagBytes}});
}

absl::Status Check(const v1::Chunk& chunk) {
  if (chunk.index() < 0) return Bad("index", chunk.index());
  return chunk.tag().empty() ? absl::OkStatus() : CheckLengths({{&chunk.tag(), kLinkTagBytes}});
}

absl::Status CheckBody(const v1::Frame& frame) {
  switch (frame.body_case()) {
    case v1::Frame::kPushOpen:
      return Check(frame.push_open());
    case v1::Frame::kPullOpen:
      return Check(frame.pull_open());
    case v1::Frame::kTransferStart:
      return Check(frame.transfer_start());
    case v1::Frame::kTransferEnd:
      return CheckReason(frame.transfer_end().reason());
    case v1::Frame::kChunk:
      return Check(frame.chunk());
    case v1::Frame::kPeerHello:
      return Check(frame.peer_hello());
    case v1::Frame::kPeerWelcome:
      return Check(frame.peer_welcome());
    case v1::Frame::kPeerRefusal:
      return CheckReason(frame.peer_refusal().reason());
    case v1::Frame::kPeerOpen:
      return Check(frame.peer_open());
    case v1::Frame::kPeerCredit:
      return CheckNumbers({{"limit", frame.peer_credit().limit(), 0, kCreditMax},
                           {"channel", frame.peer_credit().channel(), 0, 3}});
    case v1::Frame::kPeerArrival:
      return CheckReason(frame.peer_arrival().reason());
    case v1::Frame::kLinkHello:
      return Check(frame.link_hello());
    case v1::Frame::kLinkWelcome:
      return CheckLengths({{&frame.link_welcome().once(), kLinkKeyBytes},
                           {&frame.link_welcome().tag(), kLinkTagBytes}});
    case v1::Frame::kLinkRefusal:
      return frame.link_refusal().tag().empty()
                 ? absl::OkStatus()
                 : CheckLengths({{&frame.link_refusal().tag(), kLinkTagBytes}});
    case v1::Frame::kPeerPing:
    case v1::Frame::kPeerPong:
    case v1::Frame::kPeerSample:
    case v1::Frame::kPeerSampled:
    case v1::Frame::kCancel:
      return absl::OkStatus();
    case v1::Frame::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the frame has no body that is known");
}

}  // namespace

v1::Frame MakeFrame(uint64_t transfer) {
  v1::Frame frame;
  frame.set_protocol_version(kProtocolVersion);
  frame.set_transfer(transfer);
  return frame;
}

absl::Status ParseFrame(absl::string_view bytes, bool has_payload, v1::Frame* frame) {
  if (bytes.size() > kHeaderBytesMax) return Bad("header's length", bytes.size());
  if (!frame->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("the header is not a Frame");
  }
  if (frame->protocol_version() != kProtocolVersion) {
    return absl::UnimplementedError(
        absl::StrCat("protocol version ", frame->protocol_version(), " is not ", kProtocolVersion));
  }
  if (frame->transfer() == 0) return Bad("transfer", 0);
  if (has_payload != (frame->has_chunk() || frame->has_peer_sample())) {
    return absl::InvalidArgumentError("a payload follows a Chunk or sample and nothing else");
  }
  return CheckBody(*frame);
}

PushId MakePushId(const v1::PushOpen& open) {
  return {open.job(),          open.island(),
          open.generation(),   open.incarnation(),
          open.base_version(), open.shard(),
          open.begin(),        open.part() ? open.element_count() : 0};
}

void SetPushId(const PushId& id, v1::PushOpen* open) {
  open->set_job(id.job);
  open->set_island(id.island);
  open->set_generation(id.generation);
  open->set_incarnation(id.incarnation);
  open->set_base_version(id.base_version);
  open->set_shard(id.shard);
  open->set_part(id.elements > 0);
  open->set_begin(id.begin);
}

Encoding EncodingFromWire(v1::TensorEncoding encoding) {
  ATOLL_CHECK(CheckEncoding(encoding).ok(), static_cast<int>(encoding));
  return static_cast<Encoding>(encoding - 1);
}

v1::TensorEncoding WireEncoding(Encoding encoding) {
  return static_cast<v1::TensorEncoding>(static_cast<int>(encoding) + 1);
}

PullRequest ToPullRequest(const v1::PullOpen& open) {
  return {open.job(), open.version(), open.shard(), open.begin(), open.elements(), open.slot()};
}

void SetRequest(const PullRequest& request, v1::PullOpen* open) {
  open->set_job(request.job);
  open->set_version(request.version);
  open->set_shard(request.shard);
  open->set_begin(request.begin);
  open->set_elements(request.elements);
  open->set_slot(request.slot);
}

absl::Status CheckJob(absl::string_view job) {
  const bool is_valid = std::all_of(job.begin(), job.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (is_valid && !job.empty() && job.size() <= 128) return absl::OkStatus();
  return absl::InvalidArgumentError("a job's name has 1 to 128 of [a-z0-9-]");
}

absl::Status CheckChunkBytes(int64_t chunk_bytes) {
  if (chunk_bytes >= kChunkBytesMin && chunk_bytes <= kChunkBytesMax && chunk_bytes % 4 == 0) {
    return absl::OkStatus();
  }
  return Bad("chunk_bytes", chunk_bytes);
}

}  // namespace atl
