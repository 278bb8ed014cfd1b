# cmake -DBUILD=... -DSOURCE=... -DWORK=... -DGENERATOR=... -DCOMPILER=... -P run.cmake: installs the build, builds the consumer against
# it with the build's own tools (cmake's first choice, make, may not be there), runs it bare.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_file path)
  file(GLOB found ${WORK}/prefix/${path})
  if(NOT found)
    message(FATAL_ERROR "nothing was installed as ${path}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
expect_file(bin/elrun)
expect_file(lib*/libelrun.so.0)
expect_file(include/elrun/elrun.hpp)
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE}/tests/install -B ${WORK}/build -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${WORK}/build)
# Bare, whatever the caller's environment says.
run(${CMAKE_COMMAND} -E env --unset=RANK --unset=WORLD_SIZE --unset=MASTER_ADDR --unset=MASTER_PORT --unset=ELRUN_SOCKET
  ${WORK}/build/consumer)
if(NOT output MATCHES "w = (2.9|3.0)")
  message(FATAL_ERROR "the consumer printed:\n${output}")
endif()
message(STATUS "installed, built against, and run: ${output}")

# The component `store`, against a store of its own.
expect_file(lib*/libelrun_store.so.0)
run(sh ${SOURCE}/tests/install/store.sh ${WORK}/prefix/bin/elrun ${WORK}/build/store_consumer ${WORK}/store.log)
if(NOT output MATCHES "n = 42")
  message(FATAL_ERROR "the store's consumer printed:\n${output}")
endif()
message(STATUS "the store's client: ${output}")
