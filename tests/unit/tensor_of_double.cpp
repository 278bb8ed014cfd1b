// Not part of any program: tests/job.cmake checks that it does not compile.

#include <elrun/elrun.hpp>

void program(elrun::Job& job) { (void)job.unit("u").tensor<double>("w", {3}); }
