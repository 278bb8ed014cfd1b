# cmake -C cmake/presets/release.cmake -S . -B build -G Ninja
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
