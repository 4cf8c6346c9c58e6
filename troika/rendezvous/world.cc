#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/rendezvous/loopback.h>
#include <troika/rendezvous/slurm.h>
#include <troika/rendezvous/world.h>

namespace troika {
namespace {

constexpr std::string_view kHintForAddress =
    "set MASTER_ADDR (and MASTER_PORT) to where rank 0 can be reached, the same on all ranks";

// A rank and a size that fit together, whatever the launcher calls them.
void read_rank(World& world, const Environment& environment, std::string_view rank_name,
               std::string_view size_name) {
  world.rank = environment.needed_number(rank_name, size_name);
  world.size = environment.needed_number(size_name, rank_name);
  if (world.size < 1) {
    throw UsageError("environment variable " + std::string(size_name) + "=0: a job has a rank");
  }
  if (world.rank >= world.size) {
    throw UsageError("environment variable " + std::string(rank_name) + "=" +
                     std::to_string(world.rank) + " is not below " + std::string(size_name) + "=" +
                     std::to_string(world.size));
  }
}

// The position on this host, where the launcher gives both parts of it.
void read_local(World& world, const Environment& environment, std::string_view rank_name,
                std::string_view size_name) {
  const auto rank = environment.number(rank_name), size = environment.number(size_name);
  if (!rank || !size) return;
  if (*rank >= *size || *size > world.size) {
    throw UsageError("environment variable " + std::string(rank_name) + "=" +
                     std::to_string(*rank) + " does not fit " + std::string(size_name) + "=" +
                     std::to_string(*size) + " in a job of " + std::to_string(world.size) +
                     " ranks");
  }
  world.local_rank = *rank;
  world.local_size = *size;
}

void stay_on_one_host(World& world) {
  world.node_rank = 0;
  world.nodes = 1;
  world.store.host = "127.0.0.1";
}

// MASTER_ADDR and MASTER_PORT, each where it is set.
bool read_master(World& world, const Environment& environment) {
  if (const auto port = environment.text("MASTER_PORT")) {
    world.store.port = parse_port(*port, "environment variable MASTER_PORT");
  }
  const auto address = environment.text("MASTER_ADDR");
  if (address) world.store.host = *address;
  return address.has_value();
}

bool is_true(const std::string& text) {
  return text == "True" || text == "true" || text == "1";
}

// Troika's own launcher, torchrun, and Kubernetes' training operators.
World torchrun_world(const Environment& environment) {
  World world = single_process_world(environment);
  const bool own = environment.has("TROIKA_LAUNCHER_PID");
  world.source = own ? "troika" : "torchrun";
  read_rank(world, environment, "RANK", "WORLD_SIZE");
  read_local(world, environment, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  const auto node = environment.number("GROUP_RANK"),
             nodes = environment.number("GROUP_WORLD_SIZE");
  if (node && nodes && *node < *nodes) {
    world.node_rank = *node;
    world.nodes = *nodes;
  }
  if (is_true(environment.text_or("TORCHELASTIC_USE_AGENT_STORE", "False"))) {
    world.store_host = own ? StoreHost::kLauncher : StoreHost::kAgent;
  }
  world.job = elastic_job(environment.text_or("TORCHELASTIC_RUN_ID", "none"),
                          environment.text_or("TORCHELASTIC_RESTART_COUNT", "0"));
  if (!read_master(world, environment) && world.size > 1) {
    throw UsageError("environment variable RANK is set, but MASTER_ADDR is not",
                     std::string(kHintForAddress));
  }
  return world;
}

// Slurm numbers the steps of batch scripts, interactive shells and daemons from the top of 32 bits;
// they are no steps that srun has filled with tasks.
bool is_task_step(const std::string& step) {
  constexpr std::string_view kFirstSpecial = "4294967280";
  if (step.find_first_not_of("0123456789") != std::string::npos) return false;
  return step.size() < kFirstSpecial.size() ||
         (step.size() == kFirstSpecial.size() && step < kFirstSpecial);
}

// mpirun in a Slurm job starts its daemons as a step of their own, and the ranks inherit it.
bool is_slurm_task(const Environment& environment) {
  const auto step = environment.text("SLURM_STEP_ID");
  return step && is_task_step(*step) && environment.has("SLURM_PROCID") &&
         !environment.has("OMPI_COMM_WORLD_RANK") && !environment.has("MPI_LOCALRANKID");
}

// The host of rank 0 by Slurm's list of nodes. Nodes may have names that only Slurm knows; srun's
// own host then stands in, if rank 0 turns out to run on it.
std::string slurm_store_host(const World& world, const Environment& environment) {
  for (const std::string_view variable : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    const auto list = environment.text(variable);
    if (!list) continue;
    std::string host = first_host(*list, variable);
    const auto& outside = environment.host();
    if (outside.resolves(host)) return host;
    std::string launcher = environment.text_or("SLURM_LAUNCH_NODE_IPADDR",
                                               environment.text_or("SLURM_SRUN_COMM_HOST", ""));
    if (!launcher.empty() && (world.rank != 0 || outside.is_this_host(launcher))) return launcher;
    throw UsageError("host '" + host + "', the first of " + std::string(variable) +
                         ", has no address that this host knows",
                     std::string(kHintForAddress));
  }
  throw UsageError("environment variable SLURM_STEP_ID is set, but SLURM_STEP_NODELIST is not",
                   std::string(kHintForAddress));
}

World slurm_world(const Environment& environment) {
  World world = single_process_world(environment);
  world.source = "slurm";
  read_rank(world, environment, "SLURM_PROCID",
            environment.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  world.job = "slurm/" + environment.text_or("SLURM_JOB_ID", "0") + "." +
              environment.text_or("SLURM_STEP_ID", "0");
  world.nodes = environment.number("SLURM_STEP_NUM_NODES").value_or(0);
  world.node_rank = environment.number("SLURM_NODEID").value_or(0);
  world.local_rank = environment.number("SLURM_LOCALID").value_or(-1);
  if (const auto tasks = environment.text("SLURM_STEP_TASKS_PER_NODE")) {
    world.local_size =
        tasks_of_node(*tasks, world.node_rank, "SLURM_STEP_TASKS_PER_NODE").value_or(0);
  }
  world.store.port = port_of_job(world.job);
  const bool named = read_master(world, environment);
  if (world.size == 1 || (!named && world.nodes == 1)) {
    stay_on_one_host(world);
  } else if (!named) {
    world.store.host = slurm_store_host(world, environment);
  }
  return world;
}

// Where the ranks of an MPI job meet, once the rest of `world` is known.
void read_mpi_store(World& world, const Environment& environment, const std::string& launcher) {
  const bool one_host = world.local_size == world.size;
  const auto slurm_job = environment.text("SLURM_JOB_ID");
  world.job = "mpi/" + (slurm_job && !one_host ? "slurm." + *slurm_job : launcher);
  world.store.port = port_of_job(world.job);
  if (read_master(world, environment)) return;
  if (one_host) return stay_on_one_host(world);
  if (slurm_job && environment.has("SLURM_JOB_NODELIST")) {
    world.store.host = slurm_store_host(world, environment);
    return;
  }
  throw UsageError(
      "the " + std::to_string(world.size) +
          " ranks of this MPI job are on several hosts, and MASTER_ADDR is not set",
      std::string(kHintForAddress) + "; or start with --nodes, --node-rank and --rendezvous");
}

World open_mpi_world(const Environment& environment) {
  World world = single_process_world(environment);
  world.source = "mpi";
  read_rank(world, environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  read_local(world, environment, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  read_mpi_store(
      world, environment,
      environment.text_or("PMIX_NAMESPACE", environment.text_or("OMPI_MCA_ess_base_jobid", "0")));
  return world;
}

// MPICH, Intel MPI and MVAPICH: the process manager Hydra. It gives a job no name; on one host its
// proxy, which all ranks share, serves as one, and on several the address of the rendezvous does.
World mpich_world(const Environment& environment) {
  World world = single_process_world(environment);
  world.source = "mpi";
  read_rank(world, environment, "PMI_RANK", "PMI_SIZE");
  read_local(world, environment, "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  if (world.size == 1) world.local_size = 1, world.local_rank = 0;
  const bool one_host = world.local_size == world.size;
  read_mpi_store(world, environment,
                 one_host ? environment.host().launcher_id(environment.number("PMI_FD"))
                          : environment.text_or("MASTER_ADDR", "0"));
  return world;
}

// Returns the world of a launcher, nothing where none is at work.
std::optional<World> launched_world(const Environment& environment) {
  if (environment.has("RANK")) return torchrun_world(environment);
  if (is_slurm_task(environment)) return slurm_world(environment);
  if (environment.has("OMPI_COMM_WORLD_RANK")) return open_mpi_world(environment);
  if (environment.has("PMI_RANK")) return mpich_world(environment);
  return std::nullopt;
}

}  // namespace

World single_process_world(const Environment& environment) {
  World world;
  world.host = environment.host().name;
  world.store.host = "127.0.0.1";
  return world;
}

std::optional<World> world_from_environment(const Environment& environment) {
  if (auto world = launched_world(environment)) {
    // No other host needs to reach a store that the ranks of one host keep for themselves.
    const bool keeps_own =
        world->local_size == world->size && world->store_host == StoreHost::kRankZero;
    if (keeps_own && !names_loopback(world->store.host)) world->store.host = "127.0.0.1";
    return world;
  }
  // Scripts often export the others for all ranks; without a rank they mean nothing here.
  if (environment.has("WORLD_SIZE")) {
    throw UsageError("environment variable WORLD_SIZE is set, but RANK is not",
                     "set both, or unset WORLD_SIZE to let troika start the ranks itself");
  }
  return std::nullopt;
}

std::string elastic_job(std::string_view run_id, std::string_view restarts) {
  return "torchrun/" + std::string(run_id) + "/" + std::string(restarts);
}

std::string key_prefix(std::string_view job) {
  return "troika/" + std::string(job);
}

std::uint16_t port_of_job(std::string_view job) {
  constexpr std::uint64_t kFirst = 20000, kCount = 10000;
  return static_cast<std::uint16_t>(kFirst + content_hash(job) % kCount);
}

}  // namespace troika
