#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <troika/data/hub_tokenizer/pattern.h>

#include <stdexcept>

namespace troika::hub_tokenizer_plugin {
namespace {

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Pattern Pattern::expression(const std::string& expression) {
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr);
  if (code == nullptr) {
    throw std::runtime_error("the expression " + expression +
                             " cannot be used: " + message_of(error));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it, matches are slower
  Pattern pattern;
  pattern.code_ = std::shared_ptr<const void>(code, [](const void* made) {
    pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(made)));
  });
  return pattern;
}

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

void Pattern::each(std::string_view text,
                   const std::function<void(std::size_t, std::size_t)>& take) const {
  if (code_ == nullptr) {
    if (literal_.empty()) return;
    for (std::size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      take(at, at + literal_.size());
    }
    return;
  }
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code, nullptr), &pcre2_match_data_free);
  std::size_t from = 0;
  while (from < text.size()) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) throw std::runtime_error("an expression failed: " + message_of(found));
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(match.get());
    take(ends[0], ends[1]);
    from = ends[1];
  }
}

}  // namespace troika::hub_tokenizer_plugin
