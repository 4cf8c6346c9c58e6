#include <troika/data/hub_tokenizer/byte_level.h>
#include <troika/data/hub_tokenizer/decoder.h>
#include <troika/data/hub_tokenizer/json_pattern.h>
#include <troika/data/hub_tokenizer/unicode.h>

#include <charconv>
#include <optional>
#include <stdexcept>
#include <utility>

namespace troika::hub_tokenizer_plugin {
namespace {

using Tokens = std::vector<std::string>;

std::string joined(const Tokens& tokens, std::string_view between = "") {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += between;
    text += tokens[i];
  }
  return text;
}

std::string with(std::string text, const std::string& what, const std::string& instead) {
  if (what.empty()) return text;
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + instead.size())) {
    text.replace(at, what.size(), instead);
  }
  return text;
}

// What BERT's words leave before signs.
std::string cleaned_up(std::string text) {
  constexpr const char* kChanges[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                         {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                         {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                         {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, instead] : kChanges) text = with(std::move(text), what, instead);
  return text;
}

Tokens join_pieces(Tokens tokens, const std::string& prefix, bool cleans) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) {
      const bool continues = tokens[i].starts_with(prefix);
      tokens[i] = continues ? tokens[i].substr(prefix.size()) : " " + tokens[i];
    }
    if (cleans) tokens[i] = cleaned_up(std::move(tokens[i]));
  }
  return tokens;
}

// The byte of "<0x0A>".
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

Tokens join_bytes(const Tokens& tokens) {
  Tokens made;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    const bool is_text = valid_utf8(bytes) == bytes;
    if (is_text) made.push_back(bytes);
    for (std::size_t i = 0; !is_text && i < bytes.size(); ++i) made.emplace_back("\xEF\xBF\xBD");
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = byte_of(token)) {
      bytes += *byte;
      continue;
    }
    flush();
    made.push_back(token);
  }
  flush();
  return made;
}

std::string stripped(std::string text, const std::string& what, int start, int stop) {
  for (int i = 0; i < start && text.starts_with(what); ++i) text.erase(0, what.size());
  for (int i = 0; i < stop && text.ends_with(what); ++i) text.resize(text.size() - what.size());
  return text;
}

Tokens each(Tokens tokens, const std::function<std::string(std::string)>& change) {
  for (std::string& token : tokens) token = change(std::move(token));
  return tokens;
}

}  // namespace

Decoder::Decoder(const nlohmann::json& section) {
  if (section.is_null()) {
    steps_.emplace_back([](const Tokens& tokens) { return Tokens{joined(tokens, " ")}; });
  } else {
    add(section);
  }
}

void Decoder::add(const nlohmann::json& section) {
  const std::string type = section.at("type");
  if (type == "Sequence") {
    for (const auto& each : section.at("decoders")) add(each);
  } else if (type == "ByteLevel") {
    steps_.emplace_back([](const Tokens& tokens) {
      return Tokens{valid_utf8(from_byte_characters(joined(tokens)))};
    });
  } else if (type == "WordPiece") {
    const std::string prefix = section.value("prefix", std::string("##"));
    const bool cleans = section.value("cleanup", true);
    steps_.emplace_back(
        [=](Tokens tokens) { return join_pieces(std::move(tokens), prefix, cleans); });
  } else if (type == "Metaspace") {
    const std::string sign = section.value("replacement", std::string("\xE2\x96\x81"));
    std::string scheme = section.value("add_prefix_space", true) ? "always" : "never";
    scheme = section.value("prepend_scheme", scheme);
    steps_.emplace_back([=](Tokens tokens) {
      if (!tokens.empty() && scheme != "never") tokens[0] = stripped(tokens[0], sign, 1, 0);
      return each(std::move(tokens),
                  [&](std::string token) { return with(std::move(token), sign, " "); });
    });
  } else if (type == "BPEDecoder") {
    const std::string suffix = section.value("suffix", std::string("</w>"));
    steps_.emplace_back([=](Tokens tokens) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = with(std::move(tokens[i]), suffix, i + 1 < tokens.size() ? " " : "");
      }
      return tokens;
    });
  } else if (type == "Replace") {
    const nlohmann::json& pattern = section.at("pattern");
    if (!pattern.contains("String")) {
      throw std::runtime_error("its decoder replaces an expression, which troika does not");
    }
    const std::string what = pattern.at("String"), instead = section.at("content");
    steps_.emplace_back([=](Tokens tokens) {
      return each(std::move(tokens),
                  [&](std::string token) { return with(std::move(token), what, instead); });
    });
  } else if (type == "ByteFallback") {
    steps_.emplace_back(&join_bytes);
  } else if (type == "Fuse") {
    steps_.emplace_back([](const Tokens& tokens) { return Tokens{joined(tokens)}; });
  } else if (type == "Strip") {
    const std::string what = section.at("content");
    const int start = section.at("start"), stop = section.at("stop");
    steps_.emplace_back([=](Tokens tokens) {
      return each(std::move(tokens),
                  [&](std::string token) { return stripped(std::move(token), what, start, stop); });
    });
  } else {
    throw std::runtime_error("its decoder is of type \"" + type + "\", which troika does not have");
  }
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) tokens = step(std::move(tokens));
  return joined(tokens);
}

}  // namespace troika::hub_tokenizer_plugin
