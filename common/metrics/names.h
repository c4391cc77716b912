// Every metric of every daemon, declared once. deploy/monitoring/ uses these names.
//
// Units: seconds, bytes, ratios (0 to 1 unless said otherwise), nats a token; counters end in
// _total. Labels come from small sets: atoll_job ("job" is Prometheus' own), island, server, member
// (bounded as coordinator/monitoring/cluster_metrics.h says), kind, state, reason, outcome, queue.

#ifndef ATOLL_COMMON_METRICS_NAMES_H_
#define ATOLL_COMMON_METRICS_NAMES_H_

#include "common/metrics/metrics.h"

namespace atl {

namespace metric_bounds {
inline constexpr double kStepSeconds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                          0.5,   1,      2.5,   5,    10,    30,   60,  300};
inline constexpr double kRoundSeconds[] = {0.1, 0.25, 0.5, 1,   2.5, 5,    10,
                                           30,  60,   120, 300, 600, 1800, 3600};
inline constexpr double kVersions[] = {0, 1, 2, 3, 4, 6, 8, 16};
}  // namespace metric_bounds

// ---- every daemon ----
inline constexpr Metric kBuildInfo{"atoll_build_info", MetricType::kGauge,
                                   "1, with the software's version"};
inline constexpr Metric kProcessCpuSeconds{"process_cpu_seconds_total", MetricType::kCounter,
                                           "CPU time of the process"};
inline constexpr Metric kProcessResidentBytes{"process_resident_memory_bytes", MetricType::kGauge,
                                              "resident memory of the process"};
inline constexpr Metric kProcessStartSeconds{"process_start_time_seconds", MetricType::kGauge,
                                             "when the process started, Unix time"};
inline constexpr Metric kDiskFreeBytes{"atoll_disk_free_bytes", MetricType::kGauge,
                                       "space left on the disk of --state-dir"};
inline constexpr Metric kDiskSizeBytes{"atoll_disk_size_bytes", MetricType::kGauge,
                                       "size of the disk of --state-dir"};
inline constexpr Metric kConnected{"atoll_coordinator_connected", MetricType::kGauge,
                                   "1 while this daemon is connected to the coordinator"};
inline constexpr Metric kEventQueue{"atoll_event_queue_length", MetricType::kGauge,
                                    "events waiting for the daemon's main loop"};
inline constexpr Metric kWorkQueue{
    "atoll_work_queue_length", MetricType::kGauge,
    "work waiting for a thread, by queue: compute (worker); storage, snapshots (parameter server)"};

// ---- coordinator: cluster ----
inline constexpr Metric kEpoch{"atoll_coordinator_epoch", MetricType::kGauge,
                               "number of the coordinator's start"};
inline constexpr Metric kDeniedCalls{"atoll_coordinator_denied_calls_total", MetricType::kCounter,
                                     "connections and calls that were denied, by reason"};
inline constexpr Metric kMembers{"atoll_members", MetricType::kGauge,
                                 "workers and parameter servers by state"};
inline constexpr Metric kJobs{"atoll_jobs", MetricType::kGauge, "jobs by state"};
inline constexpr Metric kDrifts{"atoll_link_drifts", MetricType::kGauge,
                                "devices and links that are not as measured, and pairs of workers "
                                "without a connection"};
inline constexpr Metric kHeartbeatAge{"atoll_member_heartbeat_age_seconds", MetricType::kGauge,
                                      "since the last heartbeat of an attached member"};
inline constexpr Metric kServerParameterBytes{"atoll_server_parameters_bytes", MetricType::kGauge,
                                              "parameters and momentum on a parameter server"};
inline constexpr Metric kServerStagedBytes{"atoll_server_staged_bytes", MetricType::kGauge,
                                           "staged pseudo-gradients on a parameter server"};
inline constexpr Metric kServerLogBytes{"atoll_server_log_bytes", MetricType::kGauge,
                                        "log of a parameter server since its last snapshot"};
inline constexpr Metric kServerReceivedBytes{"atoll_server_received_bytes_total",
                                             MetricType::kCounter, "tensor bytes received"};
inline constexpr Metric kServerSentBytes{"atoll_server_sent_bytes_total", MetricType::kCounter,
                                         "tensor bytes sent"};
inline constexpr Metric kServerMemoryBytes{"atoll_server_memory_limit_bytes", MetricType::kGauge,
                                           "memory that a parameter server may use"};

