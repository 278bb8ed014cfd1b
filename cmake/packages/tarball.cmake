# Read by cpack behind each kind of package, with CPACK_PACKAGE_FILES: the tarball is written again, without its builder. cpack puts in the builder's ids,
# and the folders with them. Whoever unpacks it as root would give /usr/local/bin and what is in it to the user who has that id on his machine.
# Here all is root's, and there are files alone: folders that exist stay as they are.
cmake_minimum_required(VERSION 3.25)
find_program(ELRUN_TAR tar REQUIRED)  # GNU's: cmake/Packages.cmake has looked
set(times "")
if(DEFINED ENV{SOURCE_DATE_EPOCH})
  set(times --mtime=@$ENV{SOURCE_DATE_EPOCH})
endif()
foreach(tarball ${CPACK_PACKAGE_FILES})
  if(tarball MATCHES "[.]tar[.]gz$")
    set(folder ${tarball}.files)
    file(REMOVE_RECURSE ${folder})
    file(MAKE_DIRECTORY ${folder})
    execute_process(COMMAND ${ELRUN_TAR} -xzpf ${tarball} -C ${folder} COMMAND_ERROR_IS_FATAL ANY)
    file(GLOB_RECURSE files LIST_DIRECTORIES FALSE RELATIVE ${folder} ${folder}/*)  # in the order of their names
    execute_process(COMMAND ${ELRUN_TAR} -I "gzip -9n" -cf ${tarball} -C ${folder} --owner=0 --group=0 --numeric-owner ${times} ${files} COMMAND_ERROR_IS_FATAL ANY)
    file(REMOVE_RECURSE ${folder})
  endif()
endforeach()
