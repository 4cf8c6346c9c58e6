# One library for users, and what find_package(troika) needs to find it again. What `cmake --install` makes can be
# moved, and used by any account of the machine: the LibTorch that was fetched comes with it. One that Torch_DIR has
# named stays where it is.
#
#   troika::troika   C++: the library, and LibTorch
#   troika::c        C, and other languages through it: the library alone
#   troika::cuda     the plug-in for CUDA, where LibTorch has GPUs: programs that link it have them
#   troika::fortran  the same with the module `troika`, which each program compiles with its own compiler
#   troika::plugin   what a plug-in compiles with (docs/models.md); its process has the library
include(CMakePackageConfigHelpers)
option(TROIKA_INSTALL_LIBTORCH "Install what troika needs of LibTorch with it" ${TROIKA_TORCH_FETCHED})

# Where installed programs find LibTorch: relative to the prefix if it is installed, else absolute.
set(TROIKA_LIBTORCH ${CMAKE_INSTALL_LIBDIR}/troika/libtorch)
set(TROIKA_INSTALLED_TORCH ${TROIKA_TORCH_ROOT})
if(TROIKA_INSTALL_LIBTORCH)
  set(TROIKA_INSTALLED_TORCH ${TROIKA_LIBTORCH}/torch)
endif()

# troika_torch_rpath(<variable> <folder>): of what is installed in <folder>, relative to the prefix.
function(troika_torch_rpath variable folder)
  set(${variable} ${TROIKA_INSTALLED_TORCH}/lib PARENT_SCOPE)
  if(TROIKA_INSTALL_LIBTORCH)
    file(RELATIVE_PATH _path /${folder} /${TROIKA_INSTALLED_TORCH}/lib)
    set(${variable} "$ORIGIN/${_path}" PARENT_SCOPE)
  endif()
endfunction()

