#pragma once
/// \file What a training program includes.

#include <elrun/job.hpp>
#include <elrun/process_group.hpp>
#include <elrun/session.hpp>
#include <elrun/store.hpp>
