// Handles that are freed, of another kind, or no handles at all; and what a failed call leaves in
// their place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <string>

namespace troika {
namespace {

constexpr const char* kSmallestRecipe =
    "[model]\nkind = \"mlp\"\ninput_dim = 1\nhidden_dims = [2]\noutput_dim = 1\n";

void refuses_line(int status, const char* line) {
  EXPECT_EQ(status, TROIKA_USAGE);
  EXPECT_STREQ(troika_last_error(), line);
}

class CApiHandles : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(troika_open_alone(nullptr, &session_), TROIKA_OK);
    ASSERT_EQ(troika_model_create(session_, kSmallestRecipe, &model_), TROIKA_OK)
        << troika_last_error();
  }
  void TearDown() override {
    EXPECT_EQ(troika_model_free(model_), TROIKA_OK);
    EXPECT_EQ(troika_close(session_), TROIKA_OK);
  }

  troika_session* session_ = nullptr;
  troika_model* model_ = nullptr;
};

TEST_F(CApiHandles, ThatAreFreedAreRefused) {
  troika_model* other = nullptr;
  ASSERT_EQ(troika_model_create(session_, kSmallestRecipe, &other), TROIKA_OK);
  EXPECT_EQ(troika_model_free(other), TROIKA_OK);
  refuses_line(troika_model_free(other), "model is freed already");
  double value = 1;
  refuses_line(troika_model_step(other, &value, &value, 1, TROIKA_DOUBLE, &value),
               "model is freed already");
  refuses_line(troika_model_predict(other, &value, 1, TROIKA_DOUBLE, &value),
               "model is freed already");
  troika_session* closed = nullptr;
  ASSERT_EQ(troika_open_alone(nullptr, &closed), TROIKA_OK);
  EXPECT_EQ(troika_close(closed), TROIKA_OK);
  refuses_line(troika_close(closed), "session is freed already");
  refuses_line(troika_barrier(closed, nullptr), "session is freed already");
  EXPECT_EQ(value, 1);
}

TEST_F(CApiHandles, OfTheOtherKindAreRefused) {
  double value = 1;
  // NOLINTBEGIN(cppcoreguidelines-pro-type-reinterpret-cast): what a C program can do
  auto* const model = reinterpret_cast<troika_model*>(session_);
  auto* const session = reinterpret_cast<troika_session*>(model_);
  auto* const none = reinterpret_cast<troika_model*>(&value);
  // NOLINTEND(cppcoreguidelines-pro-type-reinterpret-cast)
  refuses_line(troika_model_free(model), "model is a session");
  refuses_line(troika_model_step(model, &value, &value, 1, TROIKA_DOUBLE, &value),
               "model is a session");
  refuses_line(troika_close(session), "session is a model");
  int rank = -1;
  refuses_line(troika_rank(session, &rank), "session is a model");
  EXPECT_EQ(rank, -1);
  refuses_line(troika_model_free(none), "model is no handle that troika has given");
  EXPECT_EQ(value, 1);
}

TEST_F(CApiHandles, AreNullWhereACallHasFailed) {
  auto* const before = model_;
  troika_model* model = model_;
  EXPECT_EQ(troika_model_create(session_, "[model]\nkind = \"mlq\"", &model), TROIKA_USAGE);
  EXPECT_EQ(model, nullptr);
  model = before;
  EXPECT_EQ(troika_model_create_from_file(session_, "/no/such/file", &model), TROIKA_USAGE);
  EXPECT_EQ(model, nullptr);
  model = before;
  EXPECT_EQ(troika_model_create(nullptr, kSmallestRecipe, &model), TROIKA_USAGE);
  EXPECT_EQ(model, nullptr);
  troika_options options = {};
  options.engine = "gluu";
  for (const auto& open : {troika_open, troika_open_alone}) {
    troika_session* session = session_;
    EXPECT_EQ(open(&options, &session), TROIKA_USAGE);
    EXPECT_EQ(session, nullptr);
  }
  options = {};
  options.threads = -1;
  troika_session* session = session_;
  refuses_line(troika_open_mpi(0, &options, &session), "a negative number of threads: -1");
  EXPECT_EQ(session, nullptr);
}

TEST_F(CApiHandles, OfASessionStayWhileItsModelsDo) {
  EXPECT_EQ(troika_close(session_), TROIKA_USAGE);
  EXPECT_STREQ(troika_last_error(), "1 model of the session is not freed");
  int size = 0;
  EXPECT_EQ(troika_size(session_, &size), TROIKA_OK);
  EXPECT_EQ(size, 1);
}

}  // namespace
}  // namespace troika
