#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/random.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace troika {
namespace {

using testing::HasSubstr;

TEST(CheckedArithmetic, RefusesWhatDoesNotFit) {
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(checked_add<std::uint64_t>(2, 3), 5U);
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_mul(kMax / 2, 2), kMax - 1);
  EXPECT_EQ(checked_mul<std::uint64_t>(1ULL << 32, 1ULL << 32), std::nullopt);
  EXPECT_EQ(checked_mul<std::int64_t>(std::numeric_limits<std::int64_t>::min(), -1), std::nullopt);
}

TEST(LittleEndian, LaysOutTheLowByteFirst) {
  ByteWriter writer;
  writer.write<std::uint32_t>(0x01020304);
  writer.write<std::int16_t>(-2);
  writer.write(1.0F);
  EXPECT_EQ(text_of(writer.bytes()), std::string_view("\4\3\2\1\xFE\xFF\0\0\x80\x3F", 10));
}

TEST(ByteReader, ReadsBackWhatWasWritten) {
  const RandomStream draws(stream_key(1, "bytes"));
  for (std::uint64_t trial = 0; trial < 200; ++trial) {
    const std::uint64_t bits = draws.bits(trial);
    ByteWriter writer;
    writer.write(static_cast<std::uint8_t>(bits));
    writer.write(static_cast<std::int8_t>(bits >> 3));
    writer.write(static_cast<std::uint16_t>(bits >> 7));
    writer.write(static_cast<std::int32_t>(bits >> 11));
    writer.write(bits);
    writer.write(static_cast<std::int64_t>(~bits));
    writer.write(std::ldexp(static_cast<double>(bits), -40));
    writer.write(static_cast<float>(bits % 1000));
    writer.pad_to(16);
    ASSERT_EQ(writer.bytes().size() % 16, 0U);

    ByteReader reader(writer.bytes(), "memory");
    EXPECT_EQ(reader.read<std::uint8_t>(), static_cast<std::uint8_t>(bits));
    EXPECT_EQ(reader.read<std::int8_t>(), static_cast<std::int8_t>(bits >> 3));
    EXPECT_EQ(reader.read<std::uint16_t>(), static_cast<std::uint16_t>(bits >> 7));
    EXPECT_EQ(reader.read<std::int32_t>(), static_cast<std::int32_t>(bits >> 11));
    EXPECT_EQ(reader.read<std::uint64_t>(), bits);
    EXPECT_EQ(reader.read<std::int64_t>(), static_cast<std::int64_t>(~bits));
    EXPECT_EQ(reader.read<double>(), std::ldexp(static_cast<double>(bits), -40));
    EXPECT_EQ(reader.read<float>(), static_cast<float>(bits % 1000));
    EXPECT_EQ(reader.offset(), 36U);
    reader.skip(reader.remaining());
    EXPECT_EQ(reader.remaining(), 0U);
  }
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(ByteReader, NamesSourceAndOffsetOfATruncation) {
  const std::string content = "abcdef";
  ByteReader reader(bytes_of(content), "some.file");
  reader.skip(3);
  EXPECT_EQ(message_of([&] { static_cast<void>(reader.read<std::uint32_t>()); }),
            "some.file: truncated: needs 4 more bytes, has 3 at byte 3");
  // A failed read leaves the position where it was.
  EXPECT_EQ(reader.read<std::uint8_t>(), 'd');
}

TEST(ByteReader, WithstandsCountsThatWouldOverflow) {
  const std::string content = "abcdef";
  ByteReader reader(bytes_of(content), "f");
  reader.skip(1);
  EXPECT_THROW(reader.skip(std::numeric_limits<std::uint64_t>::max()), DataError);
  EXPECT_THROW(static_cast<void>(reader.sub_reader(6)), DataError);
  EXPECT_EQ(reader.remaining(), 5U);
}

TEST(ByteReader, SubReaderIsBoundedAndKeepsOffsets) {
  const std::string content = "abcdef";
  ByteReader reader(bytes_of(content), "f");
  reader.skip(2);
  ByteReader part = reader.sub_reader(2);
  EXPECT_EQ(reader.read<char>(), 'e');
  EXPECT_EQ(part.read<char>(), 'c');
  EXPECT_EQ(part.offset(), 3U);
  EXPECT_THAT(message_of([&] { part.skip(2); }), HasSubstr("at byte 3"));
}

}  // namespace
}  // namespace troika