# The libraries that are linked, those that they link, headers and licences, laid out as in the wheels: LibTorch
# looks for CUDA's in ../../nvidia.
function(troika_install_libtorch)
  get_filename_component(_wheels ${TROIKA_TORCH_ROOT} DIRECTORY)
  install(DIRECTORY ${TROIKA_TORCH_ROOT}/include DESTINATION ${TROIKA_LIBTORCH}/torch)
  set(_wanted libtorch_cpu.so libc10.so libgomp*.so*)
  set(_wanted_of_nvidia libcudart.so.* libcupti.so.*)
  if(TROIKA_TORCH_CUDA)  # all that was fetched
    set(_wanted *.so*)
    set(_wanted_of_nvidia *.so*)
  endif()
  list(TRANSFORM _wanted PREPEND ${TROIKA_TORCH_ROOT}/lib/)
  file(GLOB _libraries ${_wanted})
  install(FILES ${_libraries} DESTINATION ${TROIKA_LIBTORCH}/torch/lib)
  list(TRANSFORM _wanted_of_nvidia PREPEND ${_wheels}/nvidia/*/lib/)
  file(GLOB _linked RELATIVE ${_wheels} ${_wanted_of_nvidia})
  foreach(_file IN LISTS _linked)
    get_filename_component(_folder ${_file} DIRECTORY)
    install(FILES ${_wheels}/${_file} DESTINATION ${TROIKA_LIBTORCH}/${_folder})
  endforeach()
  file(GLOB _licences ${_wheels}/*.dist-info)
  install(DIRECTORY ${_licences} DESTINATION ${TROIKA_LIBTORCH})
endfunction()

# The command uses that library, so that it and the plug-ins that it loads share one copy.
function(troika_link_command)
  target_link_libraries(troika PRIVATE troika_options troika_torch troika_shared)
  target_include_directories(troika PRIVATE ${PROJECT_SOURCE_DIR})
  foreach(_folder IN ITEMS bench simulate cli)
    target_sources(troika PRIVATE $<TARGET_OBJECTS:troika_${_folder}>)
    get_target_property(_links troika_${_folder} LINK_LIBRARIES)
    list(FILTER _links EXCLUDE REGEX "^troika_")
    target_link_libraries(troika PRIVATE ${_links})
  endforeach()
endfunction()

# What the library is made of: every folder but the command and what only the command has.
function(troika_shared_library)
  get_property(_folders GLOBAL PROPERTY TROIKA_FOLDERS)
  list(REMOVE_ITEM _folders bench simulate cli)
  add_library(troika_shared SHARED)
  target_link_libraries(troika_shared PRIVATE troika_options troika_torch)
  foreach(_folder IN LISTS _folders)
    target_sources(troika_shared PRIVATE $<TARGET_OBJECTS:troika_${_folder}>)
    get_target_property(_links troika_${_folder} LINK_LIBRARIES)
    list(FILTER _links EXCLUDE REGEX "^troika_")
    target_link_libraries(troika_shared PRIVATE ${_links})
  endforeach()
  target_include_directories(troika_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # LibTorch names CUDA functions that only its GPU libraries have.
  target_link_options(troika_shared INTERFACE -Wl,--allow-shlib-undefined)
  troika_torch_rpath(_torch ${CMAKE_INSTALL_LIBDIR})
  set_target_properties(troika_shared PROPERTIES OUTPUT_NAME troika EXPORT_NAME c
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINKER_LANGUAGE CXX
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} INSTALL_RPATH "$ORIGIN;${_torch}")
endfunction()

function(troika_install)
  troika_torch_rpath(_torch ${CMAKE_INSTALL_BINDIR})
  file(RELATIVE_PATH _library /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(troika PROPERTIES INSTALL_RPATH "$ORIGIN/${_library};${_torch}")
  install(TARGETS troika RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS troika_shared EXPORT troika LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(CODE "set(TROIKA_HEADERS ${PROJECT_SOURCE_DIR}/troika)
    set(TROIKA_INCLUDE_FOLDER \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR})")
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/InstallHeaders.cmake)

  set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/troika)
  set(_generated ${PROJECT_BINARY_DIR}/package)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/troikaConfig.cmake.in ${_generated}/troikaConfig.cmake
    INSTALL_DESTINATION ${_package} PATH_VARS CMAKE_INSTALL_INCLUDEDIR TROIKA_INSTALLED_TORCH)
  write_basic_package_version_file(${_generated}/troikaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(EXPORT troika NAMESPACE troika:: FILE troikaTargets.cmake DESTINATION ${_package})
  install(FILES ${_generated}/troikaConfig.cmake ${_generated}/troikaConfigVersion.cmake
    ${PROJECT_SOURCE_DIR}/cmake/TorchTarget.cmake DESTINATION ${_package})
  # What has to be built before `cmake --install`, and no tests.
  add_custom_target(installable DEPENDS troika troika_shared)
  if(TARGET troika_cuda AND TROIKA_TORCH_CUDA)
    troika_torch_rpath(_torch ${CMAKE_INSTALL_LIBDIR}/troika)
    file(RELATIVE_PATH _runtime ${TROIKA_TORCH_ROOT}/lib ${TROIKA_CUDA_RUNTIME_LIBRARY})
    get_filename_component(_runtime ${_runtime} DIRECTORY)
    set_target_properties(troika_cuda PROPERTIES INSTALL_RPATH "${_torch};${_torch}/${_runtime}")
    add_dependencies(installable troika_cuda)
    install(TARGETS troika_cuda EXPORT troika LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/troika)
  endif()
  if(TARGET troika_arrow)  # found by the plug-in's INSTALL_RPATH
    install(FILES ${TROIKA_ARROW_INSTALLED} DESTINATION ${CMAKE_INSTALL_LIBDIR}/troika/arrow)
    get_filename_component(_wheel ${TROIKA_ARROW_ROOT} DIRECTORY)
    file(GLOB _licences ${_wheel}/*.dist-info)
    install(DIRECTORY ${_licences} DESTINATION ${CMAKE_INSTALL_LIBDIR}/troika/arrow)
  endif()
  foreach(_plugin IN ITEMS troika_sentencepiece troika_hub_tokenizer troika_image_codec troika_arrow troika_flight troika_mpi_openmpi troika_mpi_mpich troika_nccl)
    if(TARGET ${_plugin})
      add_dependencies(installable ${_plugin})
      install(TARGETS ${_plugin} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/troika)
    endif()
  endforeach()
endfunction()

if(TROIKA_INSTALL)
  troika_shared_library()
  troika_link_command()
  troika_install()
  if(TROIKA_INSTALL_LIBTORCH)
    troika_install_libtorch()
  endif()
endif()
