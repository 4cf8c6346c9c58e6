#include <troika/sync/gradients/data_axis.h>

#include <utility>

namespace troika {

DataAxis::DataAxis(Arena& arena, const PartialGroups& partial, Seconds timeout,
                   std::shared_ptr<BucketHook> hook)
    : reducer_(arena, partial, std::move(hook)), gatherer_(arena, timeout) {}

void DataAxis::begin_step(int microbatches, Seconds timeout) {
  gatherer_.begin_step(timeout);
  reducer_.begin_step(microbatches, timeout);
}

void DataAxis::begin_pass(int microbatch, int stage) {
  label_with(", microbatch " + std::to_string(microbatch) + " (stage " + std::to_string(stage) +
             ")");
}

void DataAxis::label_with(const std::string& pass) {
  reducer_.label_with(pass);
  gatherer_.label_with(pass);
}

void DataAxis::finish() {
  label_with({});
  reducer_.finish();
  gatherer_.end_step();
}

void DataAxis::after_update() {
  label_with({});
  gatherer_.after_update();
}

void DataAxis::refresh() {
  label_with({});
  gatherer_.refresh();
}

void DataAxis::unshard(int unit, Direction direction) {
  gatherer_.unshard(unit, direction);
}

void DataAxis::reshard(int unit) {
  gatherer_.reshard(unit);
}

void DataAxis::prepare_gradients(int unit) {
  reducer_.prepare_gradients(unit);
}

void DataAxis::gradients_ready(int unit) {
  reducer_.gradients_ready(unit);
}

}  // namespace troika
