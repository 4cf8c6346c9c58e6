// Internal: what troika takes of SentencePiece, which is a plug-in for its symbols' sake: the
// library defines FLAGS_minloglevel, of 32 bytes, as LibTorch's libc10 does, of 4. In one scope
// with LibTorch, the one would write over what lies behind the other: among it is the flag that has
// failed allocations abort rather than throw.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troika::sentencepiece_plugin {

// Functions that return a text return what is wrong, or nothing.
class Model {
 public:
  virtual ~Model() = default;
  [[nodiscard]] virtual int vocab_size() const = 0;
  [[nodiscard]] virtual int eos_id() const = 0;  // negative: it has none
  virtual std::string encode(std::string_view text, std::vector<int>& ids) const = 0;
  virtual std::string decode(const std::vector<int>& ids, std::string& text) const = 0;
};

class Plugin {
 public:
  virtual ~Plugin() = default;
  // Null if the bytes are no model.
  [[nodiscard]] virtual std::unique_ptr<Model> load(std::string_view bytes) const = 0;
  // `model` gets the bytes of a model of these lines, until there is none.
  virtual std::string train(const std::unordered_map<std::string, std::string>& options,
                            const std::function<std::optional<std::string>()>& next_line,
                            std::string& model) const = 0;
};

inline constexpr const char* kFile = "libtroika_sentencepiece.so";
using Entry = const Plugin* (*)();
inline constexpr const char* kEntry = "troika_sentencepiece_plugin";

}  // namespace troika::sentencepiece_plugin
