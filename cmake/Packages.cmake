# cmake --build build --target package: elrun-VERSION-linux-ARCHITECTURE.tar.gz with the static program, and three Debian packages: elrun (the same
# program), libelrun0 and libelrun-dev. None of them needs a package of one release of a distribution, so what is built on Debian 12 installs on later
# ones. What stands here is installed for packages alone (EXCLUDE_FROM_ALL): they have Debian's folders, whatever CMAKE_INSTALL_LIBDIR says.
# libelrun_store is in none of them: it needs the gRPC of one release.

# Of another configuration of this folder: CMake would make the targets package and package_source for them.
file(REMOVE ${PROJECT_BINARY_DIR}/CPackConfig.cmake ${PROJECT_BINARY_DIR}/CPackSourceConfig.cmake)
if(NOT TARGET elrun_launcher OR ELRUN_SANITIZE)
  return()
endif()
if(NOT TARGET elrun_static)  # of the other one a copy runs where the libraries of this system's gRPC are, which no package says
  message(STATUS "elrun: there is no target package, for there is no elrun_static")
  return()
endif()
if(NOT TARGET elrun_texts)
  message(STATUS "elrun: there is no target package, for there is no manual page")
  return()
endif()
set(folder ${PROJECT_BINARY_DIR}/packages)
string(TOLOWER ${CMAKE_SYSTEM_NAME} system)

# --- what is in them: the components archive (the tarball), program, library and development
foreach(component archive program)
  install(PROGRAMS $<TARGET_FILE:elrun_static> DESTINATION bin RENAME elrun COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(FILES ${ELRUN_TEXTS}/elrun.bash DESTINATION share/bash-completion/completions RENAME elrun COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
install(FILES ${ELRUN_TEXTS}/elrun.1 DESTINATION share/man/man1 COMPONENT archive EXCLUDE_FROM_ALL)
install(FILES ${ELRUN_TEXTS}/_elrun DESTINATION share/zsh/site-functions COMPONENT archive EXCLUDE_FROM_ALL)
install(FILES ${ELRUN_TEXTS}/_elrun DESTINATION share/zsh/vendor-completions COMPONENT program EXCLUDE_FROM_ALL)

set(library_directory lib/${CMAKE_LIBRARY_ARCHITECTURE})
set(config_directory ${library_directory}/cmake/elrun)
install(TARGETS elrun LIBRARY DESTINATION ${library_directory} COMPONENT library NAMELINK_COMPONENT development EXCLUDE_FROM_ALL)
install(DIRECTORY include/elrun DESTINATION include COMPONENT development EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.hpp")
configure_file(cmake/packages/elrunTargets.cmake.in ${folder}/elrunTargets.cmake @ONLY)
configure_package_config_file(cmake/elrunConfig.cmake.in ${folder}/elrunConfig.cmake INSTALL_DESTINATION ${config_directory} INSTALL_PREFIX /usr)
install(FILES ${folder}/elrunConfig.cmake ${folder}/elrunTargets.cmake ${PROJECT_BINARY_DIR}/elrunConfigVersion.cmake DESTINATION ${config_directory}
  COMPONENT development EXCLUDE_FROM_ALL)

# The notices of the libraries whose code is in the binaries, as the packages say it from which that code was linked.
function(elrun_notices component destination)
  foreach(package ${ARGN})
    file(GLOB notices /usr/share/doc/${package}/copyright)
    foreach(notice ${notices})
      cmake_path(GET notice PARENT_PATH origin)
      cmake_path(GET origin FILENAME origin)
      install(FILES ${notice} DESTINATION ${destination}/third-party RENAME ${origin}.copyright COMPONENT ${component} EXCLUDE_FROM_ALL)
    endforeach()
  endforeach()
endfunction()
set(carried libfmt-dev libssl-dev zlib1g-dev nlohmann-json3-dev)  # Boost wants none beside object code
set(carried_static ${carried} libgrpc-dev libgrpc++-dev libprotobuf-dev libabsl-dev libc-ares-dev libre2-dev libzstd-dev libc6-dev libstdc++-*-dev)
elrun_notices(archive share/doc/elrun ${carried_static})
elrun_notices(program share/doc/elrun ${carried_static})
elrun_notices(library share/doc/libelrun0 ${carried})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/elrun COMPONENT archive EXCLUDE_FROM_ALL)

# What Debian's policy wants of each package.
set(ELRUN_PACKAGE_MAINTAINER "elrun developers <elrun@packages.invalid>" CACHE STRING "Who made the packages, and is asked about them")
find_program(ELRUN_GZIP gzip)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # SOURCE_DATE_EPOCH, where it is set
file(CONFIGURE OUTPUT ${folder}/changelog CONTENT "elrun (@PROJECT_VERSION@) unstable; urgency=medium

  * CHANGELOG.md of the sources says what is new.

 -- @ELRUN_PACKAGE_MAINTAINER@  @date@
" @ONLY)
if(ELRUN_GZIP)
  execute_process(COMMAND ${ELRUN_GZIP} -9nkf ${folder}/changelog COMMAND_ERROR_IS_FATAL ANY)
  add_custom_command(OUTPUT ${ELRUN_TEXTS}/elrun.1.gz COMMAND ${ELRUN_GZIP} -9nkf ${ELRUN_TEXTS}/elrun.1 DEPENDS ${ELRUN_TEXTS}/elrun.1 VERBATIM)
  add_custom_target(elrun_manual_gz ALL DEPENDS ${ELRUN_TEXTS}/elrun.1.gz)
  add_dependencies(elrun_manual_gz elrun_texts_files)
  install(FILES ${ELRUN_TEXTS}/elrun.1.gz DESTINATION share/man/man1 COMPONENT program EXCLUDE_FROM_ALL)
endif()
foreach(component program library development)
  set(name_program elrun)
  set(name_library libelrun0)
  set(name_development libelrun-dev)
  set(name ${name_${component}})
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/packages/copyright DESTINATION share/doc/${name} COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(FILES ${folder}/changelog.gz DESTINATION share/doc/${name} COMPONENT ${component} EXCLUDE_FROM_ALL)
  if(EXISTS ${PROJECT_SOURCE_DIR}/cmake/packages/${name}.lintian-overrides)
    install(FILES ${PROJECT_SOURCE_DIR}/cmake/packages/${name}.lintian-overrides DESTINATION share/lintian/overrides RENAME ${name}
      COMPONENT ${component} EXCLUDE_FROM_ALL)
  endif()
endforeach()

# --- how they are packed
set(CPACK_PACKAGE_NAME elrun)
set(CPACK_PACKAGE_VENDOR elrun)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGE_FILE_NAME elrun-${PROJECT_VERSION}-${system}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_ARCHIVE_ARCHIVE_FILE_NAME ${CPACK_PACKAGE_FILE_NAME})
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL archive program library development)  # of which cmake/packages/each.cmake chooses
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/packages/each.cmake)
set(CPACK_POST_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/packages/tarball.cmake)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)