// ---- coordinator: jobs, while they have not ended ----
inline constexpr Metric kJobVersion{"atoll_job_version", MetricType::kGauge,
                                    "committed outer rounds; -1: none yet"};
inline constexpr Metric kJobTokens{"atoll_job_committed_tokens_total", MetricType::kCounter,
                                   "tokens in the committed model"};
inline constexpr Metric kJobBudget{"atoll_job_budget_tokens", MetricType::kGauge,
                                   "tokens that the job trains on"};
inline constexpr Metric kJobTokenRate{"atoll_job_tokens_per_second", MetricType::kGauge,
                                      "tokens a second of all islands now; 0 while paused"};
inline constexpr Metric kJobLoss{"atoll_job_loss_nats", MetricType::kGauge,
                                 "training loss, nats a token, over all islands"};
inline constexpr Metric kJobValidationLoss{"atoll_job_validation_loss_nats", MetricType::kGauge,
                                           "newest validation loss, nats a token"};
inline constexpr Metric kJobSetLoss{
    "atoll_job_validation_set_loss_nats", MetricType::kGauge,
    "newest validation loss of a named set or a site, nats a token"};
inline constexpr Metric kJobAccuracy{
    "atoll_job_evaluation_accuracy_ratio", MetricType::kGauge,
    "newest accuracy in a task; measure: plain, or normalised by characters"};
inline constexpr Metric kJobAccuracyError{"atoll_job_evaluation_standard_error_ratio",
                                          MetricType::kGauge, "standard error of that accuracy"};
inline constexpr Metric kJobPerplexity{
    "atoll_job_evaluation_perplexity_ratio", MetricType::kGauge,
    "newest perplexity in a task: of an exact answer, or of a token of a text"};
inline constexpr Metric kJobRunning{"atoll_job_running", MetricType::kGauge,
                                    "1: the job runs; 0: it is prepared or paused"};
inline constexpr Metric kJobIslands{"atoll_job_islands", MetricType::kGauge,
                                    "islands that take part now"};
inline constexpr Metric kJobGoodput{"atoll_job_goodput_ratio", MetricType::kGauge,
                                    "committed tokens over tokens that the islands trained on"};
inline constexpr Metric kRoundSeconds{"atoll_round_duration_seconds", MetricType::kHistogram,
                                      "between two decided outer rounds without a pause",
                                      metric_bounds::kRoundSeconds};
inline constexpr Metric kRounds{"atoll_rounds_total", MetricType::kCounter,
                                "decided outer rounds by outcome: committed, void"};
inline constexpr Metric kLastRound{"atoll_round_last_decision_timestamp_seconds",
                                   MetricType::kGauge,
                                   "when the last round was decided, Unix time"};
inline constexpr Metric kRoundAge{"atoll_round_age_seconds", MetricType::kGauge,
                                  "since the last round was decided, or since version 0; without "
                                  "pauses; 0: the job does not run"};
inline constexpr Metric kRoundMean{"atoll_round_mean_seconds", MetricType::kGauge,
                                   "mean duration of the newest 64 rounds, without pauses"};
inline constexpr Metric kStaleness{"atoll_contribution_staleness_versions", MetricType::kHistogram,
                                   "versions that a contribution's base was behind",
                                   metric_bounds::kVersions};
inline constexpr Metric kOuterClip{"atoll_outer_clip_ratio", MetricType::kGauge,
                                   "clipping of the newest averaged pseudo-gradient; 1: none"};
inline constexpr Metric kOuterNorm{"atoll_outer_update_norm", MetricType::kGauge,
                                   "L2 norm of the newest averaged pseudo-gradient"};
inline constexpr Metric kOuterRho{"atoll_outer_rho_ratio", MetricType::kGauge,
                                  "cosine of successive averaged pseudo-gradients"};
inline constexpr Metric kOuterGain{"atoll_outer_gain_ratio", MetricType::kGauge,
                                   "newest outer step along the averaged pseudo-gradient"};
inline constexpr Metric kOuterCosine{"atoll_outer_island_cosine_ratio", MetricType::kGauge,
                                     "mean cosine between islands' newest pseudo-gradients"};

// ---- coordinator: islands of these jobs ----
inline constexpr Metric kIslandLoss{"atoll_island_loss_nats", MetricType::kGauge,
                                    "training loss of an island, nats a token"};
inline constexpr Metric kIslandTokenRate{"atoll_island_tokens_per_second", MetricType::kGauge,
                                         "tokens a second of an island; 0 while paused"};
inline constexpr Metric kIslandStepSeconds{"atoll_island_step_seconds", MetricType::kGauge,
                                           "mean step time by transfers: idle, active"};
