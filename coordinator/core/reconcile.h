// Does what follows from an event once it is noted: decisions, orders, requests. Private to the
// core.
//
// Most events are heartbeats that change nothing, or a message about one job. Only what they may
// have changed is looked at again, so that the cost of an event does not grow with members that it
// does not concern:
//  * nothing: a heartbeat that says what the one before said (State::Touch), a log line;
//  * jobs that were touched, and of their islands those that were; a job whose deadline is due; of
//  a
//    member that is lost the jobs that it has a part in;
//  * everything: members attach, or are lost while a job waits for members, and users' commands.
// With many members, changes of members are collected for 50 us a member and handled together, and
// what is touched for 10 us a member.

#ifndef ATOLL_COORDINATOR_CORE_RECONCILE_H_
#define ATOLL_COORDINATOR_CORE_RECONCILE_H_

#include "coordinator/core/core.h"
#include "coordinator/core/state.h"

namespace atl::coord {

enum class Affected {
  kTouched,  // jobs that the event touched or changed
  kMembers,  // everything; it may wait for other events of this kind
  kEverything
};

Affected AffectedBy(const CoordinatorEvent& event);

// Decides and says what follows from the Step's event. Returns when the next Step is due at the
// latest.
Instant Reconcile(State& s, Affected affected);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_RECONCILE_H_
