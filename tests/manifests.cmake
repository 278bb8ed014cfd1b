# The Dockerfile, without a container engine: its form, and that its files and its cmake line go together. That the program is static: static_test.
if(ELRUN_PYTHON3 AND NOT ELRUN_SANITIZE)
  add_test(NAME image_test COMMAND ${ELRUN_PYTHON3} -B ${CMAKE_CURRENT_SOURCE_DIR}/manifests/image.py --tree ${PROJECT_SOURCE_DIR} --work ${PROJECT_BINARY_DIR}/image-test)
  set_tests_properties(image_test PROPERTIES LABELS "manifests;tidy" TIMEOUT 600)
endif()
