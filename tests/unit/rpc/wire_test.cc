#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/rpc/client_messages.h>
#include <troika/rpc/wire.h>

#include "unit/rpc/support.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

std::vector<std::byte> reply_opening(std::uint64_t body_bytes, std::size_t here) {
  const std::vector<std::byte> start = numbered(here);
  detail::ReplyOpening opening;
  opening.header = "h";
  opening.body_bytes = body_bytes;
  opening.body_start = start;
  return detail::encode(opening);
}

TEST(RpcWire, GivesBackARequest) {
  const std::vector<std::byte> body = numbered(100);
  detail::RequestOpening opening;
  opening.method = "push";
  opening.header = std::string_view("a\0b", 3);
  opening.body_bytes = 100;
  opening.body_start = body;
  const std::vector<std::byte> bytes = detail::encode(opening);
  const detail::RequestOpening back = detail::decode_request(bytes, "a test");
  EXPECT_EQ(back.method, "push");
  EXPECT_EQ(back.header, opening.header);
  EXPECT_EQ(back.body_bytes, 100U);
  EXPECT_TRUE(std::ranges::equal(back.body_start, body));
}

TEST(RpcWire, BoundsMethodsAndHeaders) {
  const std::string method(kMostMethodBytes + 1, 'm');
  const std::string header(kMostHeaderBytes + 1, 'h');
  EXPECT_THROW(static_cast<void>(detail::decode_request(detail::encode({.method = ""}), "")),
               DataError);
  EXPECT_THROW(static_cast<void>(detail::decode_request(detail::encode({.method = method}), "")),
               DataError);
  EXPECT_THROW(static_cast<void>(
                   detail::decode_request(detail::encode({.method = "m", .header = header}), "")),
               DataError);
}

TEST(RpcWire, RefusesRepliesThatAreMalformed) {
  const auto error_of = [](const std::vector<std::vector<std::byte>>& messages) -> std::string {
    detail::ArrivingReply arriving("the reply", 1 << 20, {}, nullptr);
    try {
      for (const auto& message : messages) arriving.take(message);
      static_cast<void>(arriving.finish());
      return "none";
    } catch (const DataError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(error_of({reply_opening(100, 100)}), "none");
  EXPECT_EQ(error_of({reply_opening(20'000, 0), numbered(20'000)}), "none");
  EXPECT_EQ(error_of({}), "the reply is empty");
  EXPECT_THAT(error_of({{}}), HasSubstr("the reply"));
  EXPECT_THAT(error_of({detail::encode({.method = "m"})}), HasSubstr("is no reply"));
  EXPECT_THAT(error_of({reply_opening(100, 99)}), HasSubstr("99 are here"));
  EXPECT_THAT(error_of({reply_opening(100, 100), numbered(1)}), HasSubstr("goes on"));
  EXPECT_THAT(error_of({reply_opening(20'000, 0), numbered(19'999)}),
              HasSubstr("ends after 19999"));
  EXPECT_THAT(error_of({reply_opening(2 << 20, 0)}), HasSubstr("2.0 MiB"));
  std::vector<std::byte> status = reply_opening(0, 0);
  status[4] = std::byte{9};
  EXPECT_THAT(error_of({status}), HasSubstr("unknown status"));
  std::vector<std::byte> failure = reply_opening(5, 5);
  failure[4] = std::byte{1};
  EXPECT_THAT(error_of({failure}), HasSubstr("an error with a body"));
}

}  // namespace
}  // namespace troika::test
