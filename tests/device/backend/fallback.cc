#include "device/backend/fallback.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "device/backend/faults.h"
#include "device/backend/generator.h"
#include "device/backend/host_aliases.h"
#include "device/backend/launch.h"
#include "device/backend/memory.h"
#include "device/backend/timeline.h"

namespace troika::test {
namespace {

using torch::jit::IValue;
using torch::jit::Stack;

std::string name_of(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

void for_each_tensor(const IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      for_each_tensor(element, visit);
    }
  }
}

// Returns the same value with each tensor replaced.
IValue map_tensors(const IValue& value, const std::function<at::Tensor(const at::Tensor&)>& map) {
  if (value.isTensor()) {
    return map(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      mapped.push_back(map(tensor));
    }
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      mapped.push_back(tensor.has_value() ? std::optional(map(*tensor)) : std::nullopt);
    }
    return mapped;
  }
  return value;
}

// The schemas of these say nothing of the running statistics that they update.
bool updates_statistics(const c10::OperatorHandle& op, const c10::Argument& argument,
                        const Stack& arguments) {
  if (op.operator_name().name != "aten::native_batch_norm" ||
      !argument.name().starts_with("running_")) {
    return false;
  }
  const auto training = op.schema().argumentIndexWithName("training");
  return training.has_value() && arguments[static_cast<std::size_t>(*training)].toBool();
}

bool is_written(const c10::Argument& argument) {
  const c10::AliasInfo* const alias = argument.alias_info();
  if (alias == nullptr) {
    return false;
  }
  return alias->isWrite() || std::ranges::any_of(alias->containedTypes(), &c10::AliasInfo::isWrite);
}

bool takes_indices_from_host(const std::string& name) {
  return name.starts_with("aten::index") || name.starts_with("aten::_index_put_impl_");
}

// Returns the device that all tensors of the arguments are on; the one of the argument `device` if
// there are none.
c10::Device common_device(const c10::OperatorHandle& op, const Stack& arguments) {
  std::optional<c10::Device> common;
  bool on_host = false;
  for (const IValue& value : arguments) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.device().is_cpu()) {
        on_host = on_host || tensor.dim() > 0;
        return;
      }
      TORCH_CHECK(!common.has_value() || *common == tensor.device(), name_of(op),
                  " expects all tensors to be on the same device, but found at least two devices, ",
                  *common, " and ", tensor.device());
      common = tensor.device();
    });
  }
  TORCH_CHECK(!common.has_value() || !on_host || takes_indices_from_host(name_of(op)), name_of(op),
              " expects all tensors to be on the same device, but found at least two devices, ",
              *common, " and cpu");
  for (const IValue& value : arguments) {
    if (!common.has_value() && value.isDevice()) {
      common = value.toDevice();
    }
  }
  return common.has_value() && common->has_index() ? *common : test_device(current_device());
}

// Puts arguments that the host can compute with in the place of those given, and tells the checker.
class HostArguments {
 public:
  HostArguments(const c10::OperatorHandle& op, Launch& launch, HostAliases& aliases)
      : op_(op), launch_(launch), aliases_(aliases) {}

  void replace(Stack& arguments, c10::Device device) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const c10::Argument& argument = op_.schema().arguments()[i];
      IValue& value = arguments[i];
      note(value, is_written(argument) || updates_statistics(op_, argument, arguments));
      if (value.isDevice()) {
        value = c10::Device(c10::kCPU);
      } else if (value.isGenerator()) {
        value = host_generator(value.toGenerator());
      } else if (value.isNone() && argument.name() == "generator") {
        value = host_generator(default_generator(device.index()));
      } else {
        value = map_tensors(value, [&](const at::Tensor& tensor) {
          return tensor.defined() && !tensor.device().is_cpu() ? aliases_.of(tensor) : tensor;
        });
      }
    }
  }

 private:
  void note(const IValue& value, bool written) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      written ? launch_.writes(tensor) : launch_.reads(tensor);
    });
  }

  const c10::OperatorHandle& op_;
  Launch& launch_;
  HostAliases& aliases_;
};

// The host needs the values to go on: a number, or how many elements there are.
bool waits_for_values(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  run_on_device(op, stack);
}

}  // namespace

void run_on_device(const c10::OperatorHandle& op, Stack* stack) {
  TORCH_CHECK(
      op.operator_name().name.starts_with("aten::") &&
          op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
      name_of(op),
      " has no kernel for the test device: operators that are not LibTorch's need a composite one");
  Stack arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  const c10::Device device = common_device(op, arguments);
  const c10::DeviceGuard guard(device);
  const c10::Stream stream = current_stream(device.index());
  HostAliases aliases(device);
  {
    Launch launch(stream, name_of(op));
    HostArguments(op, launch, aliases).replace(arguments, device);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments);
    aliases.publish_shapes();
    for (const IValue& value : arguments) {
      stack->push_back(
          map_tensors(value, [&](const at::Tensor& host) { return aliases.result(host); }));
      for_each_tensor(stack->back(), [&](const at::Tensor& tensor) {
        if (aliases.is_new(tensor)) {
          launch.writes(tensor);
        }
      });
    }
  }
  if (waits_for_values(op)) {
    count_event(&DeviceCounters::host_reads);
    wait_for_stream(stream);
  }
}

TORCH_LIBRARY_IMPL(_, HPU, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace troika::test
