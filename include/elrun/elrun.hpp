#pragma once
/// \file What a training program includes.

#include <elrun/data.hpp>
#include <elrun/job.hpp>
#include <elrun/loader.hpp>
#include <elrun/process_group.hpp>
#include <elrun/session.hpp>
#include <elrun/store.hpp>