inline constexpr Metric kIslandSinceStep{
    "atoll_island_since_step_seconds", MetricType::kGauge,
    "since the step count of an attached island that should train grew"};
inline constexpr Metric kIslandContributions{"atoll_island_contributions_total",
                                             MetricType::kCounter,
                                             "penalty decisions by outcome: accepted, rejected"};
inline constexpr Metric kIslandTokens{"atoll_island_committed_tokens_total", MetricType::kCounter,
                                      "tokens of an island in the committed model"};
inline constexpr Metric kIslandPushedBytes{"atoll_island_pushed_bytes_total", MetricType::kCounter,
                                           "pushed by the island's leader"};
inline constexpr Metric kIslandPulledBytes{"atoll_island_pulled_bytes_total", MetricType::kCounter,
                                           "pulled by the island's leader"};
inline constexpr Metric kEvictions{
    "atoll_evictions_total", MetricType::kCounter,
    "evictions of an island's leader since the coordinator's start, by reason: connection_lost, "
    "restarted, silent, other; one that leaves in order is not evicted"};
inline constexpr Metric kIslandLostSteps{"atoll_island_lost_steps_total", MetricType::kCounter,
                                         "steps by loss: interrupted, replayed"};

// ---- worker ----
inline constexpr Metric kWorkerStepSeconds{"atoll_worker_step_seconds", MetricType::kHistogram,
                                           "inner steps of the island that this worker leads",
                                           metric_bounds::kStepSeconds};
inline constexpr Metric kWorkerSteps{"atoll_worker_steps_total", MetricType::kCounter,
                                     "inner steps of the island that this worker leads"};
inline constexpr Metric kWorkerTokens{"atoll_worker_tokens_total", MetricType::kCounter,
                                      "tokens trained on by the island that this worker leads"};
inline constexpr Metric kWorkerTokenRate{"atoll_worker_tokens_per_second", MetricType::kGauge,
                                         "of the island that this worker leads; 0 while paused"};
inline constexpr Metric kWorkerLoss{"atoll_worker_loss_nats", MetricType::kGauge,
                                    "training loss of the island, nats a token"};
inline constexpr Metric kWorkerRouterBalance{
    "atoll_worker_router_balance", MetricType::kGauge,
    "balance loss of a mixture's routers: experts a token where all have the same load, else more"};
inline constexpr Metric kWorkerRouterZ{"atoll_worker_router_z", MetricType::kGauge,
                                       "z-loss of a mixture's routers"};
inline constexpr Metric kWorkerMixtureBalance{"atoll_worker_mixture_balance", MetricType::kGauge,
                                              "balance loss of one mixture's router"};
inline constexpr Metric kWorkerMixtureZ{"atoll_worker_mixture_z", MetricType::kGauge,
                                        "z-loss of one mixture's router"};
inline constexpr Metric kWorkerExpertTokens{
    "atoll_worker_expert_tokens", MetricType::kGauge,
    "tokens that an expert saw in the steps that were pushed last"};
inline constexpr Metric kWorkerPushedBytes{"atoll_worker_pushed_bytes_total", MetricType::kCounter,
                                           "pushed for the job at work"};
inline constexpr Metric kWorkerPulledBytes{"atoll_worker_pulled_bytes_total", MetricType::kCounter,
                                           "pulled for the job at work"};
inline constexpr Metric kWorkerPeerSentBytes{
    "atoll_worker_peer_sent_bytes_total", MetricType::kCounter,
    "sent to other workers of its islands, by edge: of its peer endpoints, from 0"};
inline constexpr Metric kWorkerDevices{"atoll_worker_devices", MetricType::kGauge,
                                       "devices of this worker"};
inline constexpr Metric kDevicePeakBytes{"atoll_device_memory_peak_bytes", MetricType::kGauge,
                                         "peak memory of a device of the island"};
inline constexpr Metric kDeviceLimitBytes{"atoll_device_memory_limit_bytes", MetricType::kGauge,
                                          "memory that a device of the island may use"};

// ---- parameter server ----
inline constexpr Metric kPsJobVersion{"atoll_paramserver_job_version", MetricType::kGauge,
                                      "version that this server has applied"};
inline constexpr Metric kPsSnapshotVersion{"atoll_paramserver_snapshot_version", MetricType::kGauge,
                                           "version of the newest snapshot"};

}  // namespace atl

#endif  // ATOLL_COMMON_METRICS_NAMES_H_
