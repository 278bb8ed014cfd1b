# elrun_library(), elrun_executable(), elrun_test(): warnings, sanitizers, labels and aliases in one place.

add_library(elrun_build_flags INTERFACE)
target_include_directories(elrun_build_flags INTERFACE ${PROJECT_SOURCE_DIR})
# elrun's arithmetic is its own, whatever flags the project around it has (-ffast-math, -Ofast, --use_fast_math): the bits are the same in all builds, and a
# NaN is seen. These flags stand behind such a one and take it back. -fno-fast-math is not among them, for it takes back -fno-math-errno as well, nor
# with clang -fno-unsafe-math-optimizations, which asks for exact traps; for the little host code of a .cu they do no harm, and its compiler may be either.
# -ffp-contract=off: a product and a sum stay two roundings, unless the source says fma. As one text each, for CMake drops an option that is there before.
set(exact -ffp-contract=off -fno-finite-math-only -fno-associative-math -fno-reciprocal-math -fsigned-zeros)
list(JOIN exact "," exact_of_nvcc)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND exact -fno-unsafe-math-optimizations)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  list(APPEND exact -fno-approx-func -fdenormal-fp-math=ieee -Xclang -fdenormal-fp-math-f32=ieee)
endif()
list(JOIN exact " " exact_host)
target_compile_options(elrun_build_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers -fvisibility=hidden -fvisibility-inlines-hidden>
  "$<$<COMPILE_LANGUAGE:CXX>:SHELL:${exact_host}>"
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wno-sign-conversion>  # not in g++'s -Wconversion
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${ELRUN_WERROR}>>:-Werror>
  # g++ looks for memory to free when it has 600 MB, not 128 MB: a seventh of the compilation (tests/MEASURED.md). A compiler process takes 1.4 GB at most instead of 1.2.
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=600000>"
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--fmad=false --ftz=false --prec-div=true --prec-sqrt=true -Xcompiler=-fvisibility=hidden,${exact_of_nvcc},-fno-unsafe-math-optimizations>")
# In a project that names no build type nothing would be optimised, and gradients would be added up thirty times slower.
if(NOT PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND NOT CMAKE_CXX_FLAGS MATCHES "(^| )-O")
  message(STATUS "elrun: compiled with -O3, for this project has no CMAKE_BUILD_TYPE")
  target_compile_options(elrun_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX,CUDA>:-O3>)
endif()
if(ELRUN_SANITIZE STREQUAL "address")
  # g++ 12 takes some of the checks it plants for reads of what was never written: -Wno-maybe-uninitialized here only.
  # Without vptr: that check opens a pipe, and takes every object for a wrong one in a process without a free descriptor,
  # which is what some tests are about.
  target_compile_options(elrun_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1 $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>>)
  if(NOT ELRUN_SANITIZE_ALL)  # a third of the compilation; what they find, the address sanitizer or the processor finds where it does harm
    target_compile_options(elrun_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,alignment,object-size,pointer-overflow>)
  endif()
  target_link_options(elrun_build_flags INTERFACE -fsanitize=address,undefined)
elseif(ELRUN_SANITIZE STREQUAL "thread")
  # The sanitizer does not understand fences. Asio's stand beside its locks, which order the same accesses.
  target_compile_definitions(elrun_build_flags INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  target_compile_options(elrun_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=thread -fno-omit-frame-pointer -g1 $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>>)
  target_link_options(elrun_build_flags INTERFACE -fsanitize=thread)
endif()
if(ELRUN_LIBFUZZER)  # without this the fuzzers would not see which ways through elrun's own code an input takes
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "ELRUN_LIBFUZZER=ON needs clang: -DCMAKE_CXX_COMPILER=clang++-16")
  endif()
  target_compile_options(elrun_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# A shared library has no undefined names, but those of a sanitizer's runtime, which comes with the program: clang links none into a library. A project
# around this one has its sanitizer in flags.
set(ELRUN_NO_UNDEFINED LINKER:-z,defs)
string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
get_directory_property(compile_options COMPILE_OPTIONS)
get_directory_property(link_options LINK_OPTIONS)
if(ELRUN_SANITIZE OR "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${config}} ${CMAKE_SHARED_LINKER_FLAGS} ${compile_options} ${link_options}" MATCHES "-fsanitize=")
  set(ELRUN_NO_UNDEFINED "")
endif()

# elrun_library(name SOURCES a.cpp ... [SIMULATED b.cpp ...] [ON_DEVICES c.cpp ...] PUBLIC elrun::x PRIVATE y): static library elrun_<name>, alias
# elrun::<name>. SIMULATED and ON_DEVICES name further sources, of which there are copies with planted bugs: the simulator's
# (tests/sim.cmake), those of what a job does with devices, and those of calls of NCCL (tests/fakegpu/planted).
# PRECOMPILED std|asio|grpc: the headers that need not be parsed for each source (Precompiled.cmake), and the sources are compiled several at a time.
function(elrun_library name)
  cmake_parse_arguments(ARG "" "PRECOMPILED" "SOURCES;SIMULATED;ON_DEVICES;PUBLIC;PRIVATE" ${ARGN})
  add_library(elrun_${name} STATIC ${ARG_SOURCES} ${ARG_SIMULATED} ${ARG_ON_DEVICES})
  list(TRANSFORM ARG_SIMULATED PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(TRANSFORM ARG_ON_DEVICES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_target_properties(elrun_${name} PROPERTIES ELRUN_SIMULATED "${ARG_SIMULATED}" ELRUN_ON_DEVICES "${ARG_ON_DEVICES}")
  add_library(elrun::${name} ALIAS elrun_${name})
  target_include_directories(elrun_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
  target_link_libraries(elrun_${name} PUBLIC ${ARG_PUBLIC} PRIVATE $<BUILD_INTERFACE:elrun_build_flags> ${ARG_PRIVATE})
  if(ARG_PRECOMPILED)
    elrun_precompiled(elrun_${name} ${ARG_PRECOMPILED})
    # A program that links copies in place of the sources of one group still links the others from this archive.
    elrun_unit_group(elrun_${name} product ${ARG_SOURCES})
    elrun_unit_group(elrun_${name} simulated ${ARG_SIMULATED})
    elrun_unit_group(elrun_${name} devices ${ARG_ON_DEVICES})
  endif()
endfunction()

# elrun_control_plane(targets...): their code waits far more than it computes. With -O1 instead of -O3 it takes g++ two thirds of the time to
# compile (tests/MEASURED.md has that, and what it costs at run time). There g++ 12 takes moved-from variants for reads of what was never written.
function(elrun_control_plane)
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-O1;-Wno-maybe-uninitialized>)
  endforeach()
endfunction()

# elrun_executable(name SOURCES ... LINK ...): a program in build/bin.
function(elrun_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:elrun_build_flags> ${ARG_LINK})
endfunction()

include(Precompiled)

# A time-out ends a test that hangs, and none that waits for a processor: 60 s and 25 times the processor seconds that the test takes
# alone, for machines with a load of 25, and never less than this.
set(ELRUN_TEST_TIMEOUT_MIN 300)

# elrun_test(name SOURCES ... LINK ... LABELS unit [PROGRAM program] [TIMEOUT seconds] [ARGUMENTS ...]): a Catch2 program under build/tests, one ctest
# entry. With PROGRAM the cases become part of a program that several tests share, for each program costs a link and each source the reading of
# the precompiled headers; the entry runs the cases of its own sources. `ninja name` builds it, and `ctest -R name` runs it, with and without.
function(elrun_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PROGRAM" "SOURCES;LINK;LABELS;ARGUMENTS" ${ARGN})
  if("elrun::rendezvous_net" IN_LIST ARG_LINK)
    list(APPEND ARG_LABELS grpc)
  endif()
  if(ELRUN_SANITIZE STREQUAL "thread" AND "grpc" IN_LIST ARG_LABELS)
    return()  # the system's gRPC is not compiled for it: every report would be about that
  endif()
  set(with_threads ${ARG_LINK})
  list(FILTER with_threads EXCLUDE REGEX "_core$|^elrun::kernels$|^elrun_checkpoint_test_support$|^nlohmann_json::nlohmann_json$|^fmt::fmt$")
  set(beside_cores ${ARG_LINK})
  list(FILTER beside_cores EXCLUDE REGEX "_core$|^fmt::fmt$")
  # Values in, values out. With address, seeds and hostile bytes go on going through the same cores: properties and fuzzers.
  if(ARG_LINK AND ((ELRUN_THREADED_CODE_ONLY AND NOT with_threads)
     OR (NOT beside_cores AND "unit" IN_LIST ARG_LABELS AND ELRUN_SANITIZE AND NOT ELRUN_SANITIZE_ALL)))
    return()
  endif()
  set(program ${name})
  if(ARG_PROGRAM)
    set(program ${ARG_PROGRAM})
    set(cases "")
    foreach(source ${ARG_SOURCES})
      cmake_path(GET source STEM file)
      list(APPEND cases "[#${file}]${ARG_ARGUMENTS}")
    endforeach()
    list(JOIN cases "," cases)
    set(ARG_ARGUMENTS -\# ${cases})
  endif()
  if(TARGET ${program})
    target_sources(${program} PRIVATE ${ARG_SOURCES})
    target_link_libraries(${program} PRIVATE ${ARG_LINK})
    elrun_in_units(${program})
  else()
    add_executable(${program} ${ARG_SOURCES})
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_link_libraries(${program} PRIVATE $<BUILD_INTERFACE:elrun_build_flags> elrun_test_support ${ARG_LINK})
    elrun_checks(${program})
    if("property" IN_LIST ARG_LABELS)
      target_compile_options(${program} PRIVATE ${ELRUN_QUICK_TO_RUN})
    endif()
  endif()
  if(ARG_PROGRAM)
    add_custom_target(${name} DEPENDS ${program})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT ${ELRUN_TEST_TIMEOUT_MIN})
  elseif(ARG_TIMEOUT LESS ELRUN_TEST_TIMEOUT_MIN)
    message(FATAL_ERROR "${name}: a time-out of ${ARG_TIMEOUT} s is shorter than ${ELRUN_TEST_TIMEOUT_MIN} s, which a busy machine needs")
  endif()
  add_test(NAME ${name} COMMAND ${program} ${ARG_ARGUMENTS})
  # Skipped is only what said why and checked nothing: a failure beside a skipped case stays a failure.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    SKIP_REGULAR_EXPRESSION "SKIPPED:.*assertions: - none -" FAIL_REGULAR_EXPRESSION "No test cases matched|No tests ran"
    ENVIRONMENT "ELRUN_BIN=${PROJECT_BINARY_DIR}/bin;ELRUN_SOURCE=${PROJECT_SOURCE_DIR};ELRUN_TEST_TIME_FACTOR=${ELRUN_TEST_TIME_FACTOR}")
endfunction()

# elrun_test_part(name test arguments...): other cases of a test that has a program of its own, beside it, so that they wait side by side. Its labels and time-out are the test's.
function(elrun_test_part name test)
  if(NOT TARGET ${test})
    return()
  endif()
  add_test(NAME ${name} COMMAND ${test} ${ARGN})
  foreach(property LABELS TIMEOUT SKIP_REGULAR_EXPRESSION ENVIRONMENT)
    get_test_property(${test} ${property} value)
    set_tests_properties(${name} PROPERTIES ${property} "${value}")
  endforeach()
endfunction()

# elrun_fuzzer(name LINK ...): fuzz/<name>.cpp has LLVMFuzzerTestOneInput and fuzz_examples. With ELRUN_LIBFUZZER it is
# a fuzzer, built by the target `fuzzers`; otherwise a test that feeds it mutations of its examples by seed.
function(elrun_fuzzer name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  if(ELRUN_THREADED_CODE_ONLY)
    return()
  endif()
  set(labels fuzz)
  if("elrun::rendezvous_net" IN_LIST ARG_LINK)
    list(APPEND labels grpc)
    if(ELRUN_SANITIZE STREQUAL "thread")
      return()
    endif()
  endif()
  if(ELRUN_LIBFUZZER)
    elrun_executable(${name} SOURCES fuzz/${name}.cpp fuzz/corpus.cpp LINK ${ARG_LINK})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    if(NOT TARGET fuzzers)
      add_custom_target(fuzzers)
    endif()
    add_dependencies(fuzzers ${name})
  else()
    if(NOT TARGET elrun_fuzz_driver)
      elrun_library(fuzz_driver SOURCES fuzz/driver.cpp PUBLIC elrun::base)
      elrun_checks(elrun_fuzz_driver)
    endif()
    elrun_executable(${name} SOURCES fuzz/${name}.cpp LINK elrun::fuzz_driver ${ARG_LINK})
    elrun_checks(${name})
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${ELRUN_TEST_TIMEOUT_MIN})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endfunction()

# elrun_bench(name SOURCES ... LINK ...): a program under build/bench that prints one line per question. The target
# `bench` runs them all; ctest knows nothing of them, for a number is neither passed nor failed.
function(elrun_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:elrun_build_flags> ${ARG_LINK})
  if(NOT TARGET bench)
    add_custom_target(bench)
  endif()
  add_custom_target(run_${name} USES_TERMINAL DEPENDS ${name}
    COMMAND ${CMAKE_COMMAND} -E env ELRUN_BIN=${PROJECT_BINARY_DIR}/bin $<TARGET_FILE:${name}>)
  foreach(program elrun_launcher elrun_static gpt)  # what a benchmark starts
    if(TARGET ${program})
      add_dependencies(run_${name} ${program})
    endif()
  endforeach()
  add_dependencies(bench run_${name})
endfunction()
