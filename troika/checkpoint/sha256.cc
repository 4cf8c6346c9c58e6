#include <openssl/evp.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/checkpoint/sha256.h>

namespace troika {
namespace {

EVP_MD_CTX* of(void* context) {
  return static_cast<EVP_MD_CTX*>(context);
}

}  // namespace

void Sha256::Free::operator()(void* context) const noexcept {
  EVP_MD_CTX_free(of(context));
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  check(context_ != nullptr && EVP_DigestInit_ex(of(context_.get()), EVP_sha256(), nullptr) == 1,
        "OpenSSL cannot compute SHA-256");
}

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(of(context_.get()), bytes.data(), bytes.size()) == 1,
        "SHA-256 has failed");
  return *this;
}

Sha256& Sha256::update(std::string_view text) {
  return update(bytes_of(text));
}

std::string Sha256::digest() {
  std::array<unsigned char, 32> value{};
  check(EVP_DigestFinal_ex(of(context_.get()), value.data(), nullptr) == 1, "SHA-256 has failed");
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : value) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string sha256(std::span<const std::byte> bytes) {
  return Sha256().update(bytes).digest();
}

}  // namespace troika
