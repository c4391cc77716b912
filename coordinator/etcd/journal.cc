#include "coordinator/etcd/journal.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/event_loop.h"
#include "common/status.h"
#include "coordinator/etcd/stored.h"

namespace atl {
namespace {

constexpr size_t kMaxOperations = 100;
constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int64_t kPatienceLeases = 5;  // the lease ends before, unless etcd renews it

// In groups that one transaction takes; each has one operation at least.
std::vector<EtcdOperations> Split(EtcdOperations operations) {
  std::vector<EtcdOperations> batches;
  size_t bytes = 0;
  for (etcdserverpb::RequestOp& operation : operations) {
    const size_t more = operation.ByteSizeLong();
    if (batches.empty() || batches.back().size() == kMaxOperations || bytes + more > kMaxBytes) {
      batches.emplace_back();
      bytes = 0;
    }
    bytes += more;
    batches.back().push_back(std::move(operation));
  }
  return batches;
}

std::string MakeBatchKey(const std::string& staged, int batch) {
  return absl::StrCat(staged, absl::StrFormat("%07d", batch));
}

}  // namespace

Journal::Journal(EtcdClient* client, Leadership* leadership, const std::string& prefix)
    : client_(client),
      leadership_(leadership),
      totals_key_(absl::StrCat(prefix, "/totals")),
      staged_(absl::StrCat(prefix, "/staged/")) {}

absl::Status Journal::Transact(const EtcdOperations& operations, const std::string& totals) {
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare* compare = request.add_compare();
  compare->set_target(etcdserverpb::Compare::CREATE);
  compare->set_key(leadership_->key());
  compare->set_create_revision(leadership_->create_revision());
  compare = request.add_compare();
  compare->set_target(etcdserverpb::Compare::MOD);
  compare->set_key(totals_key_);
  compare->set_mod_revision(totals_revision_);
  for (const etcdserverpb::RequestOp& operation : operations) *request.add_success() = operation;
  if (!totals.empty()) {
    auto* put = request.add_success()->mutable_request_put();
    put->set_key(totals_key_);
    put->set_value(totals);
  }
  for (const std::string& key : {leadership_->key(), totals_key_}) {
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
  if (reply->succeeded()) {
    if (!totals.empty()) totals_revision_ = reply->header().revision();
    return absl::OkStatus();
  }
  if (reply->responses_size() != 2) {
    return absl::InternalError("etcd's answer is not of the request");
  }
  const auto& leader = reply->responses(0).response_range();
  if (leader.kvs_size() == 0 || leader.kvs(0).create_revision() != leadership_->create_revision()) {
    return leadership_->Lose("another coordinator has taken the lead; start this one again");
  }
  const auto& found = reply->responses(1).response_range();
  // An earlier attempt may have been carried out without an answer.
  if (!totals.empty() && found.kvs_size() == 1 && found.kvs(0).value() == totals) {
    totals_revision_ = found.kvs(0).mod_revision();
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(totals_key_, ": was changed by something other than this coordinator"));
}

absl::Status Journal::Commit(EtcdOperations operations, const StoreTotals& totals) {
  std::vector<EtcdOperations> batches = Split(std::move(operations));
  if (batches.size() <= 1) {
    return Transact(batches.empty() ? EtcdOperations() : batches[0], EncodeTotals(totals, 0));
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    etcd::Batch batch;
    for (etcdserverpb::RequestOp& operation : batches[i]) {
      *batch.add_operations() = std::move(operation);
    }
    EtcdOperations put(1);
    put[0].mutable_request_put()->set_key(MakeBatchKey(staged_, static_cast<int>(i)));
    put[0].mutable_request_put()->set_value(batch.SerializeAsString());
    ATOLL_RETURN_IF_ERROR(Transact(put, ""));
  }
  const int count = static_cast<int>(batches.size());
  ATOLL_RETURN_IF_ERROR(Transact({}, EncodeTotals(totals, count)));
  return CarryOut(totals, count);
}

absl::Status Journal::CarryOut(const StoreTotals& totals, int batches) {
  for (int i = 0; i < batches; ++i) {
    etcdserverpb::RangeRequest request;
    request.set_key(MakeBatchKey(staged_, i));
    ATOLL_ASSIGN_OR_RETURN(const auto reply,
                           client_->Range(request, [&] { return leadership_->Check().ok(); }));
    ATOLL_ASSIGN_OR_RETURN(const EtcdOperations batch, BatchIn(reply, request.key()));
    ATOLL_RETURN_IF_ERROR(Transact(batch, ""));
  }
  EtcdOperations erase(1);
  erase[0].mutable_request_delete_range()->set_key(staged_);
  erase[0].mutable_request_delete_range()->set_range_end(ComputePrefixEnd(staged_));
  return Transact(erase, EncodeTotals(totals, 0));
}

absl::StatusOr<Journal::Snapshot> Journal::Look(EtcdClient* client, const std::string& prefix,
                                                const EtcdClient::GoOn& go_on) {
  etcdserverpb::RangeRequest request;
  request.set_key(absl::StrCat(prefix, "/totals"));
  ATOLL_ASSIGN_OR_RETURN(const auto reply, client->Range(request, go_on));
  ATOLL_ASSIGN_OR_RETURN(const auto found, TotalsIn(reply, request.key()));
  if (!found) return Snapshot{reply.header().revision(), true, {}};
  return Snapshot{reply.header().revision(), found->staged_batches == 0, found->totals};
}

absl::StatusOr<StoreTotals> Journal::Recover() {
  etcdserverpb::RangeRequest request;
  request.set_key(totals_key_);
  ATOLL_ASSIGN_OR_RETURN(const auto reply,
                         client_->Range(request, [&] { return leadership_->Check().ok(); }));
  ATOLL_ASSIGN_OR_RETURN(const auto found, TotalsIn(reply, totals_key_));
  if (!found) return StoreTotals();
  totals_revision_ = reply.kvs(0).mod_revision();
  if (found->staged_batches > 0) {
    ATOLL_RETURN_IF_ERROR(CarryOut(found->totals, found->staged_batches));
  }
  return found->totals;
}

}  // namespace atl
