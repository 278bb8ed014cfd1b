# The faces of libelrun and libelrun_store to the outside, and what `cmake --install` puts where: bin/elrun, lib/libelrun.so*, include/elrun, and
# what find_package(elrun) reads. Internal static libraries are linked into libelrun and never exported.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(TARGET elrun)
  # The soname's number is that of the inline namespace (v0): both change when the ABI does.
  set_target_properties(elrun PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION 0 EXPORT_NAME elrun
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/libelrun.map)
  target_link_options(elrun PRIVATE
    LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/libelrun.map ${ELRUN_NO_UNDEFINED})
  install(TARGETS elrun EXPORT elrunTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY include/elrun DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
  set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/elrun)
  install(EXPORT elrunTargets NAMESPACE elrun:: DESTINATION ${package_directory})
  if(TARGET elrun_store)  # the component `store`, for programs that are no workers: it needs the system's gRPC
    set_target_properties(elrun_store PROPERTIES
      VERSION ${PROJECT_VERSION} SOVERSION 0 EXPORT_NAME store
      LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/libelrun_store.map)
    target_link_options(elrun_store PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/libelrun_store.map
      LINKER:--gc-sections LINKER:--as-needed ${ELRUN_NO_UNDEFINED})
    install(TARGETS elrun_store EXPORT elrunStoreTargets
      LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    install(EXPORT elrunStoreTargets NAMESPACE elrun:: DESTINATION ${package_directory})
  endif()
  configure_package_config_file(cmake/elrunConfig.cmake.in ${PROJECT_BINARY_DIR}/elrunConfig.cmake
    INSTALL_DESTINATION ${package_directory})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/elrunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/elrunConfig.cmake ${PROJECT_BINARY_DIR}/elrunConfigVersion.cmake
    DESTINATION ${package_directory})
endif()
