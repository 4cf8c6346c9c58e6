#include <troika/cli/doctor_report.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

using testing::HasSubstr;
using testing::Not;

MachineFacts good_machine() {
  MachineFacts machine;
  machine.host = "node1";
  machine.cpu_model = "Some Processor";
  machine.cores = machine.usable_cores = 8;
  machine.memory_bytes = machine.usable_memory_bytes = std::uint64_t{16} << 30;
  machine.avx2 = machine.avx512f = machine.avx512_bf16 = true;
  return machine;
}

Finding find(const std::vector<Finding>& findings, const std::string& name) {
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const Finding& each) { return each.name == name; });
  return found == findings.end() ? Finding{} : *found;
}

DevicePlugin no_driver() {
  return {.type = "cuda", .devices = 0, .libraries = "", .reason = "no driver", .hint = "get one"};
}

std::vector<Finding> advised(const MachineFacts& machine) {
  return examine(machine, 0, no_driver());
}

DoctorReport sample_report() {
  DoctorReport report;
  report.machine = examine(good_machine(), 0, no_driver());
  report.network = {{"lo", {"127.0.0.1"}, true, true}, {"eth0", {"10.0.0.5"}, true, false}};
  EngineFinding gloo{{"gloo", true, true, "TCP"}, {}, {}, ""};
  gloo.latency = AllReduceTiming{4096, Seconds(330e-6), 12.4e6};
  gloo.bandwidth = AllReduceTiming{64 << 20, Seconds(0.05), 1.34e9};
  report.engines = {gloo, {{"shm", false, false, "not here"}, {}, {}, ""}};
  return report;
}

TEST(Doctor, HasNoAdviceForAGoodMachine) {
  for (const Finding& each : advised(good_machine())) {
    EXPECT_EQ(each.advice, "") << each.name;
  }
}

TEST(Doctor, SaysWhatToDo) {
  MachineFacts machine = good_machine();
  machine.usable_cores = 2;
  EXPECT_THAT(find(advised(machine), "cores").advice, HasSubstr("quota"));
  machine.cores = machine.usable_cores = 1;
  EXPECT_THAT(find(advised(machine), "cores").advice, HasSubstr("--ranks 1"));
  machine.avx512_bf16 = false;
  EXPECT_THAT(find(advised(machine), "processor").advice, HasSubstr("fp32"));
  machine.avx2 = false;
  EXPECT_THAT(find(advised(machine), "processor").advice, HasSubstr("AVX2"));
  machine.usable_memory_bytes = std::uint64_t{1} << 30;
  EXPECT_THAT(find(advised(machine), "memory").advice, HasSubstr("small"));
}

TEST(Doctor, SaysWhyGpusAreNotUsed) {
  const auto gpus = [](int count, const DevicePlugin& plugin) {
    return find(examine(good_machine(), count, plugin), "GPUs");
  };
  EXPECT_EQ(gpus(0, no_driver()).found, "none: no driver");
  EXPECT_EQ(gpus(0, no_driver()).advice, "");  // this machine needs none
  EXPECT_EQ(gpus(4, no_driver()).found, "none of 4: no driver");
  EXPECT_EQ(gpus(4, no_driver()).advice, "get one");
  const DevicePlugin loaded{
      .type = "cuda", .devices = 4, .libraries = "CUDA 13.0", .reason = "", .hint = ""};
  EXPECT_EQ(gpus(4, loaded).found, "4, with CUDA 13.0");
}

TEST(Doctor, ListsDevices) {
  DoctorReport report = sample_report();
  EXPECT_THAT(to_text(report), Not(HasSubstr("Devices")));
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["devices"].size(), 0);
  DeviceFacts facts;
  facts.device = "cuda:1";
  facts.name = "Some GPU";
  facts.capability = "9.0";
  facts.total_bytes = std::uint64_t{80} << 30;
  facts.free_bytes = std::uint64_t{79} << 30;
  facts.bandwidth = 4.8e12;
  facts.nearest_cores = "0-15";
  facts.numa_node = 0;
  report.devices = {facts};
  EXPECT_THAT(to_text(report),
              HasSubstr("  cuda:1        Some GPU (compute capability 9.0), 79.0 GiB free of "
                        "80.0 GiB, 4.8 TB/s, near cores 0-15\n"));
  const auto json = nlohmann::json::parse(to_json(report))["devices"][0];
  EXPECT_EQ(json["name"], "Some GPU");
  EXPECT_EQ(json["free_bytes"], facts.free_bytes);
  EXPECT_EQ(json["numa_node"], 0);
}

TEST(Doctor, TellsPeople) {
  const std::string text = to_text(sample_report());
  EXPECT_THAT(text, HasSubstr("Some Processor (AVX2, AVX-512, AVX-512 bf16)"));
  EXPECT_THAT(text, HasSubstr("eth0"));
  EXPECT_THAT(text, HasSubstr("127.0.0.1 (this host only)"));
  EXPECT_THAT(text, HasSubstr("330 us"));
  EXPECT_THAT(text, HasSubstr("1.3 GB/s"));
  EXPECT_THAT(text, Not(HasSubstr("several hosts need")));
  DoctorReport lonely = sample_report();
  lonely.network.pop_back();
  EXPECT_THAT(to_text(lonely), HasSubstr("several hosts need an interface with an address"));
}

TEST(Doctor, TellsMachines) {
  DoctorReport report = sample_report();
  auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["healthy"], true);
  EXPECT_EQ(json["engines"][0]["latency"]["bytes"], 4096);
  EXPECT_EQ(json["engines"][0]["bandwidth"]["bus_bytes_per_second"], 1.34e9);
  EXPECT_FALSE(json["engines"][1].contains("latency"));
  EXPECT_EQ(json["network"][1]["addresses"][0], "10.0.0.5");
  report.engines[0].error = "lost rank 1";
  json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["healthy"], false);
  EXPECT_EQ(json["engines"][0]["error"], "lost rank 1");
  EXPECT_THAT(to_text(report), HasSubstr("-> it failed: lost rank 1"));
}

TEST(Doctor, CountsBusBandwidthAsNcclTestsDo) {
  EXPECT_DOUBLE_EQ(all_reduce_bus_bandwidth(1000, Seconds(2), 2), 500);
  EXPECT_DOUBLE_EQ(all_reduce_bus_bandwidth(1000, Seconds(1), 4), 1500);
}

}  // namespace
}  // namespace troika
