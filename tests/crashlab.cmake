# The crash laboratory: what a power loss, a failing disk and kill -9 leave behind of checkpoints, on real file systems. README.md has what it needs.
if(TARGET elrun_checkpoint_test_support AND NOT ELRUN_SANITIZE)  # its processes and file systems are the system's; the code is that of checkpoint_property
  elrun_test(crashlab_blocks_test SOURCES crashlab/crashlab_blocks_test.cpp crashlab/block_log.cpp
    LINK elrun_checkpoint_test_support LABELS crashlab TIMEOUT 900)
endif()
