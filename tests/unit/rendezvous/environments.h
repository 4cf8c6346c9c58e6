// Variables as real launchers have set them (Open MPI 4.1.4, MPICH 4.0.2, Slurm 22.05.8, torchrun
// of PyTorch 2.11), for tests that read them back.
#pragma once

#include <troika/rendezvous/environment.h>

#include <string>
#include <utility>

namespace troika::testing {

// A host called "a" that knows the names given.
inline Environment environment_of(Environment::Variables variables,
                                  std::string known_hosts = "n1 n2 node1 10.0.0.1",
                                  std::string own_addresses = "127.0.0.1") {
  Environment::Host host;
  host.name = "a";
  host.resolves = [known_hosts](const std::string& name) {
    return (" " + known_hosts + " ").find(" " + name + " ") != std::string::npos;
  };
  host.is_this_host = [own_addresses](const std::string& name) {
    return (" " + own_addresses + " ").find(" " + name + " ") != std::string::npos;
  };
  host.launcher_id = [](std::optional<int> socket) {
    return socket ? "socket-" + std::to_string(*socket) : std::string("parent");
  };
  return Environment(std::move(variables), std::move(host));
}

// torchrun --nnodes 2 --nproc-per-node 2, the second rank of the second node.
inline Environment::Variables torchrun() {
  return {{"LOCAL_RANK", "1"},
          {"RANK", "3"},
          {"GROUP_RANK", "1"},
          {"ROLE_RANK", "3"},
          {"ROLE_NAME", "default"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"WORLD_SIZE", "4"},
          {"GROUP_WORLD_SIZE", "2"},
          {"ROLE_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "29400"},
          {"TORCHELASTIC_RESTART_COUNT", "2"},
          {"TORCHELASTIC_MAX_RESTARTS", "3"},
          {"TORCHELASTIC_RUN_ID", "job-7"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"OMP_NUM_THREADS", "1"}};
}

// The training operator of Kubernetes: one pod, one rank.
inline Environment::Variables kubernetes() {
  return {{"RANK", "1"},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "job-master-0"},
          {"MASTER_PORT", "23456"},
          {"PYTHONUNBUFFERED", "1"},
          {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
}

// srun -N 2 -n 3, the third rank.
inline Environment::Variables slurm_step() {
  return {{"SLURM_JOB_ID", "17"},
          {"SLURM_JOB_NODELIST", "n[1-3]"},
          {"SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NNODES", "2"},
          {"SLURM_NODEID", "1"},
          {"SLURM_NTASKS", "3"},
          {"SLURM_PROCID", "2"},
          {"SLURM_SRUN_COMM_HOST", "127.0.0.1"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_NUM_TASKS", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
          {"PMIX_RANK", "2"},
          {"PMIX_NAMESPACE", "slurm.pmix.17.0"}};
}

// A batch script, not started by srun.
inline Environment::Variables slurm_batch() {
  return {{"SLURM_JOB_ID", "17"},
          {"SLURM_JOB_NODELIST", "n[1-3]"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "0"},
          {"SLURM_NTASKS", "3"},
          {"SLURM_PROCID", "0"},
          {"SLURM_TASKS_PER_NODE", "1(x3)"}};
}

// mpirun -n 2 on one host.
inline Environment::Variables open_mpi() {
  return {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},       {"OMPI_MCA_ess_base_jobid", "1308819457"},
          {"OMPI_MCA_orte_num_nodes", "1"},    {"PMIX_HOSTNAME", "a"},
          {"PMIX_NAMESPACE", "1308819457"},    {"PMIX_RANK", "1"}};
}

// mpirun.mpich -n 2 on one host.
inline Environment::Variables mpich() {
  return {{"MPI_LOCALNRANKS", "2"},
          {"MPI_LOCALRANKID", "0"},
          {"PMI_FD", "6"},
          {"PMI_RANK", "0"},
          {"PMI_SIZE", "2"}};
}

inline Environment::Variables with(Environment::Variables variables,
                                   const Environment::Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

}  // namespace troika::testing
