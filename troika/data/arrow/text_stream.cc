// Opens text, which may be compressed, as a stream.
#include <arrow/io/compressed.h>
#include <arrow/util/compression.h>
#include <troika/data/arrow/files.h>

namespace troika::arrow_plugin {

arrow::Result<std::shared_ptr<arrow::io::InputStream>> open_text(
    const Input& input, arrow::Compression::type compression) {
  // A stream of its own: that of compressed text closes what it reads from.
  ARROW_ASSIGN_OR_RAISE(const std::int64_t bytes, input->GetSize());
  ARROW_ASSIGN_OR_RAISE(auto text, arrow::io::RandomAccessFile::GetStream(input, 0, bytes));
  if (compression == arrow::Compression::UNCOMPRESSED) return text;
  ARROW_ASSIGN_OR_RAISE(const auto codec, arrow::util::Codec::Create(compression));
  return arrow::io::CompressedInputStream::Make(codec.get(), text);
}

}  // namespace troika::arrow_plugin
