// The one file that sees SentencePiece's headers.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <troika/data/sentencepiece/plugin.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

// Exported, but in no header that is installed (src/common.h).
namespace sentencepiece::logging {
void SetMinLogLevel(int level);  // NOLINT(readability-identifier-naming): its name
}  // namespace sentencepiece::logging

namespace troika::sentencepiece_plugin {
namespace {

bool succeeded(const sentencepiece::util::Status& status, const TakeText& error) {
  if (!status.ok()) error(status.ToString());
  return status.ok();
}

class LoadedModel final : public Model {
 public:
  [[nodiscard]] bool load(std::string_view bytes) {
    return processor_.LoadFromSerializedProto(bytes).ok() && processor_.GetPieceSize() > 0;
  }
  [[nodiscard]] int vocab_size() const override { return processor_.GetPieceSize(); }
  [[nodiscard]] int eos_id() const override { return processor_.eos_id(); }
  [[nodiscard]] int id_of(std::string_view piece) const override {
    const int id = processor_.PieceToId(piece);  // that of the unknown piece where there is none
    return processor_.IdToPiece(id) == piece ? id : -1;
  }
  [[nodiscard]] bool encode(std::string_view text, const TakeIds& ids,
                            const TakeText& error) const override {
    std::vector<int> made;
    if (!succeeded(processor_.Encode(text, &made), error)) return false;
    ids(made);
    return true;
  }
  [[nodiscard]] bool decode(std::span<const int> ids, const TakeText& text,
                            const TakeText& error) const override {
    std::string made;
    const std::vector<int> known(ids.begin(), ids.end());
    if (!succeeded(processor_.Decode(known, &made), error)) return false;
    text(made);
    return true;
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

// Hands our lines to SentencePiece.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::function<const std::string*()>& next_line)
      : next_line_(next_line), line_(next_line()) {}
  [[nodiscard]] bool done() const override { return line_ == nullptr; }
  void Next() override { line_ = next_line_(); }
  [[nodiscard]] const std::string& value() const override { return *line_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::function<const std::string*()>& next_line_;
  const std::string* line_;
};

class SentencePiece final : public SentencePiecePlugin {
 public:
  // SentencePiece's log goes to std::cerr, which is not ours to use. Nor may it be: a program that
  // is not position-independent has the only std::cerr that was constructed, and a library with a
  // scope of its own sees the other.
  SentencePiece() { sentencepiece::logging::SetMinLogLevel(kOnlyFatal); }
  [[nodiscard]] std::unique_ptr<Model> load(std::string_view bytes) const override {
    auto model = std::make_unique<LoadedModel>();
    if (!model->load(bytes)) return nullptr;
    return model;
  }
  [[nodiscard]] bool train(const std::unordered_map<std::string, std::string>& options,
                           const std::function<const std::string*()>& next_line,
                           const TakeText& model, const TakeText& error) const override {
    Lines lines(next_line);
    std::string made;
    using sentencepiece::SentencePieceTrainer;
    if (!succeeded(SentencePieceTrainer::Train(options, &lines, &made), error)) return false;
    model(made);
    return true;
  }

 private:
  static constexpr int kOnlyFatal = 3;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const SentencePiecePlugin*
troika_sentencepiece_plugin() {
  static const SentencePiece plugin;
  return &plugin;
}

}  // namespace troika::sentencepiece_plugin
