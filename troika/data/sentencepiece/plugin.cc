// The one file that sees SentencePiece's headers.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <troika/data/sentencepiece/plugin.h>

namespace troika::sentencepiece_plugin {
namespace {

class LoadedModel final : public Model {
 public:
  [[nodiscard]] bool load(std::string_view bytes) {
    return processor_.LoadFromSerializedProto(bytes).ok() && processor_.GetPieceSize() > 0;
  }
  [[nodiscard]] int vocab_size() const override { return processor_.GetPieceSize(); }
  [[nodiscard]] int eos_id() const override { return processor_.eos_id(); }
  std::string encode(std::string_view text, std::vector<int>& ids) const override {
    const auto status = processor_.Encode(text, &ids);
    return status.ok() ? "" : status.ToString();
  }
  std::string decode(const std::vector<int>& ids, std::string& text) const override {
    const auto status = processor_.Decode(ids, &text);
    return status.ok() ? "" : status.ToString();
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

// Hands our lines to SentencePiece.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::function<std::optional<std::string>()>& next_line)
      : next_line_(next_line), line_(next_line()) {}
  [[nodiscard]] bool done() const override { return !line_; }
  void Next() override { line_ = next_line_(); }
  [[nodiscard]] const std::string& value() const override { return *line_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::function<std::optional<std::string>()>& next_line_;
  std::optional<std::string> line_;
};

class SentencePiece final : public Plugin {
 public:
  [[nodiscard]] std::unique_ptr<Model> load(std::string_view bytes) const override {
    auto model = std::make_unique<LoadedModel>();
    if (!model->load(bytes)) return nullptr;
    return model;
  }
  std::string train(const std::unordered_map<std::string, std::string>& options,
                    const std::function<std::optional<std::string>()>& next_line,
                    std::string& model) const override {
    Lines lines(next_line);
    const auto status = sentencepiece::SentencePieceTrainer::Train(options, &lines, &model);
    return status.ok() ? "" : status.ToString();
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const Plugin* troika_sentencepiece_plugin() {
  static const SentencePiece plugin;
  return &plugin;
}

}  // namespace troika::sentencepiece_plugin
