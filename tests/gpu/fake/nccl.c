/*
 * An NCCL without GPUs: ranks of one machine exchange their buffers through a file in /dev/shm.
 * For running the GPU checks as programs where there is no GPU; it proves the calls and what the check expects of them.
 *
 * FAKE_NCCL_VERSION  what ncclGetVersion says (23203)
 * FAKE_NCCL_FAULT    "wrong:ncclReduce@1": rank 1's answer is off by one; "nothing:…": it does nothing;
 *                    "beyond:…": it writes behind the buffer; "fail:…": it returns an error
 * FAKE_NCCL_DIAGNOSTICS  what its own diagnostics find: "p2p" from rank 1 to rank 0, "nvlink" on rank 1; else nothing
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGION ((size_t)96 << 20)
#define MOST 64

typedef struct { char internal[128]; } UniqueId;
typedef struct { atomic_int arrived, turn; int device[MOST]; char host[MOST][64]; } Meeting;
typedef struct { Meeting *meeting; char *regions; int rank, size, device; UniqueId id; } Comm;

static const size_t BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
static char last[256];
typedef struct { const void *send; void *receive; size_t bytes; int peer, source, type; Comm *comm; } Call;
static Call pending[MOST];
static int grouped, calls;

static int version(void) { return getenv("FAKE_NCCL_VERSION") ? atoi(getenv("FAKE_NCCL_VERSION")) : 23203; }

static int fault(const char *kind, const char *function, int rank) {
    char wanted[128];
    snprintf(wanted, sizeof wanted, "%s:%s@%d", kind, function, rank);
    return getenv("FAKE_NCCL_FAULT") && !strcmp(getenv("FAKE_NCCL_FAULT"), wanted);
}

static void meet(Comm *c) {
    int turn = atomic_load(&c->meeting->turn);
    if (atomic_fetch_add(&c->meeting->arrived, 1) == c->size - 1) {
        atomic_store(&c->meeting->arrived, 0);
        atomic_fetch_add(&c->meeting->turn, 1);
        return;
    }
    while (atomic_load(&c->meeting->turn) == turn)
        sched_yield();
}

static double half(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    double value = exponent ? ldexp(1024 + (bits & 1023), exponent - 25) : ldexp(bits & 1023, -24);
    return bits >> 15 ? -value : value;
}

static uint16_t halved(double value) {
    int exponent;
    double fraction = frexp(fabs(value), &exponent);
    if (value == 0)
        return 0;
    return (uint16_t)((value < 0) << 15 | (exponent + 14) << 10 | ((int)ldexp(fraction, 11) & 1023));
}

static double at(int type, const void *p, size_t i) {
    uint32_t wide = type == 9 ? (uint32_t)((const uint16_t *)p)[i] << 16 : 0;
    float bfloat;
    memcpy(&bfloat, &wide, 4);
    switch (type) {
    case 1: return ((const uint8_t *)p)[i];
    case 2: return ((const int32_t *)p)[i];
    case 4: return (double)((const int64_t *)p)[i];
    case 6: return half(((const uint16_t *)p)[i]);
    case 7: return ((const float *)p)[i];
    case 8: return ((const double *)p)[i];
    default: return bfloat;
    }
}

static void put(int type, void *p, size_t i, double value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    switch (type) {
    case 1: ((uint8_t *)p)[i] = (uint8_t)value; break;
    case 2: ((int32_t *)p)[i] = (int32_t)value; break;
    case 4: ((int64_t *)p)[i] = (int64_t)value; break;
    case 6: ((uint16_t *)p)[i] = halved(value); break;
    case 7: ((float *)p)[i] = single; break;
    case 8: ((double *)p)[i] = value; break;
    default: ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
    }
}

static char *region(Comm *c, int rank) { return c->regions + REGION * (size_t)rank; }

static int shared(Comm *c, const char *function, const void *send, size_t bytes) {
    if (fault("fail", function, c->rank)) {
        snprintf(last, sizeof last, "NET/Socket : peer 10.0.0.2<41234> has closed the connection");
        return 2;
    }
    if (bytes > REGION)
        return 3;
    memcpy(region(c, c->rank), send, bytes);
    meet(c);
    return 0;
}

static int told(Comm *c, const char *function, void *receive, size_t count, int type) {
    if (fault("wrong", function, c->rank))
        put(type, receive, count / 2, at(type, receive, count / 2) + 1);
    if (fault("beyond", function, c->rank))
        put(type, receive, count, 3);
    meet(c);
    return 0;
}

static void reduced(Comm *c, void *receive, size_t from, size_t count, int type, int operation) {
    for (size_t i = 0; i < count; i++) {
        double value = at(type, region(c, 0), from + i);
        for (int rank = 1; rank < c->size; rank++) {
            double other = at(type, region(c, rank), from + i);
            value = operation == 0 ? value + other : operation == 2 ? fmax(value, other) : fmin(value, other);
        }
        put(type, receive, i, value);
    }
}

int ncclGetVersion(int *code) { return *code = version(), 0; }
const char *ncclGetErrorString(int result) { return result == 5 ? "invalid usage" : "unhandled system error"; }
const char *ncclGetLastError(void *comm) { return comm ? last : last; }
int ncclCommGetAsyncError(void *comm, int *state) { return *state = 0, !comm; }
int ncclCommCuDevice(Comm *c, int *device) { return *device = c->device, 0; }

int ncclGetUniqueId(UniqueId *id) {
    memset(id, 0, sizeof *id);
    memset(id->internal + 100, 0xff, 28); /* the id is bytes, no text */
    snprintf(id->internal, 100, "/dev/shm/clusterctl-fake-nccl-%d", getpid());
    return 0;
}

