# cmake -C cmake/presets/asan.cmake -S . -B build/asan -G Ninja
# Address and undefined behaviour. -O1: fast enough to run everything, and its stacks can be read.
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1" CACHE STRING "")
set(ELRUN_SANITIZE address CACHE STRING "")
set(ELRUN_WITH_CUDA OFF CACHE STRING "")
set(ELRUN_TEST_TIME_FACTOR 5 CACHE STRING "")
