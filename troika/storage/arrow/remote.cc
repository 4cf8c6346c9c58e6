#include <arrow/filesystem/s3fs.h>
#include <dlfcn.h>
#include <troika/storage/arrow/remote.h>
#include <troika/storage/arrow/retries.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

namespace troika::store_plugin {
namespace {

struct Uri {
  std::string root;   // "s3://bucket"
  std::string path;   // "folder/file", without a leading '/'
  std::string query;  // with its '?'
};

Uri parse(const std::string& text) {
  Uri uri;
  const std::size_t query = std::min(text.find('?'), text.size());
  uri.query = text.substr(query);
  const std::size_t slash = std::min(text.find('/', text.find("://") + 3), query);
  uri.root = text.substr(0, slash);
  if (uri.root.starts_with("s3a://")) uri.root.erase(2, 1);  // as Hadoop calls S3
  uri.path = text.substr(slash, query - slash);
  while (uri.path.starts_with('/')) uri.path.erase(0, 1);
  while (uri.path.ends_with('/')) uri.path.pop_back();
  return uri;
}

// What the file system calls a path below a root: "bucket/file" in object stores.
std::string inner_path(const Uri& uri) {
  const std::string scheme = uri.root.substr(0, uri.root.find("://"));
  const bool has_buckets = scheme == "s3" || scheme == "gs" || scheme == "gcs";
  std::string bucket = has_buckets ? uri.root.substr(scheme.size() + 3) : "";
  bucket.erase(0, bucket.find('@') + 1);  // credentials; npos + 1 is 0
  return uri.path.empty() ? bucket : bucket + "/" + uri.path;
}

// S3 is a library of its own, which lies beside Arrow's and is loaded when it is needed first.
arrow::Status load_s3() {
  static const arrow::Status loaded = [] {
    const auto own = reinterpret_cast<const void*>(&arrow::fs::EnsureFinalized);
    Dl_info info{};
    if (dladdr(own, &info) == 0) return arrow::Status::IOError("Arrow's libraries cannot be found");
    const std::filesystem::path arrow = info.dli_fname;
    std::string name = arrow.filename().string();
    name.replace(0, std::string("libarrow").size(), "libarrow_s3");
    const std::string library = (arrow.parent_path() / name).string();
    return arrow::fs::LoadFileSystemFactories(library.c_str());
  }();
  return loaded;
}

// S3's threads have to end before its static objects do: these are there once a file system has
// been asked for, even in vain, and what is registered after them runs before they go.
void finalize_at_exit() {
  [[maybe_unused]] static const int registered = std::atexit([] { arrow::fs::EnsureFinalized(); });
}

}  // namespace

bool is_uri(std::string_view path) {
  return path.find("://") != std::string_view::npos;
}

const RemoteFiles& RemoteFiles::instance() {
  static const RemoteFiles* const files = new RemoteFiles();  // outlives what ends at exit
  return *files;
}

arrow::Status RemoteFiles::list(const std::string& uri, const TakeFile& take,
                                Missing missing) const {
  const Uri parsed = parse(uri);
  ARROW_ASSIGN_OR_RAISE(const FileSystem system, file_system(parsed.root, parsed.query));
  const std::string path = inner_path(parsed);
  const std::string outer = parsed.root + "/";
  const std::size_t inner_root = inner_path({parsed.root, "", ""}).size() + 1;
  const auto pass = [&](const arrow::fs::FileInfo& file) {
    if (file.IsFile()) take(outer + file.path().substr(inner_root), file.size());
  };
  ARROW_ASSIGN_OR_RAISE(const arrow::fs::FileInfo info, system->GetFileInfo(path));
  Patience::instance().note_answer();
  if (info.IsFile()) {
    pass(info);
    return arrow::Status::OK();
  }
  if (info.type() == arrow::fs::FileType::NotFound) {
    if (missing == Missing::kIsEmpty) {
      const std::string bucket = inner_path({parsed.root, "", ""});
      if (bucket.empty()) return arrow::Status::OK();
      ARROW_ASSIGN_OR_RAISE(const arrow::fs::FileInfo root, system->GetFileInfo(bucket));
      if (root.type() != arrow::fs::FileType::NotFound) return arrow::Status::OK();
    }
    return arrow::Status::IOError("there is no such bucket, folder or file");
  }
  arrow::fs::FileSelector below;
  below.base_dir = path;
  below.recursive = true;
  ARROW_ASSIGN_OR_RAISE(const auto files, system->GetFileInfo(below));
  for (const arrow::fs::FileInfo& file : files) pass(file);
  return arrow::Status::OK();
}

arrow::Status RemoteFiles::remember(const std::string& uri) const {
  const Uri parsed = parse(uri);
  return file_system(parsed.root, parsed.query).status();
}

// A file that was opened before has the identity that it had: data must not change while they are
// used, and no store is asked for what lies here.
arrow::Result<RemoteFiles::Input> RemoteFiles::open(const std::string& uri, Caching keep) const {
  const Blocks* const cache = keep == Caching::kBlocks ? cache_.load() : nullptr;
  if (cache == nullptr) return open_remote(uri);
  const auto again = [uri] { return instance().open_remote(uri); };
  {
    const std::scoped_lock lock(mutex_);
    const auto known = identities_.find(uri);
    if (known != identities_.end()) return open_cached(known->second, *cache, nullptr, again);
  }
  ARROW_ASSIGN_OR_RAISE(Input remote, open_remote(uri));
  ARROW_ASSIGN_OR_RAISE(const auto identity, identity_of(uri, *remote));
  if (!identity) return remote;
  const std::scoped_lock lock(mutex_);
  identities_.emplace(uri, *identity);
  return open_cached(*identity, *cache, std::move(remote), again);
}

arrow::Result<RemoteFiles::Input> RemoteFiles::open_remote(const std::string& uri) const {
  const Uri parsed = parse(uri);
  ARROW_ASSIGN_OR_RAISE(const FileSystem system, file_system(parsed.root, parsed.query));
  arrow::Result<Input> opened = system->OpenInputFile(inner_path(parsed));
  if (opened.ok()) Patience::instance().note_answer();
  return opened;
}

// A stream that ends without Abort() makes the file of what it has been given (arrow#40502).
arrow::Status RemoteFiles::write(const std::string& uri, const NextBytes& next,
                                 Attempts attempts) const {
  const Uri parsed = parse(uri);
  ARROW_ASSIGN_OR_RAISE(const FileSystem system, file_system(parsed.root, parsed.query, attempts));
  const std::string path = inner_path(parsed);
  if (parsed.root.starts_with("file:")) {
    ARROW_RETURN_NOT_OK(system->CreateDir(path.substr(0, path.rfind('/'))));
  }
  ARROW_ASSIGN_OR_RAISE(const auto stream, system->OpenOutputStream(path));
  try {
    for (auto bytes = next(); !bytes.empty(); bytes = next()) {
      const arrow::Status status =
          stream->Write(bytes.data(), static_cast<std::int64_t>(bytes.size()));
      if (!status.ok()) {
        static_cast<void>(stream->Abort());
        return status;
      }
    }
  } catch (...) {
    static_cast<void>(stream->Abort());
    throw;
  }
  return stream->Close();
}

arrow::Status RemoteFiles::remove(const std::string& uri) const {
  const Uri parsed = parse(uri);
  ARROW_ASSIGN_OR_RAISE(const FileSystem system, file_system(parsed.root, parsed.query));
  const std::string path = inner_path(parsed);
  ARROW_ASSIGN_OR_RAISE(const arrow::fs::FileInfo info, system->GetFileInfo(path));
  return info.IsFile() ? system->DeleteFile(path) : arrow::Status::OK();
}

arrow::Result<RemoteFiles::FileSystem> RemoteFiles::file_system(const std::string& root,
                                                                const std::string& query,
                                                                Attempts attempts) const {
  const std::scoped_lock lock(mutex_);
  const std::string used = query.empty() ? latest_query_[root] : query;
  const auto found = known_.find({attempts, root + used});
  if (found != known_.end()) {
    latest_query_[root] = used;
    return found->second;
  }
  arrow::fs::FileSystemFactoryOptions options;
  if (root.starts_with("s3:")) {
    ARROW_RETURN_NOT_OK(load_s3());
    options.emplace_back("retry_strategy",
                         std::shared_ptr<arrow::fs::S3RetryStrategy>(new PatientRetries(attempts)));
  }
  arrow::Result<FileSystem> made = arrow::fs::FileSystemFromUriAndOptions(
      root + (root.ends_with("//") ? "/" : "") + used, options);
  finalize_at_exit();
  if (!made.ok()) return made;
  latest_query_[root] = used;
  return known_[{attempts, root + used}] = *made;
}

}  // namespace troika::store_plugin
