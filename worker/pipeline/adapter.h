// Cuts what goes over one boundary into pieces, as its link and the compute on both sides ask for.
// The rule of SpanTrain's adapter with what it leaves open decided. Pure: transfers in, decisions
// with reasons out.
//
// A micro-batch of N sequences that leaves in k pieces reaches the next stage, which works on each
// piece as it comes, after
//
//   fill(k) = compute(N/k) + l + N/k * bytes / b              the first piece
//           + (k - 1) * max(compute(N/k), l_msg + N/k * bytes / b)   the others, one after the other
//
// where l is the link's latency, l_msg what a message costs beside its bytes, b the bandwidth. In
// the fill and the drain of a step this time is on the critical path; in between only the link's
// and the devices' load count, which pieces can only raise. So there are two numbers of pieces, one
// for fill and drain and one, at most as large, for steady state.
//
// Measurements come in windows of 20 transfers, averaged with weights that halve per window. Numbers
// change by a factor of two at a time, only when a window ends, and only for a gain of the predicted
// time of at least 25% of what it can be (hysteresis), so that noise changes nothing.
//
// A link that takes longer for a micro-batch's bytes than the devices for their work is SATURATED:
// no pieces help, and the coordinator is asked for another plan.

#ifndef ATOLL_WORKER_PIPELINE_ADAPTER_H_
#define ATOLL_WORKER_PIPELINE_ADAPTER_H_

#include <cstdint>
#include <optional>
#include <string>

namespace atl::worker {
