// The functions of troika/troika.h on models. As in capi.cc, nothing here decides anything.
#include <ATen/ATen.h>
#include <troika/base/text.h>
#include <troika/capi/c_calls.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

namespace troika {
namespace {

static_assert(TROIKA_LOSSES == ArrayModel::kLossHistory);

constexpr const char* kByName =
    "give them by name: troika_model_step_arrays() and its like in C, troika_array in Fortran";

at::ScalarType floating_type(int type) {
  const at::ScalarType scalar = scalar_type(type);
  if (type != TROIKA_FLOAT && type != TROIKA_DOUBLE) {
    throw UsageError("models take TROIKA_FLOAT or TROIKA_DOUBLE", kByName);
  }
  return scalar;
}

// What is wrong with an argument on one rank is told on all, from inside ArrayModel.
int create(troika_session* session, const std::function<Recipe()>& read, troika_model** result,
           const std::string& file) {
  if (result != nullptr) *result = nullptr;
  return guarded([&](CallerState& caller) {
    const std::shared_ptr<OpenSession> on = session_of(session);
    caller.use_threads(on->threads);
    const auto checked = [&] {
      (void)need(result, "model");
      return read();
    };
    together(*on, [&] {
      const ModelTitle title{++on->models_made, file};
      *result =
          handle_for(std::make_shared<OpenModel>(on, ArrayModel(on->session, checked, title)));
    });
  });
}

// A recipe's file, as errors call its model beside its number: "(rod.toml)".
std::string file_of(const char* path) {
  if (path == nullptr) return "";
  return "(" + std::filesystem::path(path).filename().string() + ")";
}

// An array without a name, for a model that has one of its kind.
NamedTensor only_array(std::span<const TensorSpec> specs, std::string_view role, const void* values,
                       std::int64_t samples, int type) {
  const at::ScalarType scalar = floating_type(type);
  check_samples(samples);
  const TensorSpec& spec = only_spec(specs, role, kByName);
  return {spec.name, view_of(values, {samples, values_of(spec)}, scalar, std::string(role) + "s")};
}

ArrayBatch batch_of(const ArrayModel& model, const void* inputs, const void* targets,
                    std::int64_t samples, int type) {
  return {samples,
          {only_array(model.inputs(), "input", inputs, samples, type)},
          {only_array(model.targets(), "target", targets, samples, type)}};
}

// The list that is called `list`: "inputs".
std::span<const troika_array> list_of(const troika_array* arrays, int count,
                                      const std::string& list) {
  if (count < 0) throw UsageError("a negative number of " + list + ": " + std::to_string(count));
  if (count == 0) return {};
  return {&need(arrays, list), static_cast<std::size_t>(count)};
}

NamedArrays arrays_of(const troika_array* arrays, int count, const std::string& list) {
  NamedArrays named;
  for (const troika_array& each : list_of(arrays, count, list)) {
    const std::string place = list + "[" + std::to_string(named.size()) + "]";
    const std::string name = &need(each.name, "the name of " + place);
    const std::string title = place + ", " + quote(name, 200);
    try {
      named.push_back({name, view_of(each.data, {each.count}, scalar_type(each.type), title)});
    } catch (const UsageError& error) {
      const bool names_it = std::string_view(error.what()).starts_with(title);
      throw UsageError(names_it ? error.what() : title + ": " + error.what(), error.hint());
    }
  }
  return named;
}

// Where a tensor is to be written, and which of `specs` that is.
struct Destination {
  std::size_t tensor;
  at::Tensor values;
};

// `role` is what errors call the arrays: "output".
std::vector<Destination> destinations_of(std::span<const TensorSpec> specs, const std::string& role,
                                         const troika_array* arrays, int count,
                                         std::int64_t samples) {
  std::vector<Destination> destinations;
  for (const NamedTensor& each : arrays_of(arrays, count, role + "s")) {
    const TensorSpec& spec = spec_named(specs, each.name, role);
    const std::string title = role + " " + quote(each.name, 200);
    check_count(spec, title, samples, each.tensor.numel());
    const auto tensor = static_cast<std::size_t>(&spec - specs.data());
    if (std::ranges::count(destinations, tensor, &Destination::tensor) > 0) {
      throw UsageError(title + " is given twice");
    }
    const bool floating = at::isFloatingType(spec.dtype);
    if (floating ? !each.tensor.is_floating_point() : each.tensor.scalar_type() != at::kLong) {
      throw UsageError(title + " is for " +
                       (floating ? "TROIKA_FLOAT or TROIKA_DOUBLE" : "TROIKA_INT64"));
    }
    destinations.push_back({tensor, each.tensor});
  }
  return destinations;
}

std::filesystem::path path_of(const char* path) {
  if (need(path, "path") == '\0') throw UsageError("path is empty");
  return path;
}

std::span<const TensorSpec> tensors_of(const ArrayModel& model, int role) {
  switch (role) {
    case TROIKA_INPUT:
      return model.inputs();
    case TROIKA_TARGET:
      return model.targets();
    case TROIKA_OUTPUT:
      return model.outputs();
    default:
      throw UsageError("role " + std::to_string(role) +
                       " is none of TROIKA_INPUT, TROIKA_TARGET, TROIKA_OUTPUT");
  }
}

troika_tensor described(const TensorSpec& spec) {
  troika_tensor tensor = {};
  tensor.name = spec.name.c_str();
  tensor.type = at::isFloatingType(spec.dtype) ? TROIKA_DOUBLE : TROIKA_INT64;
  tensor.dims = static_cast<int>(spec.shape.size());
  tensor.shape = spec.shape.data();
  tensor.values = values_of(spec);
  tensor.classes = spec.range;
  tensor.optional = spec.optional ? 1 : 0;
  return tensor;
}

}  // namespace
}  // namespace troika

