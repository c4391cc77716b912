#include "kernels/recorder.h"

#include <utility>

namespace atl {

absl::Status Recorder::Repeat(Stream& stream, const WorkKey& key,
                              absl::FunctionRef<absl::Status()> work) {
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    if (entries_.size() == capacity_) {
      counts_.trouble = absl::StrCat("there are more than ", capacity_, " units of work");
      return work();
    }
    found = entries_.try_emplace(key).first;
  }
  Entry& entry = found->second;
  switch (entry.state) {
    case State::kRecorded:
      ++counts_.replayed;
      graphs_->Launch(stream, *entry.graph);
      return absl::OkStatus();
    case State::kSeen:
      return Record(stream, entry, work);
    case State::kNew:
      entry.state = State::kSeen;
      return work();
    case State::kRefused:
      return work();
  }
  return work();
}

absl::Status Recorder::Record(Stream& stream, Entry& entry,
                              absl::FunctionRef<absl::Status()> work) {
  if (const absl::Status begun = graphs_->Begin(stream); !begun.ok()) {
    Refuse(entry, begun);
    return work();
  }
  const absl::Status status = work();
  absl::StatusOr<std::unique_ptr<Graphs::Graph>> graph = graphs_->End(stream);
  if (!status.ok()) return status;
  if (!graph.ok()) {
    Refuse(entry, graph.status());
    return work();
  }
  entry.graph = *std::move(graph);
  entry.state = State::kRecorded;
  ++counts_.recorded;
  graphs_->Launch(stream, *entry.graph);
  return absl::OkStatus();
}

void Recorder::Refuse(Entry& entry, const absl::Status& why) {
  entry.state = State::kRefused;
  counts_.trouble = std::string(why.message());
}

}  // namespace atl
