#include "coordinator/http/page_view.h"

#include <algorithm>
#include <map>
#include <string>

#include "common/net/relay/words.h"

namespace atl {
namespace {

constexpr int kRoundsDrawn = 16;

// Copies what both messages have under one name: numbers, texts and messages of one type; of
// repeated fields only those of messages.
void CopySame(const google::protobuf::Message& from, google::protobuf::Message* to) {
  using google::protobuf::FieldDescriptor;
  const auto *read = from.GetReflection(), *write = to->GetReflection();
  for (int i = 0; i < to->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* into = to->GetDescriptor()->field(i);
    const FieldDescriptor* of = from.GetDescriptor()->FindFieldByName(into->name());
    if (of == nullptr || of->type() != into->type() || of->label() != into->label() ||
        of->message_type() != into->message_type()) {
      continue;
    }
    if (into->is_repeated()) {
      for (int k = 0; into->message_type() != nullptr && k < read->FieldSize(from, of); ++k) {
        write->AddMessage(to, into)->CopyFrom(read->GetRepeatedMessage(from, of, k));
      }
    } else if (into->message_type() != nullptr) {
      write->MutableMessage(to, into)->CopyFrom(read->GetMessage(from, of));
    } else if (into->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      write->SetString(to, into, read->GetString(from, of));
    } else if (into->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      write->SetBool(to, into, read->GetBool(from, of));
    } else if (into->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      write->SetDouble(to, into, read->GetDouble(from, of));
    } else if (into->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      write->SetInt32(to, into, read->GetInt32(from, of));
    } else {
      write->SetInt64(to, into, read->GetInt64(from, of));
    }
  }
}

void Fill(const v1::Member& member, v1::page::Member* to) {
  CopySame(member, to);
  CopySame(member.load(), to);
  to->set_address(
      DescribeEndpoint(member.endpoint().empty() ? member.peer_endpoint() : member.endpoint()));
  for (const v1::DeviceInfo& device : member.devices()) {
    to->add_devices(device.kind());
    to->set_memory_bytes(to->memory_bytes() + device.memory_bytes());
  }
}

void Fill(const v1::Island& island, v1::page::Island* to) {
  CopySame(island.progress(), to);
  CopySame(island, to);
}

void Fill(const v1::Island& island, v1::page::IslandDetails* to) {
  CopySame(island.progress(), to);
  CopySame(island, to);
  *to->mutable_router_losses() = island.progress().router_losses();
  *to->mutable_expert_tokens() = island.progress().expert_tokens();
  to->clear_plan();
  *to->mutable_plan()->mutable_replicas() = island.plan().replicas();
  to->mutable_plan()->set_number(island.plan().number());
  to->mutable_plan()->set_step_ns(island.plan().step_ns());
  to->mutable_plan()->set_schedule(island.plan().schedule());
  to->mutable_plan()->set_reason(island.plan().reason());
}

void FillDecisions(const v1::Job& job, int32_t rows, v1::page::Job* to) {
  int32_t kept = 0;
  for (auto decision = job.decisions().rbegin(); decision != job.decisions().rend(); ++decision) {
    for (const v1::Participant& part : decision->participants()) {
      if (kept++ >= rows) continue;
      v1::page::Decision* row = to->add_decisions();
      CopySame(*decision, row);
      CopySame(part, row);
    }
  }
  to->set_decisions_kept(kept);
}

void FillServers(const v1::Job& job, v1::page::Job* to) {
  std::map<std::string, v1::page::Server*> servers;
  for (const auto* shards : {&job.shards(), &job.copies()}) {
    for (const v1::ShardPlacement& shard : *shards) {
      if (shard.server().empty()) continue;
      v1::page::Server*& server = servers[shard.server()];
      if (server == nullptr) server = to->add_servers();
      server->set_name(shard.server());
      server->set_shards(server->shards() + 1);
      server->set_elements(server->elements() + shard.elements());
    }
  }
}

}  // namespace

v1::page::Status ToPage(const v1::ClusterStatus& status) {
  v1::page::Status page;
  page.set_epoch(status.epoch());
  page.set_up_s(status.up_s());
  page.set_software_version(status.software_version());
  *page.mutable_troubles() = status.troubles();
  for (const v1::Member& member : status.members()) Fill(member, page.add_members());
  for (const v1::Job& job : status.jobs()) {
    v1::page::StatusJob* to = page.add_jobs();
    *to->mutable_summary() = job.summary();
    for (const v1::Island& island : job.islands()) {
      if (island.stalled().empty()) continue;
      v1::page::StalledIsland* stalled = to->add_stalled();
      stalled->set_island(island.island());
      stalled->set_stalled(island.stalled());
    }
  }
  return page;
}

v1::page::Job ToPage(const v1::Job& job, const JobPage& page) {
  v1::page::Job to;
  *to.mutable_summary() = job.summary();
  to.set_phase(job.round().phase());
  to.set_round_length(job.round_length());
  if (job.spec().has_rehearsed()) *to.mutable_rehearsed() = job.spec().rehearsed();
  int32_t workers = 0;
  for (const v1::Island& island : job.islands()) {
    workers += island.workers_size();
    if (page.island && island.island() != *page.island) continue;
    v1::page::Island* kept = to.add_islands();
    Fill(island, kept);
    if (page.island) Fill(island, kept->mutable_details());
  }
  to.set_workers(workers);
  FillDecisions(job, page.decisions, &to);
  FillServers(job, &to);
  return to;
}

void KeepDrawn(v1::JobHistory* history) {
  for (v1::IslandCurve& island : *history->mutable_islands()) {
    v1::Curve drawn;
    drawn.mutable_unix_s()->Swap(island.mutable_curve()->mutable_unix_s());
    drawn.mutable_version()->Swap(island.mutable_curve()->mutable_version());
    drawn.mutable_loss()->Swap(island.mutable_curve()->mutable_loss());
    drawn.mutable_tokens()->Swap(island.mutable_curve()->mutable_tokens());
    drawn.mutable_seconds()->Swap(island.mutable_curve()->mutable_seconds());
    drawn.mutable_learning_rate()->Swap(island.mutable_curve()->mutable_learning_rate());
    drawn.mutable_gradient_norm()->Swap(island.mutable_curve()->mutable_gradient_norm());
    island.mutable_curve()->Swap(&drawn);
  }
  v1::Curve& rounds = *history->mutable_rounds();
  rounds.clear_loss_min();
  rounds.clear_loss_max();
  rounds.clear_contributions();
  rounds.clear_rejected();
  rounds.clear_staleness();
  rounds.clear_steps();
  const int older = std::max(0, history->newest_size() - kRoundsDrawn);
  history->mutable_newest()->DeleteSubrange(0, older);
}

}  // namespace atl
