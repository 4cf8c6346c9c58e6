# The target troika_torch: LibTorch's headers and the two libraries a machine without a GPU needs.
# Torch_DIR (variable or environment) points to an official LibTorch; otherwise scripts/fetch_torch.py
# fetches the pinned wheel once and prints where it lies.
set(TROIKA_TORCH_MINIMUM 2.11.0)
set(TROIKA_TORCH_LIMIT 2.12.0)

if(NOT Torch_DIR AND DEFINED ENV{Torch_DIR})
  set(Torch_DIR $ENV{Torch_DIR})
endif()
if(Torch_DIR)
  # <root>/share/cmake/Torch -> <root>
  get_filename_component(TROIKA_TORCH_ROOT "${Torch_DIR}/../../.." ABSOLUTE)
  if(NOT EXISTS ${TROIKA_TORCH_ROOT}/include/ATen/ATen.h)
    set(TROIKA_TORCH_ROOT ${Torch_DIR})
  endif()
elseif(NOT TROIKA_TORCH_ROOT)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/fetch_torch.py
    OUTPUT_VARIABLE TROIKA_TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _failed)
  if(_failed)
    message(FATAL_ERROR "LibTorch could not be fetched (see above). Set Torch_DIR to an official LibTorch instead.")
  endif()
endif()

set(_version_header ${TROIKA_TORCH_ROOT}/include/torch/headeronly/version.h)
if(NOT EXISTS ${_version_header})
  message(FATAL_ERROR "No LibTorch at '${TROIKA_TORCH_ROOT}': ${_version_header} is missing.")
endif()
file(STRINGS ${_version_header} _version_lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX MATCHALL "[0-9]+" _version_parts "${_version_lines}")
list(JOIN _version_parts "." TROIKA_TORCH_VERSION)
if(TROIKA_TORCH_VERSION VERSION_LESS TROIKA_TORCH_MINIMUM OR
   NOT TROIKA_TORCH_VERSION VERSION_LESS TROIKA_TORCH_LIMIT)
  message(FATAL_ERROR "LibTorch ${TROIKA_TORCH_VERSION} at ${TROIKA_TORCH_ROOT} is outside the tested range "
    "[${TROIKA_TORCH_MINIMUM}, ${TROIKA_TORCH_LIMIT}).")
endif()
message(STATUS "LibTorch ${TROIKA_TORCH_VERSION}: ${TROIKA_TORCH_ROOT}")

add_library(troika_torch INTERFACE)
target_include_directories(troika_torch SYSTEM INTERFACE
  ${TROIKA_TORCH_ROOT}/include ${TROIKA_TORCH_ROOT}/include/torch/csrc/api/include)
target_compile_definitions(troika_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(troika_torch INTERFACE
  ${TROIKA_TORCH_ROOT}/lib/libtorch_cpu.so ${TROIKA_TORCH_ROOT}/lib/libc10.so)
target_link_options(troika_torch INTERFACE -Wl,--allow-shlib-undefined)
# at::parallel_for is a template, and serial unless the file that uses it is compiled with OpenMP.
# Link the very library that LibTorch runs on, so that there is one pool of threads.
target_compile_options(troika_torch INTERFACE -fopenmp)
file(GLOB _openmp LIST_DIRECTORIES false ${TROIKA_TORCH_ROOT}/lib/libgomp*.so*)
if(_openmp)
  list(GET _openmp 0 _openmp)
  target_link_libraries(troika_torch INTERFACE ${_openmp})
else()
  target_link_options(troika_torch INTERFACE -fopenmp)
endif()
