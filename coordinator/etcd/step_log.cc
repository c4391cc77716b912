#include "coordinator/etcd/step_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/event_loop.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr int64_t kFewestKeys = 16, kMostKeys = 512;  // of a page
constexpr size_t kSmallPageBytes = size_t{1} << 20;
constexpr int64_t kPatienceLeases = 5;  // the lease ends before, unless etcd renews it
constexpr size_t kMaxStepBytes = size_t{1} << 30;

std::string MakeFolder(const std::string& prefix) { return absl::StrCat(prefix, "/step/"); }

// The end of the range of all keys of a folder.
std::string ComputeEnd(std::string folder) {
  ++folder.back();
  return folder;
}

}  // namespace

StepLog::StepLog(EtcdClient* client, Leadership* leadership, const std::string& prefix)
    : client_(client), leadership_(leadership), prefix_(prefix) {}

std::string StepLog::MakeKey(int64_t number) const {
  return MakeFolder(prefix_) + absl::StrFormat("%019d", number);
}

absl::StatusOr<LoggedState> StepLog::Read(EtcdClient* client, const std::string& prefix,
                                          const EtcdClient::GoOn& go_on) {
  const std::string folder = MakeFolder(prefix);
  LoggedState state;
  etcdserverpb::RangeRequest request;
  request.set_key(folder);
  request.set_range_end(ComputeEnd(folder));
  request.set_limit(kFewestKeys);
  for (;;) {
    ATOLL_ASSIGN_OR_RETURN(const auto page, client->Range(request, go_on));
    if (request.revision() == 0) request.set_revision(page.header().revision());
    for (const etcdserverpb::KeyValue& kv : page.kvs()) {
      int64_t number = 0;
      if (kv.key().compare(0, folder.size(), folder) != 0 ||
          !absl::SimpleAtoi(kv.key().substr(folder.size()), &number) || number <= 0) {
        return absl::DataLossError(absl::StrCat("the key ", kv.key(), " is no entry's"));
      }
      ATOLL_RETURN_IF_ERROR(state.Add(number, kv.value()));
    }
    if (!page.more() || page.kvs_size() == 0) return state;
    request.set_key(absl::StrCat(page.kvs(page.kvs_size() - 1).key(), absl::string_view("\0", 1)));
    request.set_limit(page.ByteSizeLong() < kSmallPageBytes
                          ? std::min(request.limit() * 2, kMostKeys)
                          : kFewestKeys);
  }
}

absl::Status StepLog::Open(const EtcdClient::GoOn& go_on) {
  ATOLL_ASSIGN_OR_RETURN(state_, Read(client_, prefix_, go_on));
  etcdserverpb::TxnRequest request;
  auto* erase = request.add_success()->mutable_request_delete_range();
  erase->set_key(MakeKey(state_.next()));
  erase->set_range_end(ComputeEnd(MakeFolder(prefix_)));
  return Transact(std::move(request), "");
}

absl::Status StepLog::Transact(etcdserverpb::TxnRequest request, const std::string& key) {
  etcdserverpb::Compare* compare = request.add_compare();
  compare->set_target(etcdserverpb::Compare::CREATE);
  compare->set_key(leadership_->key());
  compare->set_create_revision(leadership_->create_revision());
  request.add_failure()->mutable_request_range()->set_key(leadership_->key());
  if (!key.empty()) {
    compare = request.add_compare();
    compare->set_target(etcdserverpb::Compare::CREATE);
    compare->set_key(key);
    compare->set_create_revision(0);
    request.add_failure()->mutable_request_range()->set_key(key);
  }
  ATOLL_RETURN_IF_ERROR(leadership_->Check());
  const Instant until =
      SteadyNow() + std::chrono::seconds(kPatienceLeases * leadership_->lease_s());
  const auto reply =
      client_->Txn(request, [&] { return SteadyNow() < until && leadership_->Check().ok(); });
  if (!reply.ok()) {
    ATOLL_RETURN_IF_ERROR(leadership_->Check());
    return reply.status();
  }
  if (reply->succeeded()) return absl::OkStatus();
  if (reply->responses_size() != request.failure_size()) {
    return absl::InternalError("etcd's answer is not of the request");
  }
  const auto& leader = reply->responses(0).response_range();
  if (leader.kvs_size() == 0 || leader.kvs(0).create_revision() != leadership_->create_revision()) {
    return leadership_->Lose("another coordinator has taken the lead; start this one again");
  }
  // An earlier attempt may have been carried out without an answer.
  const auto& found = reply->responses(request.failure_size() - 1).response_range();
  if (!key.empty() && found.kvs_size() == 1 &&
      found.kvs(0).value() == request.success(0).request_put().value()) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(key, ": was changed by something other than this coordinator"));
}

absl::Status StepLog::Store(int64_t first, const std::vector<std::string>& entries, bool snapshot) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string key = MakeKey(first + static_cast<int64_t>(i));
    etcdserverpb::TxnRequest request;
    auto* put = request.add_success()->mutable_request_put();
    put->set_key(key);
    put->set_value(entries[i]);
    if (snapshot && i + 1 == entries.size()) {
      auto* erase = request.add_success()->mutable_request_delete_range();
      erase->set_key(MakeFolder(prefix_));
      erase->set_range_end(MakeKey(first));
    }
    ATOLL_RETURN_IF_ERROR(Transact(std::move(request), key));
  }
  return absl::OkStatus();
}

absl::Status StepLog::Commit(const etcd::Step& step) {
  ATOLL_RETURN_IF_ERROR(failure_);
  if (step.ByteSizeLong() > kMaxStepBytes) {
    return absl::ResourceExhaustedError("a step of over 1 GiB cannot be stored");
  }
  const int64_t first = state_.next();
  failure_ = Store(first, state_.Append(step), /*snapshot=*/false);
  ATOLL_RETURN_IF_ERROR(failure_);
  if (!state_.is_long()) return absl::OkStatus();
  // The step is made, whatever becomes of the snapshot.
  const int64_t snapshot = state_.next();
  failure_ = Store(snapshot, state_.AppendSnapshot(), /*snapshot=*/true);
  return absl::OkStatus();
}

}  // namespace atl
