# Well-kept libraries from the system's packages; each with the oldest version we build against.
find_package(Threads REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(spdlog 1.9 REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(prometheus-cpp REQUIRED CONFIG)  # 1.0; its package states no version
find_package(PkgConfig REQUIRED)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET tomlplusplus>=3.0)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium>=1.0.18)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece>=0.1.96)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.34)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc>=2.5)
find_package(JPEG REQUIRED)  # libjpeg-turbo 2.1; its package states the version of the interface
find_package(PNG 1.6 REQUIRED)
