// A kernel that crashes or never ends is abandoned; the process lives on.
#pragma once
#include <signal.h>

namespace cudasim {

// While one exists, the signals that a kernel can cause are ours.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
};

// An alternate signal stack for the calling thread: a stack overflow leaves no room on its own.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  stack_t previous_;
};

// The signal that the watchdog sends to a worker whose launch is out of time.
int watchdog_signal();

}  // namespace cudasim
