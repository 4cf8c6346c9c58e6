# Run by `cmake --install`: copies the public headers, which are all of the library's that do not call themselves
# Internal in their opening comment (scripts/check_layers.py sees to it that no public header includes one that does).
# bench/, simulate/ and cli/ belong to the command.
file(GLOB_RECURSE _headers RELATIVE ${TROIKA_HEADERS} ${TROIKA_HEADERS}/*.h ${TROIKA_HEADERS}/troika*.f90)
list(FILTER _headers EXCLUDE REGEX "^(bench|simulate|cli)/")
foreach(_header IN LISTS _headers)
  file(READ ${TROIKA_HEADERS}/${_header} _text)
  string(REGEX REPLACE "#pragma once.*" "" _opening "${_text}")
  if(NOT _opening MATCHES "(^|[^A-Za-z])Internal([^A-Za-z]|$)" OR _header MATCHES "\\.f90$")
    get_filename_component(_folder ${_header} DIRECTORY)
    file(INSTALL ${TROIKA_HEADERS}/${_header} DESTINATION ${TROIKA_INCLUDE_FOLDER}/troika/${_folder})
  endif()
endforeach()