static int is(const char *name, const char *value) { return getenv(name) && !strcmp(getenv(name), value); }

/* One line of the log, as NCCL writes it for each connection, with the way that its variables leave. */
static void tell_way(int rank, int other) {
    FILE *log = getenv("NCCL_DEBUG_FILE") ? fopen(getenv("NCCL_DEBUG_FILE"), "a") : NULL;
    int nvlink = !is("NCCL_P2P_DISABLE", "1") && !is("FAKE_NVLINK", "0");
    const char *rest = is("NCCL_SHM_DISABLE", "1") ? "NET/Socket/0" : "SHM/direct/direct";
    if (!log)
        return;
    fprintf(log, "here:1:1 [0] NCCL INFO Channel 00/0 : %d[0] -> %d[1] via %s\n", rank, other,
            nvlink ? "P2P/CUMEM" : rest);
    fclose(log);
}

/*
 * The report of NCCL's own diagnostics, by its user guide and src/diagnostics/p2p.cc and src/ras/diagnostics_gpu.cc.
 * It goes through stdio's buffer: whoever kills this process without a flush loses it.
 */
static void diagnose(Comm *c) {
    const char *found = getenv("FAKE_NCCL_DIAGNOSTICS") ? getenv("FAKE_NCCL_DIAGNOSTICS") : "";
    int edges = c->size * (c->size - 1);
    if (c->rank || version() < 23100)
        return;
    if (is("NCCL_RUN_DIAGNOSTICS", "1")) {
        printf("here:1 NCCL DIAG === NCCL Diagnostics ===\n");
        if (!strcmp(found, "p2p"))
            printf("here:1 NCCL DIAG [INFO] p2p: only %d/%d GPU-to-GPU peer accesses passed verification\n"
                   "here:1 NCCL DIAG [INFO] p2p: write mismatch srcRank=1 srcCudaDev=1 srcNvmlDev=1 dstRank=0 "
                   "dstCudaDev=0 dstNvmlDev=0 path=NVL handle=CUMEM_POSIX_FD expected=0x4000000080000001 "
                   "got=0x0000000000000000 verify=0x0000000000000000; check the link\n", edges - 1, edges);
        else if (edges)
            printf("here:1 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair "
                   "(%d peer accesses)\n", edges);
        printf("here:1 NCCL DIAG NCCL diagnostics completed in 1.5 ms across %d ranks\n", c->size);
    }
    if (is("NCCL_RUN_RAS_DIAGNOSTICS", "1")) {
        printf("here:1 NCCL DIAG === RAS Diagnostics ===\n"
               "here:1 NCCL DIAG [OK]   ECC: no uncorrected volatile errors across %d ranks in comm 0x1234\n", c->size);
        if (!strcmp(found, "nvlink"))
            printf("here:1 NCCL DIAG [INFO] NVLink: inactive link(s) on rank(s) {1} across %d ranks in comm 0x1234\n",
                   c->size);
        printf("here:1 NCCL DIAG [INFO] Xid/SXid: no kernel-log source was available on host here\n"
               "here:1 NCCL DIAG RAS diagnostics completed in 2.5 ms across %d ranks\n", c->size);
    }
}

