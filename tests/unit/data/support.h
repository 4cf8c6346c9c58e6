// What the tests of this folder share: small data folders and readable views of samples.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/data/dataset.h>
#include <troika/data/sources/documents.h>
#include <troika/data/sources/text/text.h>
#include <troika/data/sources/tokens/tokens.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

inline std::filesystem::path write_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

inline std::string file_content(const std::filesystem::path& path) {
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

// Runs `body`, which must throw an E of one line; returns the message.
template <class E = DataError, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(error.hint().find('\n'), std::string::npos) << error.hint();
    return message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// Returns the hint of what `body` throws.
template <class Body>
std::string hint_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.hint();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// The samples of a language model.
inline SampleSpec token_samples(std::int64_t seq_len, std::int64_t vocab_size = 256) {
  const TensorSpec tokens{"input_ids", at::kLong, {seq_len}, vocab_size, "vocab_size"};
  TensorSpec targets = tokens, documents = tokens;
  targets.name = "targets";
  targets.role = TensorRole::kTarget;
  documents.name = kDocumentIds;
  documents.optional = true;
  return {{tokens, targets, documents}, seq_len, "tokens"};
}

inline DocumentOptions documents_in(std::vector<std::string> paths, double held_out_fraction = 0) {
  DocumentOptions data;
  data.paths = std::move(paths);
  data.held_out_fraction = held_out_fraction;
  return data;
}

inline std::unique_ptr<Dataset> open_text(const DocumentOptions& data, const SampleSpec& sample,
                                          std::uint64_t seed) {
  return open_dataset(DataOptions(text_kind(), data), sample, seed);
}

inline std::unique_ptr<Dataset> open_tokens(const DocumentOptions& data, const SampleSpec& sample,
                                            std::uint64_t seed) {
  return open_dataset(DataOptions(tokens_kind(), data), sample, seed);
}

// `count` files below `folder`, each another text of 1 to `max_bytes` printable bytes.
inline void write_files(const std::filesystem::path& folder, int count, int max_bytes) {
  for (int i = 0; i < count; ++i) {
    std::string text = std::to_string(i) + ":";
    const int bytes = 1 + i * 37 % max_bytes;
    while (static_cast<int>(text.size()) < bytes) text += static_cast<char>('a' + text.size() % 26);
    write_file(folder / ("file-" + std::to_string(1000 + i) + ".txt"), text);
  }
}

inline std::vector<std::int64_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  const auto* data = flat.const_data_ptr<std::int64_t>();
  return {data, data + flat.numel()};
}

// Bytes as text: '.' is the separator, '_' a target that does not count.
inline std::string as_text(const at::Tensor& tensor) {
  std::string text;
  for (const std::int64_t id : values(tensor)) {
    text += id == 0 ? '.' : id == kIgnoredTarget ? '_' : static_cast<char>(id);
  }
  return text;
}

inline void expect_same(const Microbatch& a, const Microbatch& b) {
  EXPECT_TRUE(at::equal(a.tensors[0], b.tensors[0]));
  EXPECT_TRUE(at::equal(a.tensors[1], b.tensors[1]));
  EXPECT_TRUE(at::equal(a.sample_ids, b.sample_ids));
  EXPECT_EQ(a.tensors.value_or_none(2).defined(), b.tensors.value_or_none(2).defined());
  if (a.tensors.value_or_none(2).defined() && b.tensors.value_or_none(2).defined()) {
    EXPECT_TRUE(at::equal(a.tensors[2], b.tensors[2]));
  }
  EXPECT_EQ(a.valid, b.valid);
  EXPECT_EQ(a.step, b.step);
}

}  // namespace troika
