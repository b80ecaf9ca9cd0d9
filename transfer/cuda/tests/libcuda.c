/* A libcuda that has no GPU, for tests of the table that calls it: two devices, memory of the host behind them, everything done at once.
   Build with -DTOO_OLD for one that lacks a function, -DNO_DEVICE for one that does not start, -DBATCH for one with batched copies. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct { char reserved[64]; } CUipcMemHandle;

static int depth;            /* contexts pushed and not popped */
static int batches, singles; /* copies, and how */

CUresult cuInit(unsigned flags) {
#ifdef NO_DEVICE
    return 100;
#else
    return flags;
#endif
}
CUresult cuDriverGetVersion(int *version) { *version = 12080; return 0; }
CUresult cuDeviceGetCount(int *count) { *count = 2; return 0; }
CUresult cuDeviceGet(int *device, int ordinal) { *device = ordinal + 10; return ordinal < 2 ? 0 : 101; }
CUresult cuDeviceGetName(char *name, int len, int device) { strncpy(name, device == 10 ? "first" : "second", len); return 0; }
CUresult cuDeviceGetPCIBusId(char *id, int len, int device) { strncpy(id, device == 10 ? "0000:44:00.0" : "0000:45:00.0", len); return 0; }
CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)80 << 30; return 0; }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 116: case 117: *value = 1; return 0;
    case 118: *value = 100; return 0;
    case 124: *value = device == 10; return 0;
    default: return 1; /* a driver that does not know it */
    }
}
CUresult cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(0x1000 + device); return 0; }
CUresult cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
CUresult cuCtxPushCurrent_v2(void *context) { depth++; return context ? 0 : 201; }
CUresult cuCtxPopCurrent_v2(void **context) { depth--; *context = (void *)0x1000; return 0; }
#define NEED_CONTEXT if (depth != 1) return 201
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) { NEED_CONTEXT; *address = (CUdeviceptr)(uintptr_t)calloc(1, bytes); return 0; }
CUresult cuMemFree_v2(CUdeviceptr address) { NEED_CONTEXT; free((void *)(uintptr_t)address); return 0; }
CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) { NEED_CONTEXT; *address = calloc(1, bytes); return flags == 1 ? 0 : 1; }
CUresult cuMemFreeHost(void *address) { NEED_CONTEXT; free(address); return 0; }
CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
    NEED_CONTEXT;
    if (address < 4096) return 1;
    switch (attribute) {
    case 2: *(unsigned *)value = 2; return 0;          /* device memory */
    case 8: *(unsigned *)value = 0; return 0;          /* not managed */
    case 9: *(int *)value = 0; return 0;
    case 10: *(unsigned char *)value = 1; return 0;    /* IPC; a driver writes one byte */
    case 17: *(void **)value = 0; return 0;
    default: return 1;
    }
}
CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) { NEED_CONTEXT; return attribute == 6 && *(const unsigned *)value == 1 ? 0 : 1; }
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) { NEED_CONTEXT; *base = address & ~0xfffULL; *bytes = 1 << 20; return 0; }
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) { NEED_CONTEXT; memset(handle, 0, 64); memcpy(handle->reserved, &address, 8); handle->reserved[63] = -1; return 0; }
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) { NEED_CONTEXT; memcpy(address, handle.reserved, 8); return flags == 1 && handle.reserved[63] == -1 ? 0 : 1; }
CUresult cuIpcCloseMemHandle(CUdeviceptr address) { NEED_CONTEXT; return 0; }
CUresult cuStreamCreate(void **stream, unsigned flags) { NEED_CONTEXT; *stream = (void *)0x20; return flags == 1 ? 0 : 1; }
CUresult cuStreamDestroy_v2(void *stream) { NEED_CONTEXT; return stream == (void *)0x20 ? 0 : 400; }
CUresult cuStreamWaitEvent(void *stream, void *event, unsigned flags) { NEED_CONTEXT; return stream == (void *)0x20 && event && !flags ? 0 : 400; }
struct event { int asked, recorded; };
CUresult cuEventCreate(void **event, unsigned flags) { NEED_CONTEXT; *event = calloc(1, sizeof(struct event)); return flags == 2 ? 0 : 1; }
CUresult cuEventDestroy_v2(void *event) { NEED_CONTEXT; free(event); return 0; }
CUresult cuEventRecord(void *event, void *stream) { NEED_CONTEXT; ((struct event *)event)->recorded = 1; return 0; }
CUresult cuEventQuery(void *event) {
    struct event *e = event;
    NEED_CONTEXT;
    if (!e->recorded) return 400;
    return e->asked++ ? 0 : 600; /* not ready, once */
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream) { NEED_CONTEXT; singles++; memcpy((void *)(uintptr_t)to, from, bytes); return stream == (void *)0x20 ? 0 : 400; }
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream) { NEED_CONTEXT; singles++; memcpy(to, (void *)(uintptr_t)from, bytes); return stream == (void *)0x20 ? 0 : 400; }
#ifndef TOO_OLD
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream) { NEED_CONTEXT; return cuMemcpyDtoHAsync_v2((void *)(uintptr_t)to, from, bytes, stream); }
#endif
#ifdef BATCH
CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, int *attributes, size_t *first, size_t attribute_count, size_t *failed, void *stream) {
    NEED_CONTEXT;
    if (attributes[0] != 1 || first[0] != 0 || attribute_count != 1 || !failed || stream != (void *)0x20) return 1;
    for (size_t n = 0; n < count; n++) memcpy((void *)(uintptr_t)to[n], (void *)(uintptr_t)from[n], bytes[n]);
    batches++;
    return 0;
}
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, int kind, unsigned long long flags) {
    NEED_CONTEXT;
    if (address % 4096 || bytes % 4096 || kind != 1 || flags) return 1;
    *(int *)handle = syscall(SYS_memfd_create, "dma-buf", 1);
    return 0;
}
CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) { NEED_CONTEXT; return target == 0 && (scope == 100 || scope == 200) ? 0 : 1; }
#endif