int ncclCommInitRank(Comm **comm, int size, UniqueId id, int rank) {
    Comm *c = calloc(1, sizeof *c);
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*current)(void) = cuda ? (int (*)(void))dlsym(cuda, "fakeCurrentDevice") : NULL;
    int file = open(id.internal, O_RDWR | O_CREAT, 0600);
    if (!current || current() < 0 || file < 0 || size > MOST || (unsigned char)id.internal[127] != 0xff)
        return 1;
    if (ftruncate(file, (off_t)(sizeof(Meeting) + REGION * (size_t)size)))
        return 2;
    char *base = mmap(NULL, sizeof(Meeting) + REGION * (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    *c = (Comm){(Meeting *)base, base + sizeof(Meeting), rank, size, current(), id};
    c->meeting->device[rank] = c->device;
    snprintf(c->meeting->host[rank], 64, "%s", getenv("NCCL_HOSTID") ? getenv("NCCL_HOSTID") : "here");
    meet(c);
    unlink(id.internal);
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    for (int other = 0; other < size; other++)
        if (other != rank && c->meeting->device[other] == c->device &&
            !strcmp(c->meeting->host[other], c->meeting->host[rank]) &&
            (version() < 23003 || !allowed || strcmp(allowed, "1"))) {
            snprintf(last, sizeof last, "Duplicate GPU detected : rank %d and rank %d both on CUDA device 1000", rank,
                     other);
            return 5;
        }
    if (size > 1)
        tell_way(rank, (rank + 1) % size);
    diagnose(c);
    *comm = c;
    return 0;
}

int ncclCommDestroy(Comm *c) { return munmap(c->meeting, sizeof(Meeting) + REGION * (size_t)c->size); }

int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, Comm *c, void *stream) {
    int result = shared(c, "ncclAllReduce", send, count * BYTES[type]);
    if (!result && !fault("nothing", "ncclAllReduce", c->rank))
        reduced(c, receive, 0, count, type, operation);
    return result ? result : told(c, "ncclAllReduce", receive, count, type) || !stream;
}

int ncclReduce(const void *send, void *receive, size_t count, int type, int operation, int root, Comm *c, void *stream) {
    int result = shared(c, "ncclReduce", send, count * BYTES[type]);
    if (!result && c->rank == root && !fault("nothing", "ncclReduce", c->rank))
        reduced(c, receive, 0, count, type, operation);
    return result ? result : told(c, "ncclReduce", receive, count, type) || !stream;
}

int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation, Comm *c, void *stream) {
    int result = shared(c, "ncclReduceScatter", send, count * BYTES[type] * (size_t)c->size);
    if (!result && !fault("nothing", "ncclReduceScatter", c->rank))
        reduced(c, receive, count * (size_t)c->rank, count, type, operation);
    return result ? result : told(c, "ncclReduceScatter", receive, count, type) || !stream;
}

int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, Comm *c, void *stream) {
    int result = shared(c, "ncclBroadcast", send, c->rank == root ? count * BYTES[type] : 0);
    if (!result && !fault("nothing", "ncclBroadcast", c->rank))
        memcpy(receive, region(c, root), count * BYTES[type]);
    return result ? result : told(c, "ncclBroadcast", receive, count, type) || !stream;
}

int ncclAllGather(const void *send, void *receive, size_t count, int type, Comm *c, void *stream) {
    size_t bytes = count * BYTES[type];
    int result = shared(c, "ncclAllGather", send, bytes);
    for (int rank = 0; !result && rank < c->size && !fault("nothing", "ncclAllGather", c->rank); rank++)
        memcpy((char *)receive + bytes * (size_t)rank, region(c, rank), bytes);
    return result ? result : told(c, "ncclAllGather", receive, count * (size_t)c->size, type) || !stream;
}

/* A group is everything that its calls sent, one after the other in this rank's region, behind a table of where. */
int ncclGroupStart(void) { return grouped = 1, calls = 0, 0; }

int ncclSend(const void *send, size_t count, int type, int peer, Comm *c, void *stream) {
    if (calls == MOST)
        return 4;
    pending[calls++] = (Call){send, NULL, count * BYTES[type], peer, peer, type, c};
    return !grouped || !stream; /* outside a group it would wait for ever */
}

int ncclRecv(void *receive, size_t count, int type, int peer, Comm *c, void *stream) {
    Call *call = &pending[calls - 1]; /* the checks call send and receive in turn */
    if (!calls || call->receive)
        return 4;
    call->receive = receive, call->source = peer;
    return !grouped || !stream || call->bytes != count * BYTES[type] || call->comm != c;
}

int ncclGroupEnd(void) {
    Comm *c = pending[0].comm;
    size_t at = sizeof(size_t) * MOST;
    grouped = 0;
    if (fault("fail", "ncclSend", c->rank))
        return shared(c, "ncclSend", NULL, 0);
    for (int i = 0; i < calls; i++) {
        if (at + pending[i].bytes > REGION)
            return 3;
        ((size_t *)region(c, c->rank))[pending[i].peer] = at;
        memcpy(region(c, c->rank) + at, pending[i].send, pending[i].bytes);
        at += pending[i].bytes;
    }
    meet(c);
    for (int i = 0; i < calls && !fault("nothing", "ncclSend", c->rank); i++) {
        char *from = region(c, pending[i].source);
        memcpy(pending[i].receive, from + ((size_t *)from)[c->rank], pending[i].bytes);
    }
    return told(c, "ncclSend", pending[0].receive, pending[0].bytes / BYTES[pending[0].type], pending[0].type);
}
