# Every option of the build, and the system's packages. Nothing is vendored, nothing is downloaded.

# In another project (add_subdirectory, FetchContent) elrun is the library and the launcher.
option(ELRUN_BUILD_TESTS "Build the tests and benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(ELRUN_BUILD_SAMPLES "Build the samples; the tests need them" ${PROJECT_IS_TOP_LEVEL})
option(ELRUN_WERROR "Treat warnings as errors: CI does, presets do not, for each compiler has warnings of its own" OFF)
set(ELRUN_WITH_CUDA AUTO CACHE STRING "Build the device code: AUTO (when nvcc is found), ON or OFF")
set(ELRUN_CUDART static CACHE STRING "The CUDA runtime that libelrun links: static, as in releases, or shared (libcudart.so.13 is then found at run time)")
set(ELRUN_SANITIZE "" CACHE STRING "address (with undefined), thread, or empty")
option(ELRUN_SANITIZE_ALL "Under a sanitizer: also what it can hardly say anything new about. tests/README.md has the list; tests/run.sh --full turns it on" OFF)
option(ELRUN_LIBFUZZER "Build the fuzzers with libFuzzer (clang); otherwise they are tests that run for a moment" OFF)
set(ELRUN_TEST_TIME_FACTOR 1 CACHE STRING "Multiplies every test's time-out and long waits: sanitizers and long campaigns need it")
set_property(CACHE ELRUN_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
set_property(CACHE ELRUN_SANITIZE PROPERTY STRINGS "" address thread)
set_property(CACHE ELRUN_CUDART PROPERTY STRINGS static shared)
include(OptionValues)
elrun_one_of(ELRUN_WITH_CUDA AUTO ON OFF)
elrun_one_of(ELRUN_SANITIZE "" address thread)
elrun_one_of(ELRUN_CUDART static shared)
# Under the thread sanitizer only code with threads is built. Cores have none. Those of the launcher and the rendezvous are gRPC's, which this
# sanitizer does not know, but for a few that write, look up names and watch connections.
if(ELRUN_SANITIZE STREQUAL "thread" AND NOT ELRUN_SANITIZE_ALL)
  set(ELRUN_THREADED_CODE_ONLY TRUE)
endif()

if(NOT CMAKE_BUILD_TYPE AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(ELRUN_TEXTS ${PROJECT_BINARY_DIR}/launcher/texts)  # the manual page and the completions
find_program(ELRUN_CCACHE ccache)
mark_as_advanced(ELRUN_CCACHE)
include(CompilerCache)
elrun_cache_works(ccache_works)
if(ccache_works AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)  # who names a launcher, or a project around this one that does, gets it
  # Precompiled headers come from the cache, and so does what was compiled with them (the sloppiness). What a source includes is known
  # from the compiler's list of dependencies, so nothing is preprocessed to look it up (DEPEND).
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 ${ELRUN_CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(Boost 1.74 REQUIRED)           # headers alone: Asio and Beast
find_package(fmt 9 REQUIRED)
find_package(OpenSSL 3 REQUIRED)            # SHA-256, HMAC
find_package(ZLIB REQUIRED)                # idx files that are packed
find_package(nlohmann_json 3.11 REQUIRED)
find_package(Protobuf CONFIG QUIET)
if(NOT Protobuf_FOUND)
  find_package(Protobuf REQUIRED)           # Debian's package has no CMake configuration of its own
endif()
find_package(gRPC CONFIG REQUIRED)

if(NOT ELRUN_WITH_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(PROJECT_IS_TOP_LEVEL)
      set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "Device architectures")
    endif()
    set(named "$ENV{CUDAARCHS}${CMAKE_CUDA_ARCHITECTURES}")
    enable_language(CUDA)
    # In another project that names no architectures CMake has now put the compiler's choice into the cache, which that project gets. elrun's default is
    # for elrun alone, also when the project is configured again.
    if(NOT named)
      set(ELRUN_CUDA_UNNAMED "${CMAKE_CUDA_ARCHITECTURES}" CACHE INTERNAL "The architectures that CMake chose, for nobody had named any")
    endif()
    if("${CMAKE_CUDA_ARCHITECTURES}" STREQUAL "${ELRUN_CUDA_UNNAMED}")
      set(CMAKE_CUDA_ARCHITECTURES 90)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    if(ELRUN_CCACHE AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${ELRUN_CCACHE})
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # elrun::cudart below is linked by name
    find_package(CUDAToolkit REQUIRED)
    find_package(NCCL 2.26)
    set(ELRUN_CUDA TRUE)
  elseif(ELRUN_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ELRUN_WITH_CUDA=ON, but no CUDA compiler was found. Put nvcc on PATH, or set CUDACXX, or use ELRUN_WITH_CUDA=OFF.")
  endif()
endif()
# elrun::cudart: the CUDA runtime of whoever links it. A target with the property ELRUN_FAKE_DEVICES gets the fake one of tests/fakegpu, for
# the same objects.
add_library(elrun_cudart INTERFACE)
add_library(elrun::cudart ALIAS elrun_cudart)
if(ELRUN_CUDA)
  target_include_directories(elrun_cudart SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(elrun_cudart INTERFACE
    $<IF:$<BOOL:$<TARGET_PROPERTY:ELRUN_FAKE_DEVICES>>,elrun_fakegpu,$<IF:$<STREQUAL:${ELRUN_CUDART},shared>,CUDA::cudart,CUDA::cudart_static>>)
endif()
if(ELRUN_CUDA)
  message(STATUS "elrun: device code for sm_${CMAKE_CUDA_ARCHITECTURES}, by nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
else()
  message(STATUS "elrun: no device code; host loops do the kernels' work")
endif()
