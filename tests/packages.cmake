# What `cmake --build build --target package` makes: made and looked at by any user, installed and used in empty roots by root.
if(TARGET elrun AND TARGET elrun_launcher AND NOT ELRUN_SANITIZE AND PROJECT_IS_TOP_LEVEL)
  set(made ${PROJECT_BINARY_DIR}/packages-test)
  add_test(NAME package_make_test COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/packages/make.sh ${PROJECT_BINARY_DIR} ${made})
  add_test(NAME package_roots_test COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/packages/roots.sh ${made} ${PROJECT_BINARY_DIR}/package-roots)
  set_tests_properties(package_make_test PROPERTIES FIXTURES_SETUP packages TIMEOUT 600)
  set_tests_properties(package_roots_test PROPERTIES FIXTURES_REQUIRED packages TIMEOUT 3600)
  set_tests_properties(package_make_test package_roots_test PROPERTIES LABELS packages SKIP_RETURN_CODE 77)
endif()
