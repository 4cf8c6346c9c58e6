// Internal: tokenizers as Hugging Face's libraries write them (tokenizer.json), which are a
// plug-in: PCRE2 and utf8proc are libraries that only they need.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace troika::hub_tokenizer_plugin {

using TakeIds = std::function<void(std::span<const int>)>;
using TakeText = std::function<void(std::string_view)>;

// Says how a text is read.
struct Reading {
  bool is_first = true;        // nothing stands before it
  bool special_tokens = true;  // special tokens that are written in it become those tokens
};

// A token that is found in texts before all else.
struct NamedToken {
  int id = -1;                                     // negative: there is none
  bool strips_left = false, strips_right = false;  // takes the white space beside it
};

// A tokenizer. A function that returns false has passed the reason to `error`. Const access is
// thread safe.
class Model {
 public:
  virtual ~Model() = default;
  // Returns 1 + the largest id.
  [[nodiscard]] virtual int vocab_size() const = 0;
  // Returns the id of a token; negative where there is none.
  [[nodiscard]] virtual int id_of(std::string_view token) const = 0;
  // Returns a token of the vocabulary, with what it takes where it is an added one.
  [[nodiscard]] virtual NamedToken token(std::string_view text) const = 0;
  // Calls `take` for each special token, in the order of their ids.
  virtual void special_tokens(
      const std::function<void(std::string_view token, int id)>& take) const = 0;
  // Return what stands before and behind a single text, as [CLS] and [SEP] do.
  [[nodiscard]] virtual std::span<const int> prefix() const = 0;
  [[nodiscard]] virtual std::span<const int> suffix() const = 0;
  // Encodes a text without them. Bytes that are no UTF-8 are read as U+FFFD.
  [[nodiscard]] virtual bool encode(std::string_view text, Reading reading, const TakeIds& ids,
                                    const TakeText& error) const = 0;
  // Decodes ids; special tokens give no text.
  [[nodiscard]] virtual bool decode(std::span<const int> ids, const TakeText& text,
                                    const TakeText& error) const = 0;
};

// True of what a token takes that takes the white space beside it.
[[nodiscard]] constexpr bool is_blank(char byte) {
  return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

class HubTokenizerPlugin {
 public:
  virtual ~HubTokenizerPlugin() = default;
  // Loads the content of a tokenizer.json; returns null where `error` has been given the reason.
  [[nodiscard]] virtual std::unique_ptr<Model> load(std::string_view json,
                                                    const TakeText& error) const = 0;
};

inline constexpr const char* kFile = "libtroika_hub_tokenizer.so";
using PluginEntry = const HubTokenizerPlugin* (*)();
inline constexpr const char* kPluginEntry = "troika_hub_tokenizer_plugin";

}  // namespace troika::hub_tokenizer_plugin
