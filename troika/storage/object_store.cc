#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/storage/first_line_into.h>
#include <troika/storage/object_store.h>
#include <troika/storage/outage.h>
#include <troika/storage/store_library.h>
#include <troika/storage/store_plugin.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace troika {

bool is_remote(std::string_view place) {
  return place.find("://") != std::string_view::npos;
}

std::string shown_place(const std::filesystem::path& place) {
  const std::string& text = place.native();
  return shown_path(is_remote(text) ? text.substr(0, text.find('?')) : text);
}

std::string with_s3_scheme(std::string url) {
  if (url.starts_with("s3a://")) url.erase(2, 1);
  return url;
}

std::filesystem::path place_below(const std::filesystem::path& place, const std::string& name) {
  const std::string& url = place.native();
  if (!is_remote(url)) return place / name;
  const std::size_t query = std::min(url.find('?'), url.size());
  std::string below = url.substr(0, query);
  while (below.ends_with('/')) below.pop_back();
  return below.append("/").append(name).append(url, query);
}

bool is_outage(std::string_view reason) {
  static constexpr auto kWords = std::to_array<std::string_view>(
      {"HTTP status 5", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE", "REQUEST_TIMEOUT",
       "NETWORK", "curlCode", "imeout"});
  return std::ranges::any_of(
      kWords, [&](std::string_view word) { return reason.find(word) != std::string_view::npos; });
}

std::string remote_hint(std::string_view reason) {
  const auto says = [&](std::string_view word) {
    return reason.find(word) != std::string_view::npos;
  };
  if (says("ACCESS_DENIED") || says("INVALID_ACCESS_KEY") || says("SIGNATURE") || says("403")) {
    return "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they may read";
  }
  if (says("HTTP status 5") || says("SLOW_DOWN") || says("SERVICE_UNAVAILABLE")) {
    return "the store has failed, or is busy: try again later";
  }
  if (says("NETWORK") || says("curl") || says("imeout")) {
    return "is the store reachable? ?endpoint_override=HOST:PORT&scheme=http names another one";
  }
  return "check the bucket and the path; ?region=NAME and ?endpoint_override=HOST:PORT name where "
         "it is";
}

void throw_unread(const std::string& do_what, std::string_view reason) {
  const std::string message = "cannot " + do_what + ": " + std::string(reason);
  if (is_outage(reason)) throw StorageError(message, remote_hint(reason));
  throw DataError(message, remote_hint(reason));
}

ObjectStore::ObjectStore(const std::string& url) {
  const std::size_t query = std::min(url.find('?'), url.size());
  place_ = with_s3_scheme(url.substr(0, query));
  options_ = url.substr(query);
  while (place_.ends_with('/')) place_.pop_back();
  static_cast<void>(store_library());
}

std::string ObjectStore::url_of(const std::string& name) const {
  return name.empty() ? place_ + options_ : place_ + "/" + name + options_;
}

std::vector<ObjectStore::File> ObjectStore::list(const std::string& below) const {
  std::vector<File> files;
  std::string reason;
  const auto take = [&](std::string_view uri, std::int64_t bytes) {
    if (!uri.starts_with(place_ + "/")) return;
    files.push_back(
        {std::string(uri.substr(place_.size() + 1)), static_cast<std::uint64_t>(bytes)});
  };
  if (!store_library().list(url_of(below), store_plugin::Missing::kIsEmpty, take,
                            first_line_into(reason))) {
    throw_unread("list " + shown_path(place_), reason);
  }
  std::ranges::sort(files, {}, &File::name);
  return files;
}

std::string ObjectStore::read(const std::string& name, std::uint64_t most) const {
  return read_whole(name, most, store_plugin::Caching::kNothing);
}

std::string ObjectStore::read_data(const std::string& name, std::uint64_t most) const {
  return read_whole(name, most, store_plugin::Caching::kBlocks);
}

std::string ObjectStore::read_whole(const std::string& name, std::uint64_t most,
                                    store_plugin::Caching keep) const {
  std::string content, reason;
  const auto take = [&](std::span<const std::byte> bytes) {
    if (content.size() + bytes.size() > most) return false;
    content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return true;
  };
  if (!store_library().read(url_of(name), keep, take, first_line_into(reason))) {
    throw_unread("read " + shown_path(place_ + "/" + name), reason);
  }
  return content;
}

void ObjectStore::read(const std::string& name,
                       const std::function<void(std::span<const std::byte>)>& take) const {
  std::string reason;
  std::exception_ptr failure;
  const auto take_or_stop = [&](std::span<const std::byte> bytes) {
    try {
      take(bytes);
    } catch (...) {
      failure = std::current_exception();
    }
    return failure == nullptr;
  };
  const bool is_read = store_library().read(url_of(name), store_plugin::Caching::kNothing,
                                            take_or_stop, first_line_into(reason));
  if (failure) std::rethrow_exception(failure);
  if (is_read) return;
  throw_unread("read " + shown_path(place_ + "/" + name), reason);
}

void ObjectStore::write(const std::string& name,
                        const std::function<std::span<const std::byte>()>& next) const {
  std::string reason;
  if (store_library().write(url_of(name), next, store_plugin::Attempts::kMany,
                            first_line_into(reason))) {
    return;
  }
  throw StorageError("cannot write " + shown_path(place_ + "/" + name) + ": " + reason,
                     remote_hint(reason));
}

void ObjectStore::write(const std::string& name, std::string_view text) const {
  write(name, [&text] { return std::as_bytes(std::span(std::exchange(text, {}))); });
}

void ObjectStore::write_checked(const std::string& name, std::string_view text,
                                const std::function<void()>& check) const {
  const auto attempt = [&] {
    check();
    std::string reason;
    std::string_view rest = text;
    const auto next = [&rest] { return std::as_bytes(std::span(std::exchange(rest, {}))); };
    const bool is_written = store_library().write(url_of(name), next, store_plugin::Attempts::kOne,
                                                  first_line_into(reason));
    if (!is_written && reason.empty()) reason = "it fails without a reason";
    return is_written ? std::string() : reason;
  };
  const RetryClock clock{
      [] { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); },
      [](double seconds) { std::this_thread::sleep_for(Seconds(seconds)); }};
  const std::string reason = repeat_attempts(store_patience().count(), attempt, is_outage, clock);
  if (reason.empty()) return;
  throw StorageError("cannot write " + shown_path(place_ + "/" + name) + ": " + reason,
                     remote_hint(reason));
}

void ObjectStore::upload(const std::filesystem::path& from, const std::string& name) const {
  const MappedFile file(from);
  constexpr std::size_t kPiece = std::size_t{8} << 20;
  std::size_t begin = 0;
  write(name, [&] {
    const std::size_t size = std::min(kPiece, file.bytes().size() - begin);
    const auto piece = file.bytes().subspan(begin, size);
    begin += size;
    return piece;
  });
}

void ObjectStore::download(const std::string& name, const std::filesystem::path& to) const {
  AtomicFile file(to);
  read(name, [&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

void ObjectStore::remove(const std::string& name) const {
  std::string reason;
  if (store_library().remove(url_of(name), first_line_into(reason))) return;
  throw StorageError("cannot remove " + shown_path(place_ + "/" + name) + ": " + reason,
                     remote_hint(reason));
}

}  // namespace troika
