// Plans by Sailor's cost function, for clusters of its evaluation.

#ifndef ATOLL_BENCH_PLANNER_JUDGE_H_
#define ATOLL_BENCH_PLANNER_JUDGE_H_

namespace atl::bench {

// OPT-350M with a batch of 1,024 on nodes of four A100 of 40 GB and of four V100 of 16 GB: our
// plan's step by that function over that of the best plan known of each cluster.
void PrintJudged();

}  // namespace atl::bench

#endif  // ATOLL_BENCH_PLANNER_JUDGE_H_
