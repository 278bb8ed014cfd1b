# Kubernetes manifests of the tree and of its documents, without a cluster. The API schemas are no part of the tree: without them these are skipped.
if(ELRUN_PYTHON3 AND TARGET elrun_launcher AND NOT ELRUN_SANITIZE)
  set(schemas $ENV{ELRUN_K8S_SCHEMAS})
  if(NOT schemas)
    set(schemas ${PROJECT_SOURCE_DIR}/../shared/k8s-schemas)
  endif()
  # The system's own Python has the system's packages; another one that comes first on PATH may not.
  find_program(ELRUN_SYSTEM_PYTHON3 python3 PATHS /usr/bin NO_DEFAULT_PATH)
  set(python ${ELRUN_PYTHON3})
  if(ELRUN_SYSTEM_PYTHON3)
    set(python ${ELRUN_SYSTEM_PYTHON3})
  endif()
  set(check ${python} -B ${CMAKE_CURRENT_SOURCE_DIR}/manifests/check.py --schemas ${schemas} --elrun $<TARGET_FILE:elrun_launcher> --tree ${PROJECT_SOURCE_DIR})
  add_test(NAME manifests_test COMMAND ${check})
  add_test(NAME manifests_planted_test COMMAND ${check} --planted)
  add_test(NAME manifests_embedded_test COMMAND ${check} --embedded)
  set_tests_properties(manifests_test manifests_planted_test manifests_embedded_test PROPERTIES LABELS "manifests;tidy" TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()

# The Dockerfile, without a container engine: its form, and that its files and its cmake line go together. That the program is static: static_test.
if(ELRUN_PYTHON3 AND NOT ELRUN_SANITIZE)
  add_test(NAME image_test COMMAND ${ELRUN_PYTHON3} -B ${CMAKE_CURRENT_SOURCE_DIR}/manifests/image.py --tree ${PROJECT_SOURCE_DIR} --work ${PROJECT_BINARY_DIR}/image-test)
  set_tests_properties(image_test PROPERTIES LABELS "manifests;tidy" TIMEOUT 600)
endif()
