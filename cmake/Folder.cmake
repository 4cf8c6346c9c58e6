# troika_folder(NAME <folder> [USES plain|aten|torch] SOURCES ... [LINKS ...] [PRIVATE_LINKS ...] [PROGRAMS ...])
# One folder of the tree is one static library, troika_<folder>, that may link only to folders above it
# (scripts/check_layers.py holds the order). USES picks the precompiled header:
#   plain  no tensors; links no LibTorch
#   aten   tensors (ATen with autograd headers)
#   torch  torch::nn, torch::optim and c10d; implementation files only
# PROGRAMS are the files with a main(), which the folder builds itself.
function(troika_precompiled name header)
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch/empty.cc)
  target_link_libraries(${name} PUBLIC troika_options troika_torch)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch/${header})
endfunction()
troika_precompiled(troika_pch_aten aten.h)
troika_precompiled(troika_pch_torch torch.h)

# Files compiled as one. What they share, LibTorch's templates above all, is compiled once for all of them; a
# batch is small enough for two cores to share the larger folders. Two files of a target may therefore not give
# one name to two things, not even in unnamed namespaces. Files with compile options of their own stay alone.
set(TROIKA_UNITY_BATCH 16)

function(troika_use target uses)
  if(TROIKA_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TROIKA_UNITY_BATCH})
  endif()
  target_link_libraries(${target} PUBLIC troika_options)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  if(NOT uses STREQUAL plain)
    target_link_libraries(${target} PUBLIC troika_torch)
    target_precompile_headers(${target} REUSE_FROM troika_pch_${uses})
    # The precompiled header holds position-independent code, which programs are not by default.
    get_target_property(_type ${target} TYPE)
    if(_type STREQUAL EXECUTABLE)
      target_compile_options(${target} PRIVATE -fPIC)
    endif()
  endif()
endfunction()

function(troika_folder)
  cmake_parse_arguments(F "" "NAME;USES" "SOURCES;LINKS;PRIVATE_LINKS;PROGRAMS" ${ARGN})
  if(NOT F_USES)
    set(F_USES plain)
  endif()
  add_library(troika_${F_NAME} STATIC ${F_SOURCES})
  add_library(troika::${F_NAME} ALIAS troika_${F_NAME})
  set_target_properties(troika_${F_NAME} PROPERTIES TROIKA_USES ${F_USES})
  troika_use(troika_${F_NAME} ${F_USES})
  list(TRANSFORM F_LINKS PREPEND troika_)
  target_link_libraries(troika_${F_NAME} PUBLIC ${F_LINKS} PRIVATE ${F_PRIVATE_LINKS})

  set_property(GLOBAL APPEND PROPERTY TROIKA_FOLDERS ${F_NAME})

  # A folder may hold several libraries: check its files once all of them are listed.
  set_property(DIRECTORY APPEND PROPERTY TROIKA_LISTED ${F_SOURCES} ${F_PROGRAMS})
  cmake_language(DEFER CALL troika_check_sources)
endfunction()

# A source file that nobody builds is a mistake.
function(troika_check_sources)
  get_property(_listed DIRECTORY PROPERTY TROIKA_LISTED)
  file(GLOB _present RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *.cc)
  foreach(_file IN LISTS _present)
    if(NOT _file IN_LIST _listed)
      message(FATAL_ERROR "${CMAKE_CURRENT_SOURCE_DIR}/${_file} is not listed in its CMakeLists.txt")
    endif()
  endforeach()
endfunction()
