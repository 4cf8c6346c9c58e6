// What data of stored documents has in common, text, conversations and token shards: its keys, its
// checks, and the data set that packs documents into samples.
#pragma once

#include <troika/data/chat/chat_template.h>
#include <troika/data/document_source.h>
#include <troika/data/find_files.h>
#include <troika/data/host_work.h>
#include <troika/data/kind.h>
#include <troika/data/packing.h>
#include <troika/data/tokenizer.h>

#include <memory>
#include <string>
#include <vector>

namespace troika {

struct DocumentOptions {
  std::vector<std::string> paths;
  std::vector<double> weights;
  std::string column = "none";                         // of kind = "text" and "chat"
  std::string prompt_column = "none";                  // of kind = "text"
  ChatTemplate chat_template = ChatTemplate::kChatml;  // of kind = "chat", as messages
  std::string messages = "messages";
  std::string tokenizer = "bytes";
  Pack pack = Pack::kConcatenate;
  double held_out_fraction = 0.01;

  bool operator==(const DocumentOptions&) const = default;
};

class DocumentKind : public Declared<DataKind, DocumentOptions> {
 public:
  // Has the keys of all documents, and `own`.
  explicit DocumentKind(std::string_view name, std::vector<Key> own = {},
                        DocumentOptions defaults = {});

  void check(const Options& options, const Origins& origins) const override;
  void check_model(const Options& options, const SampleSpec& sample, std::string_view model,
                   const Origins& origins) const override;
  void check_ready(const Options& options, const Origins& origins) const override;
  [[nodiscard]] std::vector<std::string> warnings(const Options& options,
                                                  const Origins& origins) const override;
  [[nodiscard]] std::int64_t max_held_out_samples(const Options& options) const override;
  [[nodiscard]] bool gives(const Options& options, const TensorSpec& optional) const override;
  [[nodiscard]] std::optional<std::string> tokenizer(const Options& options) const override;
  [[nodiscard]] Options on_files(const Options& options, const std::vector<std::string>& files,
                                 std::span<const std::string> asked) const override;
  [[nodiscard]] std::unique_ptr<Dataset> open(const Options& options, const SampleSpec& sample,
                                              std::uint64_t seed) const override;
  [[nodiscard]] std::unique_ptr<Dataset> open_on_host(const Options& options,
                                                      const SampleSpec& sample, std::uint64_t seed,
                                                      HostWork& host) const override;

 protected:
  // Finds the files of each path.
  [[nodiscard]] virtual FileSearch find(const DocumentOptions& options,
                                        const GoesOn& goes_on) const;
  // Opens the documents of one source. Collective among the ranks of `host`. Throws DataError.
  [[nodiscard]] virtual std::shared_ptr<const DocumentSource> open_documents(
      const DocumentOptions& options, std::vector<FoundFile> files, const Tokenizer& tokenizer,
      HostWork& host) const = 0;

 private:
  [[nodiscard]] std::vector<std::shared_ptr<const DocumentSource>> open_sources(
      const DocumentOptions& options, const std::vector<std::vector<FoundFile>>& all,
      HostWork& host) const;
};

}  // namespace troika
