// How the launches of the current session run; device.py sets it through c_api.cpp.
#pragma once

namespace cudasim {

struct Settings {
  bool check = false;          // report races, bounds, uninitialised reads
  bool trace = false;          // count transactions and bank conflicts
  bool lockstep = false;       // lanes of a warp do each shared access together
  double time_budget = 120.0;  // seconds one launch may take
  int workers = 0;             // threads that run blocks; 0: one per core

  bool instrumented() const { return check || trace || lockstep; }
};

Settings& settings();

}  // namespace cudasim
