#include <troika/base/error.h>
#include <troika/capi/handles.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <variant>

namespace troika {
namespace {

using Held = std::variant<std::shared_ptr<OpenSession>, std::shared_ptr<OpenModel>>;

class Handles {
 public:
  void* add(Held held) {
    const std::lock_guard lock(mutex_);
    next_ += kStep;
    held_.emplace(next_, std::move(held));
    return reinterpret_cast<void*>(next_);  // NOLINT(performance-no-int-to-ptr): never followed
  }

  template <class Kind>
  std::shared_ptr<Kind> find(const void* handle, const std::string& name) {
    if (handle == nullptr) throw UsageError(name + " is NULL");
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(number);
    if (found == held_.end()) {
      const bool was = number % kStep == 0 && number >= kStep && number <= next_;
      throw UsageError(name + (was ? " is freed already" : " is no handle that troika has given"));
    }
    const auto* const held = std::get_if<std::shared_ptr<Kind>>(&found->second);
    if (held == nullptr) {
      const bool is_model = std::holds_alternative<std::shared_ptr<OpenModel>>(found->second);
      throw UsageError(name + (is_model ? " is a model" : " is a session"));
    }
    return *held;
  }

  // The object ends after the lock does.
  void remove(const void* handle) {
    Held last;
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == held_.end()) return;
    last.swap(found->second);
    held_.erase(found);
  }

 private:
  static constexpr std::uintptr_t kStep = 16;
  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, Held> held_;
  std::uintptr_t next_ = 0;
};

// Never destroyed: a program may close its sessions at its very end.
Handles& handles() {
  static Handles* const kHandles = new Handles;
  return *kHandles;
}

}  // namespace

troika_session* handle_for(std::shared_ptr<OpenSession> session) {
  return static_cast<troika_session*>(handles().add(std::move(session)));
}

troika_model* handle_for(std::shared_ptr<OpenModel> model) {
  return static_cast<troika_model*>(handles().add(std::move(model)));
}

std::shared_ptr<OpenSession> session_of(const troika_session* handle) {
  return handles().find<OpenSession>(handle, "session");
}

std::shared_ptr<OpenModel> model_of(const troika_model* handle) {
  return handles().find<OpenModel>(handle, "model");
}

void forget(const troika_session* handle) {
  handles().remove(handle);
}

void forget(const troika_model* handle) {
  handles().remove(handle);
}

}  // namespace troika
