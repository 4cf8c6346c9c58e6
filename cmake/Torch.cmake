# The target troika_torch: LibTorch's headers and the two libraries that every machine needs. Those for GPUs are loaded
# by the plug-in for CUDA (cmake/Cuda.cmake), and fetched where there is a GPU or TROIKA_CUDA is on.
# Torch_DIR (variable or environment) points to an official LibTorch; otherwise scripts/fetch_torch.py
# fetches the pinned wheel once and prints where it lies.
set(TROIKA_TORCH_MINIMUM 2.11.0)
set(TROIKA_TORCH_LIMIT 2.12.0)

include(${CMAKE_CURRENT_LIST_DIR}/TorchTarget.cmake)
if(NOT Torch_DIR AND DEFINED ENV{Torch_DIR})
  set(Torch_DIR $ENV{Torch_DIR})
endif()
set(TROIKA_TORCH_FETCHED OFF)
if(Torch_DIR)
  troika_torch_root(TROIKA_TORCH_ROOT ${Torch_DIR})
elseif(NOT TROIKA_TORCH_ROOT)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(_gpu yes)
  if(TROIKA_CUDA STREQUAL AUTO)
    set(_gpu auto)
  elseif(NOT TROIKA_CUDA)
    set(_gpu no)
  endif()
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/fetch_torch.py --gpu ${_gpu}
    OUTPUT_VARIABLE TROIKA_TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _failed)
  if(_failed)
    message(FATAL_ERROR "LibTorch could not be fetched (see above). Set Torch_DIR to an official LibTorch instead.")
  endif()
  set(TROIKA_TORCH_FETCHED ON)
endif()

troika_torch_version(TROIKA_TORCH_VERSION ${TROIKA_TORCH_ROOT})
if(NOT TROIKA_TORCH_VERSION)
  message(FATAL_ERROR
    "No LibTorch at '${TROIKA_TORCH_ROOT}': ${TROIKA_TORCH_ROOT}/include/torch/headeronly/version.h is missing.")
endif()
if(TROIKA_TORCH_VERSION VERSION_LESS TROIKA_TORCH_MINIMUM OR
   NOT TROIKA_TORCH_VERSION VERSION_LESS TROIKA_TORCH_LIMIT)
  message(FATAL_ERROR "LibTorch ${TROIKA_TORCH_VERSION} at ${TROIKA_TORCH_ROOT} is outside the tested range "
    "[${TROIKA_TORCH_MINIMUM}, ${TROIKA_TORCH_LIMIT}).")
endif()
message(STATUS "LibTorch ${TROIKA_TORCH_VERSION}: ${TROIKA_TORCH_ROOT}")

add_library(troika_torch INTERFACE)
troika_torch_settings(troika_torch ${TROIKA_TORCH_ROOT})
