/*
 * A CUDA driver without a GPU: memory is the host's, every call has been done when it returns.
 * For running the GPU checks as programs where there is no GPU; it proves the calls, and nothing about CUDA.
 *
 * FAKE_GPUS: how many GPUs there are (1).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int current = -1;
static unsigned queries;

static int gpus(void) { return getenv("FAKE_GPUS") ? atoi(getenv("FAKE_GPUS")) : 1; }

int fakeCurrentDevice(void) { return current; }

int cuInit(unsigned flags) { return flags ? 1 : gpus() ? 0 : 100; }

int cuGetErrorString(int error, const char **text) {
    *text = error == 100 ? "no CUDA-capable device is detected" : "something that the fake refuses";
    return 0;
}

int cuDriverGetVersion(int *version) { return *version = 13000, 0; }

int cuDeviceGetCount(int *count) { return *count = gpus(), 0; }

int cuDeviceGet(int *device, int number) { return number < 0 || number >= gpus() ? 101 : (*device = number, 0); }

int cuDeviceGetName(char *name, int length, int device) { return snprintf(name, length, "Fake GPU %d", device), 0; }

int cuDeviceGetPCIBusId(char *place, int length, int device) {
    return snprintf(place, length, "0000:%02x:00.0", device + 1), 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(uintptr_t)(0x7f0000000000u + device); /* needs all 64 bits */
    return 0;
}

int cuCtxSetCurrent(void *context) { return current = (int)((uintptr_t)context - 0x7f0000000000u), current >= 64; }

int cuDevicePrimaryCtxRelease_v2(int device) { return device != current; }

int cuCtxSynchronize(void) { return current < 0; }

int cuStreamCreate(void **stream, unsigned flags) { return *stream = malloc(1), flags > 1; }

int cuStreamQuery(void *stream) { return !stream ? 400 : queries++ % 2 ? 0 : 600; }

int cuStreamDestroy_v2(void *stream) { return free(stream), 0; }

int cuMemAlloc_v2(uint64_t *address, size_t size) { return *address = (uint64_t)malloc(size), *address ? 0 : 2; }

int cuMemFree_v2(uint64_t address) { return free((void *)address), 0; }

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { return memcpy((void *)to, from, size), 0; }

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { return memcpy(to, (void *)from, size), 0; }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { return *free_bytes = *total = (size_t)256 << 20, 0; }