set(CPACK_GENERATOR "")
find_program(ELRUN_TAR tar)
mark_as_advanced(ELRUN_TAR)
execute_process(COMMAND ${ELRUN_TAR} --version RESULT_VARIABLE ignored OUTPUT_VARIABLE tar ERROR_QUIET)
if(ELRUN_GZIP AND tar MATCHES "GNU tar")
  list(APPEND CPACK_GENERATOR TGZ)
else()
  message(STATUS "elrun: the target package makes no tarball: it needs GNU tar and gzip")
endif()
find_program(ELRUN_SHLIBDEPS dpkg-shlibdeps)
find_program(ELRUN_FILE file)
mark_as_advanced(ELRUN_SHLIBDEPS ELRUN_FILE ELRUN_GZIP)
if(ELRUN_SHLIBDEPS AND ELRUN_FILE AND ELRUN_GZIP AND ELRUN_ARCHIVES_FIT AND CMAKE_LIBRARY_ARCHITECTURE)
  list(APPEND CPACK_GENERATOR DEB)
else()
  message(STATUS "elrun: the target package makes no Debian packages: they need dpkg-dev, file, gzip, and archives of OpenSSL and zlib")
endif()
if(NOT CPACK_GENERATOR)  # cpack would take that for its own default: three archives of everything
  message(STATUS "elrun: there is no target package")
  return()
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${ELRUN_PACKAGE_MAINTAINER})
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME elrun)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "elastic launcher for distributed training
Starts the workers of a training job on each node, in place of torchrun, and
keeps the job going when processes, nodes or pods are lost: the survivors go
on, and what comes back joins them. The rendezvous is part of the program.
.
One static file, which needs no other package.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libelrun0)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/packages/triggers)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "elastic runtime for distributed training - shared library
Sharded data parallelism whose result does not depend on the number of workers
or on failures, checkpoints, and collectives between workers that name the
lost rank. Programs that were linked with libelrun need this package.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libelrun-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libelrun0 (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "elastic runtime for distributed training - development files
Headers of libelrun, and what CMake's find_package(elrun) reads. The programs
are started by elrun, which is a package of its own.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS elrun)
include(CPack)
