// Fuzz target: any bytes are a line of a conversation, or a DataError; and any text has spans that
// cover it, or no turn of the assistant.
#include <fuzz/fuzz.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/data/chat/chat_template.h>
#include <troika/data/chat/conversations.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace troika {
namespace {

void check_spans(std::string_view text, std::span<const TextSpan> spans) {
  std::size_t begin = 0;
  for (const TextSpan& span : spans) {
    require(span.end > begin && span.end <= text.size(), "spans follow one another");
    begin = span.end;
  }
  require(begin == text.size(), "spans cover the text");
  require(std::ranges::any_of(spans, &TextSpan::is_learned), "something is learned");
}

template <class Work>
void run(const Work& work) {
  try {
    work();
  } catch (const DataError& error) {
    require_one_line(error.what());
    if (!error.hint().empty()) require_one_line(error.hint());
  }
}

}  // namespace
}  // namespace troika

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troika;
  const std::string_view text = text_of(as_span(data, size));
  for (const ChatTemplate each :
       {ChatTemplate::kChatml, ChatTemplate::kLlama3, ChatTemplate::kMistral}) {
    run([&] {
      const ChatText chat = render_chat(each, messages_of(text, "messages"));
      check_spans(chat.text, chat.spans);
      check_spans(chat.text, spans_of_rendered(each, chat.text));
    });
    run([&] { check_spans(text, spans_of_rendered(each, text)); });
  }
  return 0;
}
