#pragma once
/// \file ELRUN_HD: one functor, compiled for host and device.

#ifdef __CUDACC__
#define ELRUN_HD __host__ __device__
#else
#define ELRUN_HD
#endif
