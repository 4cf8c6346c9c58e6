// Data of a process that are one word, and contents that are another.
#pragma once

#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/server/compared_data.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace troika::test {

class ComparedWords final : public ComparedData {
 public:
  // `contents` are not known before know() where they are not given.
  ComparedWords(std::string name, std::string files, std::optional<std::string> contents,
                std::string identity)
      : name_(std::move(name)),
        files_(std::move(files)),
        contents_(std::move(contents)),
        identity_(std::move(identity)) {}

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string identity() override { return identity_; }
  [[nodiscard]] std::optional<std::string> summary(Of of) override {
    if (of == Of::kContents) ++asked_;
    return of == Of::kFiles ? files_ : contents_;
  }
  [[nodiscard]] std::string excerpt(Of of, const std::string&) override { return *summary(of); }
  [[nodiscard]] std::string difference(Of of, const OtherData& other) override {
    EXPECT_EQ(other.summary, other.excerpt);
    return name_ + " has other data than " + other.name + ": " + *summary(of) + " is not " +
           other.summary;
  }
  [[nodiscard]] std::exception_ptr error(const std::string& message) const override {
    return std::make_exception_ptr(DataError(message, "copy them"));
  }
  void know(const std::string& contents) { contents_ = contents; }
  // Returns how often the contents have been asked for.
  [[nodiscard]] int asked() const { return asked_; }

 private:
  std::string name_, files_;
  std::optional<std::string> contents_;
  std::string identity_;
  int asked_ = 0;
};

}  // namespace troika::test
