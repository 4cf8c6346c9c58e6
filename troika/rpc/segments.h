// Internal: the segments of a client and those of a server.
#pragma once

#include <troika/base/time.h>
#include <troika/rpc/segment.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace troika::detail {

// Holds the segments of a client, one for each call under way. Thread safe.
class ClientSegments {
 public:
  // Asks the server to connect to a segment. Returns whether it has.
  using Attach = std::function<bool(const std::string& name)>;

  // Returns a segment that no other call has, made and attached if none is free. Returns null if
  // the server has not found one before, or there can be none here. Throws what `attach` throws.
  [[nodiscard]] std::unique_ptr<OwnSegment> take(const Attach& attach);
  // Takes a segment back that neither side uses any more.
  void give_back(std::unique_ptr<OwnSegment> segment);
  // Drops them all: the next server may be another.
  void forget();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<OwnSegment>> free_;
  bool useless_ = false;
};

// Holds the segments that clients have attached to a server. Thread safe.
class ServerSegments {
 public:
  // Connects to a segment of a client. Returns false if it is not here.
  [[nodiscard]] bool attach(std::string_view name);
  // Returns a segment whose memory has arrived, or null. It is there for as long as it is held.
  [[nodiscard]] std::shared_ptr<PeerSegment> find(std::string_view name);

 private:
  void drop_orphans();

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<PeerSegment>, std::less<>> known_;
  Clock::time_point looked_ = Clock::now();  // for orphans
};

}  // namespace troika::detail
