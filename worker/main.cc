// atoll-worker: see README.md.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/descriptor_limit.h"
#include "common/flag_sources.h"
#include "common/log_flags.h"
#include "common/metrics/metrics_server.h"
#include "common/parse_bytes.h"
#include "common/trust/member_access.h"
#include "common/usage.h"
#include "worker/daemon.h"

int main(int argc, char** argv) {
  CLI::App app("atoll-worker trains one island's model on this machine.", "atoll-worker");
  atl::worker::DaemonOptions options;
  std::string memory = "0";
  app.add_option("--coordinator", options.coordinator,
                 "HOST:PORT[,...] of the coordinators; default: 127.0.0.1:7000");
  app.add_option("--name", options.name, "unique among the workers; default: the host's name");
  app.add_option("--state-dir", options.state_dir, "folder of this worker's state")->required();
  app.add_option("--backend", options.backend, "cpu or cuda")->capture_default_str();
  app.add_option(
      "--device", options.device,
      "with --backend cuda: GPUs' indices or beginnings of UUIDs, with commas, or \"all\"");
  app.add_option("--compute", options.compute,
                 "fp32, or bf16 with fp32 parameters; default: bf16 on GPUs that have it");
  app.add_flag("--cuda-graphs", options.cuda_graphs,
               "with --backend cuda: records repeated operations in CUDA graphs; for small models");
  app.add_option("--threads", options.threads, "computing threads; 0: one per core")
      ->capture_default_str();
  app.add_option(
         "--memory-bytes", memory,
         "memory for the model, such as 8GiB; a larger job is refused; 0: the device's, or the "
         "machine's")
      ->capture_default_str();
  app.add_option("--devices", options.devices,
                 "number of devices into which its threads and memory are divided")
      ->capture_default_str();
  atl::worker::AddNetworkFlags(app, &options);
  app.add_option_function<std::string>(
         "--profile", [&options](const std::string&) { options.profile_again = true; },
         "\"again\": discards the stored profile of its devices and measures again")
      ->check(CLI::IsMember({"again"}));
  app.add_option("--emulate-slowdown", options.emulate_slowdown,
                 "for tests: factor on the time of every operation");
  app.add_option("--emulate-step-ms", options.emulate_step_ms,
                 "for tests: shortest time of a step");
  app.add_option("--emulate-block-ms", options.emulate_block_ms,
                 "for benchmarks of islands: time of F, B and W of a block, without computation");
  app.add_option("--curve-key", options.curve_key_path,
                 "file with its secret CURVE key, made by `atoll keygen`");
  atl::worker::AddNoticeFlags(app, &options);
  atl::AddLogFlags(app);
  atl::worker::AddRootFlags(app, &options.roots);
  atl::AddJoinFlag(app, &options.join);
  atl::AddMetricsFlag(app, &options.metrics_listen);
  atl::AddTlsFlags(app, &options.tls);
  atl::AddVersionFlag(app);
  try {
    atl::ParseFlags(app, argc, argv, "/etc/atoll/worker.toml");
  } catch (const CLI::ParseError& error) {
    return atl::ExplainUsage(app, error);
  }
  const auto bytes = atl::ParseBytes(memory);
  const absl::Status status = atl::Annotate(bytes.status(), "--memory-bytes");
  if (!status.ok()) {
    std::fprintf(stderr, "atoll-worker: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  options.memory_bytes = *bytes;
  atl::RaiseDescriptorLimit();
  const absl::StatusOr<int> code = atl::worker::RunDaemon(options, argv);
  if (code.ok()) return *code;
  std::fprintf(stderr, "atoll-worker: %s\n", std::string(code.status().message()).c_str());
  return absl::IsInvalidArgument(code.status()) ? 2 : 1;
}
