// The functions of troika/troika.h on the test device: arrays of the host go in and come out, and
// the model lives on the device that the recipe names.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/capi/array_model.h>
#include <troika/troika.h>

#include <cmath>
#include <string>
#include <vector>

#include "device/backend/checks.h"
#include "device/backend/test_device.h"
#include "ranks/rank_helper.h"
#include "support/caller_settings.h"
#include "support/script_file.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kRows = 12;

std::string recipe_on(const std::string& device, const std::string& loss = "mean_square") {
  return R"(
[model]
kind = "mlp"
input_dim = 3
hidden_dims = [16, 16]
output_dim = 2
activation = "tanh"
loss = ")" +
         loss + R"("
[train]
steps = 20
precision = "fp64"
device = ")" +
         device + R"("
[optimizer]
kind = "sgd"
lr = 0.1
momentum = 0.9
warmup_steps = 3
)";
}

struct Columns {
  std::vector<double> inputs, targets, classes;
  Columns() {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < 3; ++j) inputs.push_back(std::sin(3 * i + j));
      targets.push_back(inputs[3 * i] * inputs[3 * i + 1]);
      targets.push_back(inputs[3 * i] + inputs[3 * i + 2]);
      classes.push_back(i % 2);
    }
  }
};

// What a C program reads of a model that it trains and saves, and of another that loads it.
struct Readings {
  std::vector<double> losses, outputs, loaded;
};

Readings train_in_c(const std::string& recipe, bool classes, const std::string& file) {
  const Columns columns;
  const auto ok = [](int status) { EXPECT_EQ(status, TROIKA_OK) << troika_last_error(); };
  const double* targets = classes ? columns.classes.data() : columns.targets.data();
  troika_session* session = nullptr;
  ok(troika_open_alone(nullptr, &session));
  troika_model *model = nullptr, *other = nullptr;
  ok(troika_model_create(session, recipe.c_str(), &model));
  Readings readings;
  double loss = 0;
  for (int step = 0; step < 10; ++step) {
    ok(troika_model_step(model, columns.inputs.data(), targets, kRows, TROIKA_DOUBLE, &loss));
    readings.losses.push_back(loss);
  }
  ok(troika_model_loss(model, columns.inputs.data(), targets, kRows, TROIKA_DOUBLE, &loss));
  readings.losses.push_back(loss);
  readings.outputs.resize(2 * kRows);
  ok(troika_model_predict(model, columns.inputs.data(), kRows, TROIKA_DOUBLE,
                          readings.outputs.data()));
  ok(troika_model_save(model, file.c_str()));
  ok(troika_model_create(session, recipe.c_str(), &other));
  ok(troika_model_load(other, file.c_str()));
  readings.loaded.resize(2 * kRows);
  ok(troika_model_predict(other, columns.inputs.data(), kRows, TROIKA_DOUBLE,
                          readings.loaded.data()));
  ok(troika_model_free(other));
  ok(troika_model_free(model));
  ok(troika_close(session));
  return readings;
}

RANK_TEST(DeviceArrays, TrainAsOnTheHost, 1) {
  const ExpectNoDeviceFault no_fault;
  for (const char* loss : {"mean_square", "cross_entropy"}) {
    const bool classes = std::string(loss) == "cross_entropy";
    const std::string folder = rank.folder().string() + "/" + loss;
    const Readings host = train_in_c(recipe_on("cpu", loss), classes, folder + "-host");
    const DeviceCounters before = device_counters();
    const Readings device = train_in_c(recipe_on("hpu", loss), classes, folder + "-device");
    EXPECT_GT((device_counters() - before).kernels, 100);
    EXPECT_THAT(device.losses, testing::Pointwise(testing::DoubleNear(1e-11), host.losses));
    EXPECT_THAT(device.outputs, testing::Pointwise(testing::DoubleNear(1e-11), host.outputs));
    EXPECT_EQ(device.loaded, device.outputs);
  }
}

at::Tensor rows_of(const std::vector<double>& values, std::int64_t width, const Rank& rank) {
  const std::int64_t each = kRows / rank.size();
  return at::tensor(values).view({-1, width}).narrow(0, rank.index() * each, each);
}

RANK_TEST(DeviceArrays, OfRanksTakeTheDevicesInTurn, 2, 3) {
  const ExpectNoDeviceFault no_fault;
  const Columns columns;
  const auto losses_on = [&](const std::string& device) {
    ArrayModel model(Session::on(rank.group()), parse_array_recipe(recipe_on(device), "recipe"));
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      losses.push_back(
          model.step(rows_of(columns.inputs, 3, rank), rows_of(columns.targets, 2, rank)));
    }
    EXPECT_EQ(model.device(), device == "hpu" ? test_device(rank.index()) : at::Device(at::kCPU));
    return losses;
  };
  const std::vector<double> host = losses_on("cpu");
  EXPECT_THAT(losses_on("hpu"), testing::Pointwise(testing::DoubleNear(1e-11), host));
}

