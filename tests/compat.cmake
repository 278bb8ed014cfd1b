# What torchrun does (or should do), a case per statement: `ctest -L compat`. Each file holds one section of the list.
foreach(section command_line environment logs failure signals rendezvous side)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/compat/${section}_test.cpp)
    elrun_test(compat_${section}_test SOURCES compat/${section}_test.cpp LABELS process compat grpc TIMEOUT 600)
    if(TARGET compat_${section}_test)
      add_dependencies(compat_${section}_test elrun_launcher)
    endif()
  endif()
endforeach()
