// Work that is enqueued again and again as one launch: which units are recorded, when, and what
// becomes of them. Backend::Repeat for backends that can record; what touches a device is behind
// Graphs.
//
// A key's first call only enqueues: libraries make their plans then, which cannot be recorded. The
// second one records, and from then on the record is launched. What cannot be recorded is enqueued
// unit by unit for ever, and the reason is kept.

#ifndef ATOLL_KERNELS_RECORDER_H_
#define ATOLL_KERNELS_RECORDER_H_

#include <map>
#include <memory>

#include "kernels/backend.h"

namespace atl {

// Streams that can keep what is enqueued on them.
class Graphs {
 public:
  class Graph {
   public:
    virtual ~Graph() = default;
  };

  virtual ~Graphs() = default;
  // Makes the stream keep, not do, what is enqueued from now on.
  virtual absl::Status Begin(Stream& stream) = 0;
  // Ends that. An error: something could not be kept. Nothing has been done either way.
  virtual absl::StatusOr<std::unique_ptr<Graph>> End(Stream& stream) = 0;
  virtual void Launch(Stream& stream, Graph& graph) = 0;
};

// Used by one thread at a time.
class Recorder {
 public:
  // At most `capacity` records; what comes later is enqueued unit by unit.
  Recorder(Graphs* graphs, size_t capacity) : graphs_(graphs), capacity_(capacity) {}

  absl::Status Repeat(Stream& stream, const WorkKey& key, absl::FunctionRef<absl::Status()> work);
  // Memory that records use is about to be freed. No record may be under way on any stream.
  void Forget() { entries_.clear(); }

  const RepeatCounts& counts() const { return counts_; }

 private:
  enum class State { kNew, kSeen, kRecorded, kRefused };
  struct Entry {
    State state = State::kNew;
    std::unique_ptr<Graphs::Graph> graph;
  };

  absl::Status Record(Stream& stream, Entry& entry, absl::FunctionRef<absl::Status()> work);
  void Refuse(Entry& entry, const absl::Status& why);

  Graphs* const graphs_;
  const size_t capacity_;
  std::map<WorkKey, Entry> entries_;
  RepeatCounts counts_;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_RECORDER_H_
