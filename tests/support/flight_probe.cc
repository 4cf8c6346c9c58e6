// Arrow Flight, and with it gRPC, in a module: for the test of what a process can hold at once, and
// for that of what a server of ours answers to others' clients.
#include <arrow/array.h>
#include <arrow/flight/client.h>
#include <arrow/flight/server.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>

#include <memory>
#include <string>

namespace {

class Server final : public arrow::flight::FlightServerBase {
  arrow::Status ListActions(const arrow::flight::ServerCallContext&,
                            std::vector<arrow::flight::ActionType>* actions) override {
    actions->push_back({"probe", "does nothing"});
    return arrow::Status::OK();
  }
};

// A server on loopback, one call to it, and its end.
arrow::Status start_call_and_stop() {
  ARROW_ASSIGN_OR_RAISE(const auto any_port, arrow::flight::Location::ForGrpcTcp("127.0.0.1", 0));
  Server server;
  ARROW_RETURN_NOT_OK(server.Init(arrow::flight::FlightServerOptions(any_port)));
  ARROW_ASSIGN_OR_RAISE(const auto there,
                        arrow::flight::Location::ForGrpcTcp("127.0.0.1", server.port()));
  ARROW_ASSIGN_OR_RAISE(const auto client, arrow::flight::FlightClient::Connect(there));
  ARROW_ASSIGN_OR_RAISE(const auto actions, client->ListActions());
  if (actions.size() != 1) return arrow::Status::Invalid("not one action");
  ARROW_RETURN_NOT_OK(client->Close());
  ARROW_RETURN_NOT_OK(server.Shutdown());
  return server.Wait();
}

// A client that speaks Flight, and nothing of ours.
class Stranger {
 public:
  explicit Stranger(int port) {
    const auto there = arrow::flight::Location::ForGrpcTcp("127.0.0.1", port).ValueOrDie();
    client_ = arrow::flight::FlightClient::Connect(there).ValueOrDie();
    options_.timeout = arrow::flight::TimeoutDuration(20);
  }

  arrow::Status list_flights() { return client_->ListFlights(options_, {}).status(); }
  arrow::Status list_actions() { return client_->ListActions(options_).status(); }
  arrow::Status get() {
    ARROW_ASSIGN_OR_RAISE(const auto reader, client_->DoGet(options_, {"a ticket"}));
    return reader->Next().status();
  }
  arrow::Status put() {
    ARROW_ASSIGN_OR_RAISE(auto put, client_->DoPut(options_, descriptor("a"), schema()));
    return put.writer->Close();
  }
  arrow::Status exchange_of_another_name() {
    return exchange("another/1", [](auto& writer) {
      return writer.WriteMetadata(arrow::Buffer::FromString("hello"));
    });
  }
  arrow::Status exchange_nothing() {
    return exchange("troika-rpc/1", [](auto&) { return arrow::Status::OK(); });
  }
  arrow::Status exchange_rows() {
    return exchange("troika-rpc/1", [](auto& writer) {
      ARROW_RETURN_NOT_OK(writer.Begin(schema()));
      const std::vector<std::uint8_t> bytes(1000, 7);
      const auto column = arrow::ArrayData::Make(
          arrow::uint8(), 1000, {nullptr, std::make_shared<arrow::Buffer>(bytes.data(), 1000)}, 0);
      return writer.WriteRecordBatch(*arrow::RecordBatch::Make(
          schema(), 1000, std::vector<std::shared_ptr<arrow::ArrayData>>{column}));
    });
  }

 private:
  static arrow::flight::FlightDescriptor descriptor(const std::string& name) {
    return arrow::flight::FlightDescriptor::Command(name);
  }
  static std::shared_ptr<arrow::Schema> schema() {
    return arrow::schema({arrow::field("a", arrow::uint8())});
  }
  template <class Send>
  arrow::Status exchange(const std::string& name, const Send& send) {
    ARROW_ASSIGN_OR_RAISE(auto stream, client_->DoExchange(options_, descriptor(name)));
    const arrow::Status sent = send(*stream.writer);
    if (sent.ok()) ARROW_RETURN_NOT_OK(stream.writer->DoneWriting());
    return stream.writer->Close();
  }

  std::unique_ptr<arrow::flight::FlightClient> client_;
  arrow::flight::FlightCallOptions options_;
};

}  // namespace

// Returns why it failed; empty where it has not.
extern "C" __attribute__((visibility("default"))) const char* troika_flight_probe() {
  static std::string reason;
  const arrow::Status status = start_call_and_stop();
  reason = status.ok() ? "" : status.ToString();
  return reason.c_str();
}

// Tries all that a client of others' may try on the server at a port of this host. Returns a line
// for each attempt, with what was answered.
extern "C" __attribute__((visibility("default"))) const char* troika_flight_strangers(int port) {
  static std::string lines;
  Stranger stranger(port);
  lines = "list flights: " + stranger.list_flights().ToString() +
          "\nlist actions: " + stranger.list_actions().ToString() +
          "\nget: " + stranger.get().ToString() + "\nput: " + stranger.put().ToString() +
          "\nanother name: " + stranger.exchange_of_another_name().ToString() +
          "\nnothing: " + stranger.exchange_nothing().ToString() +
          "\nrows: " + stranger.exchange_rows().ToString() + "\n";
  return lines.c_str();
}
