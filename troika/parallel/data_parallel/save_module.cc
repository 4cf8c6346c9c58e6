// Saves a module to a file, from rank 0 of its replicas.
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/replica_agreement.h>

#include <torch/torch.h>

#include <optional>
#include <span>

namespace troika {
namespace {

void save(const std::shared_ptr<torch::nn::Module>& module, const std::filesystem::path& path) {
  AtomicFile file(path);
  torch::serialize::OutputArchive archive;
  module->save(archive);
  archive.save_to([&file](const void* data, std::size_t bytes) {
    file.write(std::span(static_cast<const std::byte*>(data), bytes));
    return bytes;
  });
  file.commit();
}

}  // namespace

void save_from_rank_0(const Replica& replica, const std::filesystem::path& path) {
  const Session& session = replica.session();
  std::string failure, hint;
  if (session.rank() == 0) {
    try {
      save(replica.base_module(), path);
    } catch (const Error& error) {
      failure = error.what();
      hint = error.hint();
    } catch (const std::exception& error) {
      failure = "cannot save the module in " + shown_path(path) + ": " + error.what();
    }
  }
  const std::string told = session.gather(failure, "save from rank 0").front();
  if (!told.empty()) throw StorageError(told, session.gather(hint, "hint").front());
}

}  // namespace troika
