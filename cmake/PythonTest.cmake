# troika_python_test(NAME <name> SCRIPT <file> [ARGUMENTS ...] LABELS ... [what else troika_enter takes])
# A test in Python that needs PyTorch, transformers or tensorboard: it runs in the environment that `make test`
# makes (TROIKA_TEST_PYTHON), and without one it is left out, aloud. A file named *_test.py runs under pytest.
function(troika_python_test)
  cmake_parse_arguments(F "" "NAME;SCRIPT" "ARGUMENTS;LABELS" ${ARGN})
  if(NOT TROIKA_TEST_PYTHON)
    message(STATUS "Test ${F_NAME} is left out: it needs TROIKA_TEST_PYTHON, which make test sets")
    return()
  endif()
  get_filename_component(_script ${F_SCRIPT} ABSOLUTE)
  set(_runner)
  if(_script MATCHES "_test\\.py$")
    set(_runner -m pytest -q -p no:cacheprovider)
  endif()
  add_test(NAME ${F_NAME} COMMAND ${TROIKA_TEST_PYTHON} ${_runner} ${_script} ${F_ARGUMENTS})
  troika_enter(${F_NAME} LABELS ${F_LABELS} ${F_UNPARSED_ARGUMENTS})
  set_tests_properties(${F_NAME} PROPERTIES
    ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1;HF_HUB_OFFLINE=1;TOKENIZERS_PARALLELISM=false")
endfunction()
