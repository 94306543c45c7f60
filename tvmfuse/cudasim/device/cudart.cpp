// Stand-in for libcudart.so.13: the functions of the runtime API that TVM's CUDA runtime calls.
//
// Launches are synchronous, so streams and events have nothing to do. Declared here from NVIDIA's
// public documentation, so that no CUDA header is needed.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "c_api.h"

namespace {

using Error = int;
constexpr Error kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101,
                kNotSupported = 801;
constexpr size_t kMemory = size_t(80) << 30;

// cudaDeviceProp of CUDA 13: the fields that TVM reads, at their places.
struct DeviceProperties {
  char name[256];
  char ids[32];
  size_t total_memory;          // 288
  size_t shared_per_block;      // 296
  int registers_per_block;      // 304
  int warp_size;                // 308
  char pitch[8];
  int max_threads_per_block;    // 320
  char limits[36];
  int major, minor;             // 360
  char texture[16];
  int multiprocessors;          // 384
  char more[208];
  int l2_bytes;                 // 596
  char rest[408];
};
static_assert(sizeof(DeviceProperties) == 1008);
static_assert(offsetof(DeviceProperties, major) == 360);
static_assert(offsetof(DeviceProperties, l2_bytes) == 596);

struct Attribute {
  int id, value;
};
constexpr int kMajor = 9, kMinor = 0;  // the limits below are those of an H100
constexpr Attribute kAttributes[] = {
    {1, 1024},       // threads per block
    {2, 1024},       // block x
    {3, 1024},       // block y
    {4, 64},         // block z
    {5, 0x7fffffff}, // grid x
    {8, 49152},      // shared memory per block
    {10, 32},        // warp size
    {12, 65536},     // registers per block
    {13, 1980000},   // clock, kHz
    {16, 132},       // multiprocessors
    {38, 52428800},  // L2 bytes
    {39, 2048},      // threads per multiprocessor
    {75, kMajor},
    {76, kMinor},
    {97, 232448},    // shared memory per block, opt-in
};

Error fail(Error code, const char* message) {
  cudasim_set_error(message);
  return code;
}

thread_local std::string text;

// A copy's end is fine if it is host memory or lies in one allocation.
bool valid(const void* address, size_t bytes) { return cudasim_owns(address, bytes) != 0; }

Error copy(void* to, const void* from, size_t bytes) {
  if (!valid(to, bytes) || !valid(from, bytes))
    return fail(kInvalidValue, "a copy leaves its device allocation");
  memmove(to, from, bytes);
  cudasim_mark_initialised(to, bytes);
  return kSuccess;
}

}  // namespace

extern "C" {

Error cudaGetDeviceCount(int* count) {
  *count = 1;
  return kSuccess;
}
Error cudaGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}
Error cudaSetDevice(int device) {
  return device == 0 ? kSuccess : fail(kInvalidDevice, "the emulated device is number 0");
}
Error cudaDeviceGetAttribute(int* value, int id, int) {
  *value = 0;
  for (const Attribute& attribute : kAttributes)
    if (attribute.id == id) *value = attribute.value;
  return kSuccess;
}
Error cudaGetDeviceProperties(DeviceProperties* properties, int) {
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, "tvmfuse emulated CUDA device");
  properties->total_memory = kMemory;
  properties->shared_per_block = 49152;
  properties->registers_per_block = 65536;
  properties->warp_size = 32;
  properties->max_threads_per_block = 1024;
  properties->major = kMajor;
  properties->minor = kMinor;
  properties->multiprocessors = 132;
  properties->l2_bytes = 52428800;
  return kSuccess;
}

Error cudaMalloc(void** address, size_t bytes) {
  *address = cudasim_allocate(bytes);
  return *address ? kSuccess : fail(kOutOfMemory, "out of memory");
}
Error cudaFree(void* address) {
  if (!address || cudasim_release(address) == 0) return kSuccess;
  return fail(kInvalidValue, "cudaFree of an address that cudaMalloc did not return");
}
Error cudaMallocHost(void** address, size_t bytes) {
  *address = malloc(bytes);
  return *address ? kSuccess : fail(kOutOfMemory, "out of memory");
}
Error cudaFreeHost(void* address) {
  free(address);
  return kSuccess;
}
Error cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = *total = kMemory;
  return kSuccess;
}
Error cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) {
  return copy(to, from, bytes);
}
Error cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void*) {
  return copy(to, from, bytes);
}

Error cudaGetLastError() { return kSuccess; }
Error cudaPeekAtLastError() { return kSuccess; }
const char* cudaGetErrorName(Error code) {
  text = "cudaError_" + std::to_string(code);
  return text.c_str();
}
const char* cudaGetErrorString(Error) {
  text = cudasim_error();
  return text.c_str();
}

static char token;  // any non-null handle: streams and events are all alike
Error cudaStreamCreate(void** stream) {
  *stream = &token;
  return kSuccess;
}
Error cudaStreamCreateWithFlags(void** stream, unsigned) { return cudaStreamCreate(stream); }
Error cudaStreamDestroy(void*) { return kSuccess; }
Error cudaStreamSynchronize(void*) { return kSuccess; }
Error cudaStreamWaitEvent(void*, void*, unsigned) { return kSuccess; }
Error cudaEventCreate(void** event) { return cudaStreamCreate(event); }
Error cudaEventDestroy(void*) { return kSuccess; }
Error cudaEventRecord(void*, void*) { return kSuccess; }
Error cudaEventSynchronize(void*) { return kSuccess; }
Error cudaEventElapsedTime(float*, void*, void*) {
  return fail(kNotSupported,
              "the emulated device offers no times: they would say nothing about a GPU");
}

static Error no_graphs() { return fail(kNotSupported, "CUDA graphs are not emulated"); }
Error cudaStreamBeginCapture(void*, int) { return no_graphs(); }
Error cudaStreamEndCapture(void*, void**) { return no_graphs(); }
Error cudaGraphInstantiate(void**, void*, unsigned long long) { return no_graphs(); }
Error cudaGraphLaunch(void*, void*) { return no_graphs(); }
Error cudaGraphDestroy(void*) { return no_graphs(); }
Error cudaGraphExecDestroy(void*) { return no_graphs(); }
}
