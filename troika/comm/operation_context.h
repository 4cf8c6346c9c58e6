// An operation under way, as its engine and its errors know it.
#pragma once

#include <troika/base/text.h>
#include <troika/base/time.h>
#include <troika/comm/group.h>
#include <troika/observe/recorder.h>

#include <string>
#include <string_view>

namespace troika {

struct OperationContext {
  std::string_view operation;  // a literal
  std::string_view label;
  Deadline deadline;
  OperationRecord record;
  DeviceEvent after = {};

  OperationContext(std::string_view name, const Call& call)
      : OperationContext(name, call.label, call.deadline, call.record) {
    after = call.after;
  }
  OperationContext(std::string_view name, std::string_view its_label, const Deadline& its_deadline,
                   const OperationRecord& its_record)
      : operation(name), label(its_label), deadline(its_deadline), record(its_record) {}

  // Returns "all_reduce 'loss'". Only errors need it, so it is not made before there is one.
  [[nodiscard]] std::string text() const { return std::string(operation) + " " + quote(label); }
};

// The context of an operation that outlives the call, with a copy of the caller's label.
class OwnedContext {
 public:
  explicit OwnedContext(const OperationContext& context)
      : label_(context.label), context_(context) {}
  [[nodiscard]] OperationContext get() const {
    OperationContext context(context_.operation, label_, context_.deadline, context_.record);
    context.after = context_.after;
    return context;
  }

 private:
  std::string label_;
  OperationContext context_;
};

}  // namespace troika