using namespace troika;  // NOLINT(google-build-using-namespace): what follows are C functions

int troika_model_create(troika_session* session, const char* recipe, troika_model** model) {
  return create(
      session, [&] { return parse_array_recipe(&need(recipe, "recipe"), "recipe"); }, model, "");
}

int troika_model_create_from_file(troika_session* session, const char* path, troika_model** model) {
  return create(
      session, [&] { return load_array_recipe(&need(path, "path")); }, model, file_of(path));
}

int troika_model_set_name(troika_model* model, const char* name) {
  return guarded_on(model, [&](ArrayModel& own) { own.set_name(name == nullptr ? "" : name); });
}

int troika_model_free(troika_model* model) {
  return guarded([&](CallerState&) {
    if (model == nullptr) return;
    (void)model_of(model);
    forget(model);
  });
}

int troika_model_step(troika_model* model, const void* inputs, const void* targets, int64_t samples,
                      int type, double* loss) {
  return guarded_together(model, [&](ArrayModel& own) {
    const double mean = own.step([&] { return batch_of(own, inputs, targets, samples, type); });
    if (loss != nullptr) *loss = mean;
  });
}

int troika_model_step_arrays(troika_model* model, const troika_array* inputs, int input_count,
                             const troika_array* targets, int target_count, int64_t samples,
                             double* loss) {
  return guarded_together(model, [&](ArrayModel& own) {
    const double mean = own.step([&] {
      return ArrayBatch{samples, arrays_of(inputs, input_count, "inputs"),
                        arrays_of(targets, target_count, "targets")};
    });
    if (loss != nullptr) *loss = mean;
  });
}

int troika_model_loss(troika_model* model, const void* inputs, const void* targets, int64_t samples,
                      int type, double* loss) {
  return guarded_together(model, [&](ArrayModel& own) {
    const double mean = own.loss([&] {
      (void)need(loss, "loss");
      return batch_of(own, inputs, targets, samples, type);
    });
    *loss = mean;
  });
}

int troika_model_loss_arrays(troika_model* model, const troika_array* inputs, int input_count,
                             const troika_array* targets, int target_count, int64_t samples,
                             double* loss) {
  return guarded_together(model, [&](ArrayModel& own) {
    const double mean = own.loss([&] {
      (void)need(loss, "loss");
      return ArrayBatch{samples, arrays_of(inputs, input_count, "inputs"),
                        arrays_of(targets, target_count, "targets")};
    });
    *loss = mean;
  });
}

