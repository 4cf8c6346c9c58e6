#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/server/data_comparison.h>

#include <utility>

namespace troika {

using messages::Json;

namespace {

// A worker that waits for contents asks again after so long, with its next samples.
constexpr Seconds kBetweenQuestions(1);

std::string name_of(ComparedData::Of of) {
  return of == ComparedData::Of::kFiles ? "files" : "contents";
}

// Messages of errors, which may quote anything.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void WorkerData::add_to_join(Json& header) const {
  if (!data_) return;
  header["data"] = data_->summary(ComparedData::Of::kFiles).value_or("");
  header["data_place"] = data_->identity();
}

void WorkerData::check_join(const Json& reply) {
  if (!data_) return;
  if (reply.contains("other")) {
    fail(ComparedData::Of::kFiles, reply, {{"run", messages::value<std::string>(reply, "run")}});
  }
  const auto place = messages::value<std::string>(reply, "data_place");
  is_open_ = !place.empty() && place != data_->identity();
}

void WorkerData::check_contents(const std::string& header) {
  if (!is_open_ || Clock::now() < next_) return;
  next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(kBetweenQuestions);
  const auto own = data_->summary(ComparedData::Of::kContents);
  if (!own) return;
  Json json = messages::parse(header, "contents");
  json["data"] = *own;
  const Json reply = messages::parse(ask_("contents", json.dump()).header, "contents");
  if (reply.contains("other")) fail(ComparedData::Of::kContents, reply, json);
  is_open_ = messages::value<std::string>(reply, "state") == "wait";
}

void WorkerData::fail(ComparedData::Of of, const Json& reply, const Json& own) {
  Json header = own;
  header["data"] = data_->summary(of).value_or("");
  header["of"] = name_of(of);
  const RpcReply excerpt = ask_("data", header.dump());
  const std::string message = data_->difference(
      of, {"the job's " + messages::value<std::string>(reply, "name"),
           messages::value<std::string>(reply, "other"), std::string(text_of(excerpt.body))});
  header["place"] = position_;
  header["reason"] = message;
  // Said to the job before this worker ends: its own error reaches the log of its host alone.
  (void)ask_("refused", dump(header));
  std::rethrow_exception(data_->error(message));
}

std::optional<Json> CoordinatorData::refusal(const Json& request, const std::string& run) const {
  if (!data_) return std::nullopt;
  const std::string own = data_->summary(ComparedData::Of::kFiles).value_or("");
  if (messages::value<std::string>(request, "data") == own) return std::nullopt;
  return Json({{"other", own}, {"name", data_->name()}, {"run", run}});
}

bool CoordinatorData::add_to_reply(Json& reply, const Json& request) const {
  if (!data_) return false;
  const std::string place = data_->identity();
  reply["data_place"] = place;
  if (place.empty() || messages::value<std::string>(request, "data_place") == place) return false;
  (void)data_->summary(ComparedData::Of::kContents);
  return true;
}

Json CoordinatorData::compare_contents(const Json& request) const {
  check(data_ != nullptr, "contents of data that are not compared");
  const auto own = data_->summary(ComparedData::Of::kContents);
  if (!own) return {{"state", "wait"}};
  if (messages::value<std::string>(request, "data") == *own) return {{"state", "same"}};
  return {{"other", *own}, {"name", data_->name()}};
}

RpcMessage CoordinatorData::excerpt(const Json& request) const {
  check(data_ != nullptr, "data that are not compared");
  const auto of = messages::value<std::string>(request, "of") == name_of(ComparedData::Of::kFiles)
                      ? ComparedData::Of::kFiles
                      : ComparedData::Of::kContents;
  auto text = std::make_shared<const std::string>(
      data_->summary(of) ? data_->excerpt(of, messages::value<std::string>(request, "data")) : "");
  return {Json::object().dump(), {std::as_bytes(std::span(*text))}, text};
}

}  // namespace troika
