// What a tokenizer makes of texts: reads a JSON list of texts, and writes for each its ids, those
// with what it stands between, and the text that the ids give back.
//
//   tokenizer_tool TOKENIZER < texts.json
#include <troika/base/error.h>
#include <troika/data/tokenizer.h>

#include <nlohmann/json.hpp>

#include <iostream>

int main(int, char** arguments) {
  try {
    const auto tokenizer = troika::open_tokenizer(arguments[1]);
    nlohmann::json made = nlohmann::json::array();
    for (const std::string text : nlohmann::json::parse(std::cin)) {
      const std::vector<std::int32_t> ids = tokenizer->encode(text);
      std::vector<std::int32_t> framed(tokenizer->prefix().begin(), tokenizer->prefix().end());
      framed.insert(framed.end(), ids.begin(), ids.end());
      framed.insert(framed.end(), tokenizer->suffix().begin(), tokenizer->suffix().end());
      const std::vector<std::int64_t> wide(ids.begin(), ids.end());
      made.push_back({{"ids", ids}, {"framed", framed}, {"text", tokenizer->decode(wide)}});
    }
    std::cout << nlohmann::json{{"vocab_size", tokenizer->vocab_size()},
                                {"separator", tokenizer->separator()},
                                {"filler", tokenizer->filler()},
                                {"texts", made}};
    return 0;
  } catch (const troika::Error& error) {
    std::cerr << error.what() << "\n" << error.hint() << "\n";
    return 1;
  }
}