int troika_model_predict(troika_model* model, const void* inputs, int64_t samples, int type,
                         void* outputs) {
  return guarded_on(model, [&](const ArrayModel& own) {
    const TensorMap found =
        own.predict(samples, {only_array(own.inputs(), "input", inputs, samples, type)});
    view_of(outputs, found[0].sizes(), floating_type(type), "outputs").copy_(found[0]);
  });
}

int troika_model_predict_arrays(troika_model* model, const troika_array* inputs, int input_count,
                                int64_t samples, const troika_array* outputs, int output_count) {
  return guarded_on(model, [&](const ArrayModel& own) {
    const auto destinations =
        destinations_of(own.outputs(), "output", outputs, output_count, samples);
    const TensorMap found = own.predict(samples, arrays_of(inputs, input_count, "inputs"));
    for (const Destination& each : destinations) {
      each.values.copy_(found[each.tensor].reshape(-1));
    }
  });
}

int troika_model_input_gradients(troika_model* model, const troika_array* inputs, int input_count,
                                 int64_t samples, const char* output, int64_t component,
                                 const troika_array* gradients, int gradient_count) {
  return guarded_on(model, [&](const ArrayModel& own) {
    const auto destinations =
        destinations_of(own.inputs(), "gradient", gradients, gradient_count, samples);
    std::vector<std::string> names;
    for (const Destination& each : destinations) names.push_back(own.inputs()[each.tensor].name);
    ArrayModel::Differentiated of;
    if (output != nullptr) of.output = output;
    if (component >= 0) of.component = component;
    const TensorMap found =
        own.input_gradients(samples, arrays_of(inputs, input_count, "inputs"), of, names);
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      destinations[i].values.copy_(found[i].reshape(-1));
    }
  });
}

int troika_model_tensor_count(const troika_model* model, int role, int* count) {
  return guarded_on(model, [&](const ArrayModel& own) {
    const auto tensors = tensors_of(own, role);
    need(count, "count") = static_cast<int>(tensors.size());
  });
}

int troika_model_tensor(const troika_model* model, int role, int index, troika_tensor* tensor) {
  return guarded_on(model, [&](const ArrayModel& own) {
    const auto tensors = tensors_of(own, role);
    if (index < 0 || index >= std::ssize(tensors)) {
      throw UsageError("index " + std::to_string(index) + " is none of " +
                       plural(std::ssize(tensors), "tensor"));
    }
    need(tensor, "tensor") = described(tensors[static_cast<std::size_t>(index)]);
  });
}

int troika_model_steps(const troika_model* model, int64_t* steps) {
  return guarded_on(model, [&](const ArrayModel& own) { need(steps, "steps") = own.steps(); });
}

int troika_model_learning_rate(const troika_model* model, double* rate) {
  return guarded_on(model,
                    [&](const ArrayModel& own) { need(rate, "rate") = own.learning_rate(); });
}

int troika_model_losses(const troika_model* model, int64_t limit, double* losses, int64_t* count) {
  return guarded_on(model, [&](const ArrayModel& own) {
    const auto& kept = own.losses();
    if (limit < 0) throw UsageError("a negative limit: " + std::to_string(limit));
    const std::int64_t given = std::min<std::int64_t>(limit, std::ssize(kept));
    if (given > 0) std::copy(kept.end() - given, kept.end(), &need(losses, "losses"));
    need(count, "count") = given;
  });
}

int troika_model_save(troika_model* model, const char* path) {
  return guarded_together(model,
                          [&](const ArrayModel& own) { own.save([&] { return path_of(path); }); });
}

int troika_model_load(troika_model* model, const char* path) {
  return guarded_together(model, [&](ArrayModel& own) { own.load([&] { return path_of(path); }); });
}

int troika_model_save_state(troika_model* model, const char* path) {
  return guarded_together(
      model, [&](const ArrayModel& own) { own.save_state([&] { return path_of(path); }); });
}

int troika_model_load_state(troika_model* model, const char* path) {
  return guarded_together(model,
                          [&](ArrayModel& own) { own.load_state([&] { return path_of(path); }); });
}
