// Queries of `atoll doctor` to NVIDIA's libraries, which are loaded at run time: builds without
// CUDA look, too.

#ifndef ATOLL_CLI_DOCTOR_DOCTOR_GPU_H_
#define ATOLL_CLI_DOCTOR_DOCTOR_GPU_H_

#include "cli/doctor/doctor_checks.h"

namespace atl::cli {

bool HasNvidiaCard();

// The driver, and the devices that it offers to this user.
Finding CheckGpu(bool card);
// NCCL, which sums gradients between a machine's GPUs.
Finding CheckNccl(bool card);

}  // namespace atl::cli

#endif  // ATOLL_CLI_DOCTOR_DOCTOR_GPU_H_
