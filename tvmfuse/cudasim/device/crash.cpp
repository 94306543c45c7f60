#include "crash.h"

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "scheduler.h"
#include "settings.h"

namespace cudasim {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGURG};
constexpr int kSignalCount = sizeof kSignals / sizeof kSignals[0];
static struct sigaction previous[kSignalCount];

// SIGURG is ignored by default: one that arrives after the launch does no harm.
int watchdog_signal() { return SIGURG; }

static std::string describe(int signal, const siginfo_t* info, const BlockRunner& runner) {
  char address[32];
  snprintf(address, sizeof address, "%p", info->si_addr);
  switch (signal) {
    case SIGFPE:
      return "integer division by zero";
    case SIGILL:
      return "illegal instruction or unreachable code";
    case SIGURG:
      return "the time budget of " + std::to_string(int(settings().time_budget)) +
             " s is spent: the kernel may never end";
    default:
      if (runner.in_stack_guard(static_cast<const char*>(info->si_addr)))
        return "stack overflow: recursion or too large local arrays";
      return std::string("invalid memory access at ") + address;
  }
}

// Offset behind the instruction that the signal interrupted, if it is one of the kernel's.
static uint64_t interrupted(const void* context, const BlockRunner& runner) {
  const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  auto address = uintptr_t(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  auto address = uintptr_t(machine.pc);
#else
  uintptr_t address = 0;
#endif
  const Variant& code = *runner.launch()->code;
  return code.contains(reinterpret_cast<const void*>(address)) ? address - code.base + 1 : 0;
}

static void handle(int signal, siginfo_t* info, void* context) {
  BlockRunner* runner = BlockRunner::existing();
  bool in_kernel = runner && runner->current();
  if (in_kernel && (signal != SIGURG || runner->critical == 0))
    runner->abandon(describe(signal, info, *runner), interrupted(context, *runner));
  if (signal == SIGURG) return;
  // Not ours: the instruction faults again under the handler that was there before.
  for (int i = 0; i < kSignalCount; ++i)
    if (kSignals[i] == signal) sigaction(signal, &previous[i], nullptr);
}

SignalGuard::SignalGuard() {
  struct sigaction action {};
  action.sa_sigaction = handle;
  // SA_NODEFER: the handler is left by a jump, so the signal must not stay blocked.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &action, &previous[i]);
}

SignalGuard::~SignalGuard() {
  for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

SignalStack::SignalStack() {
  static thread_local char stack[64 << 10];
  stack_t description{};
  description.ss_sp = stack;
  description.ss_size = sizeof stack;
  sigaltstack(&description, &previous_);
}

SignalStack::~SignalStack() { sigaltstack(&previous_, nullptr); }

}  // namespace cudasim
