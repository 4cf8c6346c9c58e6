// Internal: the two sides of the comparison of data in a job with servers. The coordinator says
// whether a worker's summary is its own. The worker finds the first difference, and says it to
// both.
#pragma once

#include <troika/rpc/rpc.h>
#include <troika/server/compared_data.h>
#include <troika/server/messages.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// The worker's side.
class WorkerData {
 public:
  // Calls the coordinator.
  using Ask = std::function<RpcReply(std::string_view method, const std::string& header)>;

  // `data` may be null: nothing is compared.
  WorkerData(std::shared_ptr<ComparedData> data, std::int64_t place, Ask ask)
      : data_(std::move(data)), position_(place), ask_(std::move(ask)) {}

  // Adds to the header of "join" what the coordinator compares.
  void add_to_join(messages::Json& header) const;
  // Throws the error of other data where the coordinator has refused the worker for its files.
  void check_join(const messages::Json& reply);
  // Compares contents, now and then, until both sides know theirs. `header` is that of a call of
  // this worker's. Throws the error of other data.
  void check_contents(const std::string& header);

 private:
  [[noreturn]] void fail(ComparedData::Of of, const messages::Json& reply,
                         const messages::Json& own);

  std::shared_ptr<ComparedData> data_;
  std::int64_t position_;
  Ask ask_;
  bool is_open_ = false;  // contents are to be compared
  Clock::time_point next_ = {};
};

// The coordinator's side. Thread safe.
class CoordinatorData {
 public:
  explicit CoordinatorData(std::shared_ptr<ComparedData> data) : data_(std::move(data)) {}

  // Returns the reply to a worker that is refused for its files; nothing where it may join. `run`
  // is that of the job.
  [[nodiscard]] std::optional<messages::Json> refusal(const messages::Json& request,
                                                      const std::string& run) const;
  // Adds to the reply to a worker that joins. Where it has copies of the files this begins to read
  // the contents, and returns true: they are to be compared.
  bool add_to_reply(messages::Json& reply, const messages::Json& request) const;
  // Answers "contents" and "data".
  [[nodiscard]] messages::Json compare_contents(const messages::Json& request) const;
  [[nodiscard]] RpcMessage excerpt(const messages::Json& request) const;
  [[nodiscard]] std::exception_ptr error(const std::string& message) const {
    return data_->error(message);
  }
  [[nodiscard]] bool is_compared() const { return data_ != nullptr; }

 private:
  std::shared_ptr<ComparedData> data_;
};

}  // namespace troika
