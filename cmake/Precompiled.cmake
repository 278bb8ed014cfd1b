# Precompiled headers: those of std, fmt, Asio, gRPC and Catch2, which no change of elrun touches. Parsing them was half of the build. With
# g++ alone: the build with clang of `tests/run.sh --full` shows that every source still includes what it uses.
set(headers <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cmath> <compare> <condition_variable> <cstddef> <cstdint> <cstdio> <cstdlib>
  <cstring> <deque> <filesystem> <fstream> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <stdexcept>
  <string> <string_view> <thread> <tuple> <type_traits> <utility> <variant> <vector> <fmt/format.h>)

# For code that only checks: the optimizer would take longer over it than its runs take. To compile with -O1 takes a third longer than with -Og.
# There g++ 12 takes moved-from variants for reads of what was never written.
set(ELRUN_QUICK_TO_COMPILE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Og> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
# For code that only checks, and runs for long.
set(ELRUN_QUICK_TO_RUN $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-O1>)

# gold links a test in half the time of the linker that g++ calls by itself (tests/MEASURED.md). What is installed is linked by that one.
find_program(ELRUN_GOLD ld.gold)
mark_as_advanced(ELRUN_GOLD)

# In precompiled headers g++ 12 forgets where its library asked for silence, and complains of its own std::string.
set(ELRUN_PRECOMPILED_WARNINGS
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-stringop-overflow> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-stringop-overread>)

# elrun_precompiled_set(name LINK ... HEADERS ...): the object library elrun_precompiled_<name>, from which targets take the headers.
function(elrun_precompiled_set name)
  cmake_parse_arguments(ARG "" "" "LINK;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT precompiled_${name}.cpp CONTENT "")
  add_library(elrun_precompiled_${name} OBJECT EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/precompiled_${name}.cpp)
  target_link_libraries(elrun_precompiled_${name} PRIVATE elrun_build_flags fmt::fmt ${ARG_LINK})
  target_precompile_headers(elrun_precompiled_${name} PRIVATE ${ARG_HEADERS})
endfunction()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(asio <boost/asio/buffer.hpp> <boost/asio/error.hpp> <boost/asio/executor_work_guard.hpp> <boost/asio/generic/stream_protocol.hpp>
    <boost/asio/io_context.hpp> <boost/asio/ip/tcp.hpp> <boost/asio/posix/stream_descriptor.hpp> <boost/asio/post.hpp> <boost/asio/read.hpp>
    <boost/asio/signal_set.hpp> <boost/asio/steady_timer.hpp> <boost/asio/write.hpp>)
  elrun_precompiled_set(std HEADERS ${headers})
  elrun_precompiled_set(asio LINK Boost::headers HEADERS ${headers} ${asio})
  elrun_precompiled_set(grpc LINK Boost::headers gRPC::grpc++ HEADERS ${headers} ${asio} <grpcpp/grpcpp.h>)
endif()

# Units: g++ compiles sources of one target together, for most of its time goes into headers and templates that they share (tests/MEASURED.md).
# So names in unnamed namespaces of one target differ. A source with the property SKIP_UNITY_BUILD_INCLUSION is compiled by itself, and
# with -DCMAKE_UNITY_BUILD=OFF every source is.
set(ELRUN_UNIT_SIZE 12)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND (NOT DEFINED CMAKE_UNITY_BUILD OR CMAKE_UNITY_BUILD))
  set(ELRUN_UNITS TRUE)
endif()

# elrun_in_units(target): all its sources, as they come.
function(elrun_in_units target)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "^[^$]*[.]cpp$")
  list(LENGTH sources count)
  if(ELRUN_UNITS AND count GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${ELRUN_UNIT_SIZE})
    # g++ takes an included source for a header, and warns of its unnamed namespaces.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

# elrun_unit_group(target group sources...): no unit has sources of two groups.
function(elrun_unit_group target group)
  if(ELRUN_UNITS)
    elrun_in_units(${target})
    set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
    set(at 0)
    foreach(source ${ARGN})
      math(EXPR unit "${at} / ${ELRUN_UNIT_SIZE}")
      math(EXPR at "${at} + 1")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group}_${unit})
    endforeach()
  endif()
endfunction()

# elrun_precompiled(target std|asio|grpc): the product's sources, compiled with the headers of that set.
function(elrun_precompiled target name)
  if(TARGET elrun_precompiled_${name})
    target_precompile_headers(${target} REUSE_FROM elrun_precompiled_${name})
    target_compile_options(${target} PRIVATE ${ELRUN_PRECOMPILED_WARNINGS})
  endif()
endfunction()

# An object or archive that only executables link is compiled as they are: one set of precompiled headers serves them all.
function(elrun_for_programs target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${CMAKE_CXX_COMPILE_OPTIONS_PIE}>)
endfunction()

if(ELRUN_BUILD_TESTS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  file(CONFIGURE OUTPUT precompiled.cpp CONTENT "")
  add_library(elrun_precompiled OBJECT EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/precompiled.cpp)
  target_link_libraries(elrun_precompiled PRIVATE elrun_build_flags fmt::fmt)
  target_compile_options(elrun_precompiled PRIVATE ${ELRUN_QUICK_TO_COMPILE})
  elrun_for_programs(elrun_precompiled)
  find_package(Catch2 3 CONFIG QUIET)
  if(Catch2_FOUND)  # what tests/support/catch.hpp includes
    target_link_libraries(elrun_precompiled PRIVATE Catch2::Catch2)
    list(APPEND headers <catch2/catch_approx.hpp> <catch2/catch_test_macros.hpp> <catch2/generators/catch_generators_all.hpp>
      <catch2/matchers/catch_matchers_string.hpp>)
  else()
    list(APPEND headers <catch2/catch.hpp>)
  endif()
  target_precompile_headers(elrun_precompiled PRIVATE ${headers})
endif()

# elrun_checks(target): an executable of code that only checks, or what only such executables link. It is compiled quickly.
function(elrun_checks target)
  elrun_in_units(${target})
  target_compile_options(${target} PRIVATE ${ELRUN_QUICK_TO_COMPILE})
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "EXECUTABLE")
    elrun_for_programs(${target})
  elseif(ELRUN_GOLD AND NOT ELRUN_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_link_options(${target} PRIVATE -fuse-ld=gold)
  endif()
  if(TARGET elrun_precompiled)
    target_precompile_headers(${target} REUSE_FROM elrun_precompiled)
  endif()
  target_compile_options(${target} PRIVATE ${ELRUN_PRECOMPILED_WARNINGS})
endfunction()
