// A kernel that crashes or never ends is abandoned; the process lives on.
#pragma once

namespace cudasim {

// While one exists, the signals that a kernel can cause are ours.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
};

// An alternate signal stack for the calling worker: a stack overflow leaves no room on its own.
void use_signal_stack();

// The signal that the watchdog sends to a worker whose launch is out of time.
int watchdog_signal();

}  // namespace cudasim
