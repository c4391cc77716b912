// Changes of a layout that the search has found, or that the job brings along. Pure.
// Internal to planning.

#ifndef ATOLL_COORDINATOR_PLANNING_PLAN_CHANGES_H_
#define ATOLL_COORDINATOR_PLANNING_PLAN_CHANGES_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planning/request.h"

namespace atl {

// ---- a plan that the job brings along (layout.plan), checked before it runs ----

// The plan's replicas, stages, devices, micro-batches, recomputed layers and tensor-parallel split
// ratios, with the order of operations that layout.schedule names, else that of its programs, else
// the best one found. `input` may recompute afterwards as the plan does. The error begins with
// "layout.plan" and says what cannot run: an unknown device, layers that are missing or doubled,
// too little memory, another batch, no assignment for the leader, a schedule that does not suit the
// stages, operations that are missing or would wait for each other.
absl::StatusOr<plan::Plan> PinnedPlan(const PlanRequest& request, PlanningInput& input);

// ---- which blocks a plan recomputes, and whether it has to ----

// The same, but that stages may recompute where they lack memory.
PlanningInput WithRecomputation(PlanningInput input);

// Gives devices as much memory, at least, as the plan's programs take by the search's account.
// REQUIRES: a layout of that plan.
void MakeRoom(const plan::Layout& layout, const IslandPlan& island, PlanningInput& input);

bool Recomputes(const IslandPlan& island);

// The search keeps memory back for what it does not know of. `island` is `plan` in runtime form:
// the same plan with the fewest recomputed blocks that its programs' exact memory requires, if
// these are fewer and its step is no longer. Its programs are new ones: their memory is to be
// computed again.
std::optional<plan::Plan> RecomputingLess(const PlanRequest& request, PlanningInput input,
                                          IslandPlan island, plan::Plan plan);

// "; stage 0 recomputes 3 of 6 blocks (w1/0 would take 412.0 MiB of 400.0 MiB without)" for its
// reason; empty where it recomputes nothing.
std::string WhatRecomputes(const PlanRequest& request, const IslandPlan& island);

// ---- how devices of different speed share layers ----

// `plan` shares its layers evenly. Where the job says how, it shares them so, faster devices with
// larger shares; or else in whole heads such that the slowest device of a group with unlike ones is
// done as soon as can be, where that makes the step shorter (AutoHet: the same cut points in all
// replicas). Says so in the plan's reason. An error: what the job says does not fit.
absl::Status ShareUnevenly(const PlanRequest& request, const PlanningInput& input,
                           plan::Plan& plan);

// ---- which devices hold which stages; state_placement.cc ----

// Where the state of an island lies decides what a new plan costs before its first step: layers
// that a worker held stay, others are transferred over the network first (state resharding). Of
// layouts that differ only in which devices hold which stages, the one that moves least is chosen
// (AutoHet's aim in recoveries; docs/design/planner.md).
//
// Assigns other devices to the plan's stages, its own or idle ones, so that more parameters are
// where request.ran had them, unless the plan's rank gets worse by over 1%. Cuts and micro-batches
// stay the same; the outcome is that of the new assignment, and the reason says what stays.
void KeepStateInPlace(const PlanRequest& request, const PlanningInput& input, plan::Plan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_PLAN_CHANGES_H_
