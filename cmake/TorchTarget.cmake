# Where a LibTorch lies, which one it is, and the target through which programs compile and link against it.
# Part of the build and, installed, of find_package(troika).

# troika_torch_root(<variable> <Torch_DIR>): the folder with include/ and lib/, from that folder itself or from the
# one that holds TorchConfig.cmake, <root>/share/cmake/Torch.
function(troika_torch_root variable torch_dir)
  get_filename_component(_root "${torch_dir}/../../.." ABSOLUTE)
  if(NOT EXISTS ${_root}/include/ATen/ATen.h)
    set(_root ${torch_dir})
  endif()
  set(${variable} ${_root} PARENT_SCOPE)
endfunction()

# troika_torch_version(<variable> <root>): empty where there is no LibTorch.
function(troika_torch_version variable root)
  set(${variable} "" PARENT_SCOPE)
  set(_header ${root}/include/torch/headeronly/version.h)
  if(EXISTS ${_header})
    file(STRINGS ${_header} _lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" _parts "${_lines}")
    list(JOIN _parts "." _version)
    set(${variable} ${_version} PARENT_SCOPE)
  endif()
endfunction()

# troika_torch_settings(<target> <root>): headers, and the two libraries that a machine without a GPU needs.
function(troika_torch_settings target root)
  target_include_directories(${target} SYSTEM INTERFACE ${root}/include ${root}/include/torch/csrc/api/include)
  target_compile_definitions(${target} INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(${target} INTERFACE ${root}/lib/libtorch_cpu.so ${root}/lib/libc10.so)
  target_link_options(${target} INTERFACE -Wl,--allow-shlib-undefined)
  # at::parallel_for is a template, and serial unless the file that uses it is compiled with OpenMP.
  # Link the very library that LibTorch runs on, so that there is one pool of threads.
  target_compile_options(${target} INTERFACE -fopenmp)
  file(GLOB _openmp LIST_DIRECTORIES false ${root}/lib/libgomp*.so*)
  if(_openmp)
    list(GET _openmp 0 _openmp)
    target_link_libraries(${target} INTERFACE ${_openmp})
  else()
    target_link_options(${target} INTERFACE -fopenmp)
  endif()
endfunction()
