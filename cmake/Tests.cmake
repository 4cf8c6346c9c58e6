# How tests are entered with ctest: which slots they take, in which order they start, which ones `make test` leaves
# to `make test-all`.
#
# `make test` runs two slots a core. A test that computes takes two of them (the default), one that mostly waits for
# deadlines, daemons or other processes takes one (WAITS). The longest start first: tests/budget.json, which also says
# when a test has become too slow (scripts/check_budget.py), holds the seconds of each.
#
# A test with SLICE 0 to 7 is slow: `make test` leaves it out, and of the eight slices each landing runs one.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/budget.json)
file(READ ${PROJECT_SOURCE_DIR}/tests/budget.json TROIKA_TEST_BUDGET)

# troika_enter(<test> LABELS ... [TIMEOUT seconds] [WAITS] [SLICE n])
function(troika_enter test)
  cmake_parse_arguments(F "WAITS" "TIMEOUT;SLICE" "LABELS" ${ARGN})
  if(NOT F_TIMEOUT)
    set(F_TIMEOUT 600)
  endif()
  set(_slots 2)
  if(F_WAITS)
    set(_slots 1)
  endif()
  if(DEFINED F_SLICE)
    list(APPEND F_LABELS slow slice-${F_SLICE})
  endif()
  string(JSON _seconds ERROR_VARIABLE _unknown GET "${TROIKA_TEST_BUDGET}" ${test})
  if(_unknown)
    set(_seconds 1)
  endif()
  set_tests_properties(${test} PROPERTIES
    LABELS "${F_LABELS}" TIMEOUT ${F_TIMEOUT} PROCESSORS ${_slots} COST ${_seconds})
endfunction()

# troika_suites(<program> NAME <test> FILTERS <pattern> ... LABELS ... [what else troika_enter takes])
# One entry, and one process, for all tests of a GoogleTest program whose names match: to load LibTorch takes half
# a second, far longer than most tests. troika_other_suites() has the rest of the program's.
function(troika_suites program)
  cmake_parse_arguments(F "" "NAME" "FILTERS;LABELS" ${ARGN})
  list(JOIN F_FILTERS ":" _filter)
  set_property(TARGET ${program} APPEND PROPERTY TROIKA_FILTERS ${F_FILTERS})
  add_test(NAME ${F_NAME} COMMAND ${program} --gtest_filter=${_filter})
  troika_enter(${F_NAME} LABELS ${F_LABELS} ${F_UNPARSED_ARGUMENTS})
endfunction()

function(troika_other_suites program)
  get_target_property(_filters ${program} TROIKA_FILTERS)
  list(JOIN _filters ":" _entered)
  cmake_parse_arguments(F "" "NAME" "LABELS" ${ARGN})
  add_test(NAME ${F_NAME} COMMAND ${program} "--gtest_filter=*-${_entered}")
  troika_enter(${F_NAME} LABELS ${F_LABELS} ${F_UNPARSED_ARGUMENTS})
endfunction()
