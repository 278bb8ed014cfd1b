# cmake -C cmake/presets/tsan.cmake -S . -B build/tsan -G Ninja
# Data races. What links gRPC is left out: the system's gRPC is not compiled for it, and every report would be about that.
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1" CACHE STRING "")
set(ELRUN_SANITIZE thread CACHE STRING "")
set(ELRUN_WITH_CUDA OFF CACHE STRING "")
set(ELRUN_TEST_TIME_FACTOR 5 CACHE STRING "")
