# The target troika_arrow_library: Apache Arrow's headers, and the libraries that the plug-in for tables links.
# scripts/fetch_arrow.py fetches the pinned wheel once and prints where they lie. TROIKA_ARROW=0 leaves it all out.
option(TROIKA_ARROW "Build the plug-ins for tables, object stores and requests between processes, on Apache Arrow" ON)
if(DEFINED ENV{TROIKA_ARROW})
  set_property(CACHE TROIKA_ARROW PROPERTY VALUE $ENV{TROIKA_ARROW})
endif()
if(NOT TROIKA_ARROW)
  message(STATUS "kind = \"table\", object stores and requests between processes are left out: TROIKA_ARROW is off")
  return()
endif()

if(NOT TROIKA_ARROW_ROOT)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/fetch_arrow.py
    OUTPUT_VARIABLE TROIKA_ARROW_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _failed)
  if(_failed)
    message(FATAL_ERROR "Apache Arrow could not be fetched (see above). TROIKA_ARROW=0 builds without it.")
  endif()
endif()
message(STATUS "Apache Arrow: ${TROIKA_ARROW_ROOT}")

file(GLOB TROIKA_ARROW_LIBRARIES ${TROIKA_ARROW_ROOT}/libarrow.so.* ${TROIKA_ARROW_ROOT}/libparquet.so.*)
add_library(troika_arrow_library INTERFACE)
target_include_directories(troika_arrow_library SYSTEM INTERFACE ${TROIKA_ARROW_ROOT}/include)
target_link_libraries(troika_arrow_library INTERFACE ${TROIKA_ARROW_LIBRARIES})
# Arrow Flight, and gRPC in it, for the plug-in of troika/rpc alone. An older folder in TROIKA_ARROW_ROOT may lack it.
file(GLOB TROIKA_FLIGHT_LIBRARIES ${TROIKA_ARROW_ROOT}/libarrow_flight.so.*)
if(TROIKA_FLIGHT_LIBRARIES)
  file(GLOB _arrow ${TROIKA_ARROW_ROOT}/libarrow.so.*)
  add_library(troika_flight_library INTERFACE)
  target_include_directories(troika_flight_library SYSTEM INTERFACE ${TROIKA_ARROW_ROOT}/include)
  target_link_libraries(troika_flight_library INTERFACE ${TROIKA_FLIGHT_LIBRARIES} ${_arrow})
else()
  message(STATUS "Requests between processes are left out: ${TROIKA_ARROW_ROOT} has no libarrow_flight")
endif()
# libarrow_s3 is loaded by the plug-in, beside the others, when a table lies in an object store.
file(GLOB TROIKA_ARROW_INSTALLED ${TROIKA_ARROW_ROOT}/lib*.so.*)
