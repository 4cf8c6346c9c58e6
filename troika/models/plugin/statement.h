// What a plug-in for models states about itself, as text in its file: the host reads it before it
// loads the plug-in, since code of another build could crash it.
#pragma once

#include <troika/base/version.h>
#include <troika/models/kind.h>
#include <troika/nn/named_unit.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troika::detail {

// The statement begins so, and holds words up to a zero byte: "troika=0.1.0 libtorch=2.11.0
// library=libstdc++-cxx11 interface=1-5f3a".
inline constexpr std::string_view kModelPluginMark = "troika-model-plugin: troika=";
// The function that a plug-in exports; it returns its kind.
inline constexpr const char* kModelPluginEntry = "troika_model_plugin";
using ModelPluginEntry = const ModelKind* (*)();

// The C++ library and its layout of strings, which both sides share.
#if defined(_LIBCPP_VERSION)
inline constexpr std::string_view kStandardLibrary = "libc++";
#elif defined(_GLIBCXX_DEBUG)
inline constexpr std::string_view kStandardLibrary = "libstdc++-debug";
#elif _GLIBCXX_USE_CXX11_ABI
inline constexpr std::string_view kStandardLibrary = "libstdc++-cxx11";
#else
inline constexpr std::string_view kStandardLibrary = "libstdc++-before-cxx11";
#endif

// Counts changes of the virtual functions that the two sides call.
inline constexpr std::uint64_t kModelPluginVersion = 2;

// Tells headers of different commits apart by the sizes of what crosses.
constexpr std::uint64_t model_plugin_layout() {
  std::uint64_t hash = 0;
  for (const std::size_t size :
       {sizeof(Key), sizeof(Options), sizeof(TensorSpec), sizeof(SampleSpec), sizeof(ModelTraits),
        sizeof(NamedUnit), sizeof(UnitTensor), sizeof(UnitLoss), sizeof(ParameterSpec),
        sizeof(Model), sizeof(ModelLayout), sizeof(LossOptions)}) {
    hash = (hash * 31 + size) % 65'536;
  }
  return hash;
}

struct ModelPluginStatement {
  std::array<char, 192> text{};
};

// Writes a statement. LibTorch's version is what the plug-in was compiled with.
constexpr ModelPluginStatement model_plugin_statement(std::string_view libtorch) {
  ModelPluginStatement statement;
  std::size_t at = 0;
  const auto add = [&](std::string_view part) {
    for (const char c : part) statement.text.at(at++) = c;
  };
  add(kModelPluginMark);
  add(kVersion);
  add(" libtorch=");
  add(libtorch);
  add(" library=");
  add(kStandardLibrary);
  add(" interface=");
  const auto add_number = [&](std::uint64_t number) {
    std::uint64_t unit = 1;
    while (number / unit >= 10) unit *= 10;
    for (; unit > 0; unit /= 10) {
      statement.text.at(at++) = static_cast<char>('0' + number / unit % 10);
    }
  };
  add_number(kModelPluginVersion);
  add("-");
  add_number(model_plugin_layout());
  return statement;
}

}  // namespace troika::detail
