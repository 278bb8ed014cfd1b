# cmake -C cmake/presets/no-cuda.cmake -S . -B build/no-cuda -G Ninja
# As on a machine without nvcc: host loops do the kernels' work.
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(ELRUN_WITH_CUDA OFF CACHE STRING "")
