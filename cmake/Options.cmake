# Compiler settings shared by every target, and the switches a user may set.
option(TROIKA_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TROIKA_UNITY "Compile many source files of a folder as one: a third of the time for all of it, more for one file" ON)
option(TROIKA_INSTALL "Build the shared library and install it" ${PROJECT_IS_TOP_LEVEL})
option(TROIKA_BUILD_FUZZ "Build the libFuzzer targets (clang only)" OFF)
set(TROIKA_TEST_PYTHON "" CACHE FILEPATH
  "Python with what only tests need (scripts/python_env.py makes it); tests that need it are left out without it")
set(TROIKA_CUDA AUTO CACHE STRING
  "Plug-in for CUDA: AUTO builds it where nvcc is; ON, or TROIKA_CUDA=1 in the environment, demands it and fetches LibTorch's CUDA libraries; OFF")
if(DEFINED ENV{TROIKA_CUDA})
  set_property(CACHE TROIKA_CUDA PROPERTY VALUE $ENV{TROIKA_CUDA})
endif()
set(TROIKA_CUDA_ROOT "" CACHE PATH "CUDA toolkit, for the plug-ins for CUDA and NCCL; /usr/local/cuda without")
set(TROIKA_SANITIZE "" CACHE STRING "Sanitizers to build with: address;undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2")  # assertions of libraries stay
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")  # line numbers in backtraces, small objects
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# ccache and mold where present. A precompiled header needs ccache told that its macros are stable.
find_program(TROIKA_CCACHE ccache)
if(TROIKA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${TROIKA_CCACHE})
endif()
find_program(TROIKA_MOLD mold)

add_library(troika_options INTERFACE)
target_compile_features(troika_options INTERFACE cxx_std_20)  # our headers need it, also in a program that uses them
if(PROJECT_IS_TOP_LEVEL)
  target_compile_options(troika_options INTERFACE -Wall -Wextra -Wno-unused-parameter)
endif()
target_compile_options(troika_options INTERFACE -fno-math-errno $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
if(TROIKA_MOLD AND PROJECT_IS_TOP_LEVEL)
  target_link_options(troika_options INTERFACE -fuse-ld=mold)
endif()
if(TROIKA_SANITIZE)
  string(REPLACE ";" "," _sanitizers "${TROIKA_SANITIZE}")
  target_compile_options(troika_options INTERFACE -fsanitize=${_sanitizers} -fno-omit-frame-pointer)
  target_link_options(troika_options INTERFACE -fsanitize=${_sanitizers})
  target_compile_definitions(troika_options INTERFACE TROIKA_SANITIZED)
endif()
if(TROIKA_BUILD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "TROIKA_BUILD_FUZZ needs clang: use the preset 'fuzz'.")
  endif()
  target_compile_options(troika_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