// The device leaves out an update that is not finite; the host reads nothing else of it.
RANK_TEST(DeviceArrays, LeaveOutAStepThatIsNotFinite, 1) {
  const ExpectNoDeviceFault no_fault;
  const Columns columns;
  const auto losses_on = [&](const std::string& device) {
    std::string recipe = recipe_on(device);
    recipe.replace(recipe.find("steps"), 0, "on_nonfinite = \"skip\"\n");
    ArrayModel model(Session::on(Group()), parse_array_recipe(recipe, "recipe"));
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      const at::Tensor inputs = rows_of(columns.inputs, 3, rank).clone();
      if (step == 2) inputs[0][0] = std::nan("");
      const DeviceCounters before = device_counters();
      const double loss = model.step(inputs, rows_of(columns.targets, 2, rank));
      EXPECT_EQ((device_counters() - before).host_reads, 0);
      EXPECT_EQ(std::isnan(loss), step == 2);
      if (step != 2) losses.push_back(loss);
    }
    return losses;
  };
  const std::vector<double> host = losses_on("cpu");
  EXPECT_THAT(losses_on("hpu"), testing::Pointwise(testing::DoubleNear(1e-11), host));
}

std::string on_a_device(const std::string& model, const std::string& device) {
  return "[model]\nkind = \"torchscript\"\n" + model +
         "[train]\nsteps = 20\nprecision = \"fp64\"\ndevice = \"" + device +
         "\"\n[optimizer]\nkind = \"sgd\"\nlr = 0.1\nwarmup_steps = 0\n";
}

// Two inputs by name, and running statistics, which ranks average on the device.
RANK_TEST(DeviceArrays, OfScriptsTrainAsOnTheHost, 2) {
  const std::string folder = rank.folder().string();
  if (rank.index() == 0) {
    write_script_of_two_inputs(folder + "/two.pt");
    write_script(folder + "/norm.pt");
  }
  rank.wait_for_all("the scripts are there");
  const ExpectNoDeviceFault no_fault;
  const at::Tensor x = at::arange(18, at::kDouble).add_(18 * rank.index()).sin_();
  const at::Tensor ids = at::arange(12).remainder(5), y = x.narrow(0, 0, 6);
  const at::Tensor classes = at::tensor({0.0, 1.0 + rank.index(), 2.0});
  const auto trained = [&](const std::string& device) {
    ArrayModel two(Session::on(rank.group()),
                   parse_array_recipe(
                       on_a_device("path = \"" + folder +
                                       "/two.pt\"\nloss = \"mean_square\"\ninputs = {x = {shape = "
                                       "[3]}, ids = {shape = [2], dtype = \"int64\", classes = "
                                       "5}}\ntargets = {score = {shape = [1]}}\noutputs = {score = "
                                       "{shape = [1]}, hidden = {shape = [4]}}\n",
                                   device),
                       "recipe"));
    ArrayModel norm(Session::on(rank.group("norm")),
                    parse_array_recipe(on_a_device("path = \"" + folder +
                                                       "/norm.pt\"\ninputs = {x = {shape = [6]}}\n"
                                                       "targets = {y = {classes = 3}}\n",
                                                   device),
                                       "recipe"));
    for (int step = 0; step < 3; ++step) {
      two.step([&] { return ArrayBatch{6, {{"ids", ids}, {"x", x}}, {{"score", y}}}; });
      norm.step(x.view({3, 6}), classes);
    }
    norm.save(folder + "/" + device);
    norm.load(folder + "/" + device);
    return std::pair(two.predict(6, {{"x", x}, {"ids", ids}}).at("hidden"),
                     norm.predict(x.view({3, 6})));
  };
  const auto host = trained("cpu"), device = trained("hpu");
  EXPECT_TRUE(at::allclose(device.first, host.first, 1e-11, 1e-11));
  EXPECT_TRUE(at::allclose(device.second, host.second, 1e-11, 1e-11));
}

// The program computes on device 2, and the model on another.
RANK_TEST(DeviceArrays, LeaveTheCurrentDevice, 1) {
  c10::impl::getDeviceGuardImpl(c10::DeviceType::HPU)->setDevice(test_device(2));
  std::string recipe = kWideRecipe;
  recipe.replace(recipe.find("[train]"), 7, "[train]\ndevice = \"hpu:0\"");
  std::optional<CallerSettings> before;
  const auto begin = [&] { before.emplace(); };
  const auto check = [&](const std::string& call) {
    EXPECT_EQ(CallerSettings().changed_from(*before), "") << "after " << call;
  };
  const auto open = [](troika_session** session) { return troika_open_alone(nullptr, session); };
  (void)call_everything(open, rank.folder(), begin, check, recipe);
  EXPECT_EQ(c10::impl::getDeviceGuardImpl(c10::DeviceType::HPU)->getDevice(), test_device(2));
}

RANK_TEST(DeviceArrays, RefuseADeviceThatIsNotThere, 2) {
  try {
    ArrayModel model(Session::on(rank.group()), parse_array_recipe(recipe_on("hpu:7"), "recipe"));
    ADD_FAILURE() << "it was taken";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "train.device = \"hpu:7\": there are 4 hpu devices, counted from 0");
  }
}

RANK_TEST(DeviceArrays, NameADeviceThatFails, 2) {
  const Columns columns;
  ArrayModel model(Session::on(rank.group()), parse_array_recipe(recipe_on("hpu"), "recipe"));
  std::optional<FailDevice> failure;
  if (rank.index() == 1) failure.emplace(30, 1);
  try {
    for (int step = 0; step < 5; ++step) {
      model.step(rows_of(columns.inputs, 3, rank), rows_of(columns.targets, 2, rank));
    }
    ADD_FAILURE() << "nothing has failed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("hpu:1 has failed"));
    EXPECT_EQ(error.code(), rank.index() == 1 ? ExitCode::kRankDied : ExitCode::kRendezvous);
  }
}

}  // namespace
}  // namespace troika::test
