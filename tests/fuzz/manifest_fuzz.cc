// Fuzz target: any text is a manifest of a checkpoint, or a DataError.
#include <fuzz/fuzz.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/checkpoint/manifest.h>

#include <optional>

namespace troika {
namespace {

// What is read can be written, and reads the same again.
void run(std::string_view text) {
  std::optional<Manifest> manifest;
  try {
    manifest = parse_manifest(text, "input");
  } catch (const DataError& error) {
    require_one_line(error.what());
    return;
  }
  require(parse_manifest(format_manifest(*manifest), "input") == *manifest, "it reads the same");
}

}  // namespace
}  // namespace troika

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  troika::run(troika::text_of(troika::as_span(data, size)));
  return 0;
}
