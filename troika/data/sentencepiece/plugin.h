// Internal: what troika takes of SentencePiece, which is a plug-in for its symbols' sake: the
// library defines FLAGS_minloglevel, of 32 bytes, as LibTorch's libc10 does, of 4. In one scope
// with LibTorch, the one would write over what lies behind the other: among it is the flag that has
// failed allocations abort rather than throw.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace troika::sentencepiece_plugin {

// Receive results in calls, for the two sides may have different allocators. The plug-in has a
// separate scope, and does not see an operator new of the program.
using TakeIds = std::function<void(std::span<const int>)>;
using TakeText = std::function<void(std::string_view)>;

// A SentencePiece model. A function that returns false has passed the reason to `error`.
class Model {
 public:
  virtual ~Model() = default;
  [[nodiscard]] virtual int vocab_size() const = 0;
  [[nodiscard]] virtual int eos_id() const = 0;  // negative: it has none
  // Returns the id of a piece; negative where there is none.
  [[nodiscard]] virtual int id_of(std::string_view piece) const = 0;
  [[nodiscard]] virtual bool encode(std::string_view text, const TakeIds& ids,
                                    const TakeText& error) const = 0;
  [[nodiscard]] virtual bool decode(std::span<const int> ids, const TakeText& text,
                                    const TakeText& error) const = 0;
};

class SentencePiecePlugin {
 public:
  virtual ~SentencePiecePlugin() = default;
  // Loads a model; returns null if the bytes are no model.
  [[nodiscard]] virtual std::unique_ptr<Model> load(std::string_view bytes) const = 0;
  // Trains a model on the lines and passes its bytes to `model`. `next_line` returns null at the
  // end; each line lasts until the next call.
  [[nodiscard]] virtual bool train(const std::unordered_map<std::string, std::string>& options,
                                   const std::function<const std::string*()>& next_line,
                                   const TakeText& model, const TakeText& error) const = 0;
};

inline constexpr const char* kFile = "libtroika_sentencepiece.so";
using PluginEntry = const SentencePiecePlugin* (*)();
inline constexpr const char* kPluginEntry = "troika_sentencepiece_plugin";

}  // namespace troika::sentencepiece_plugin
