/* A CUDA driver without a device: what lockstep/numerics/cuda/device.py calls, with kernels of the emulator behind it.
 *
 * The environment says what there is: EMULATED_LIBRARY, a library of emulator.recipe(); NO_DEVICE, an error from cuInit;
 * FULL, no memory; NO_GRAPHS, an error from cuGraphCreate; TELL_GRAPHS, a line on stderr for each graph that is started. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
enum { COMPUTE_CAPABILITY_MAJOR = 75, COMPUTE_CAPABILITY_MINOR = 76, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97 };
enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, SHARED_OF_ANY = 48 << 10, SHARED_OF_THIS = 227 << 10 };

static char primary;               /* its address is the context */
static _Thread_local bool entered; /* a context is current per thread */

#define ENTERED \
    if (!entered) return INVALID_CONTEXT

int fake_cuInit(unsigned flags) { return flags ? INVALID_VALUE : getenv("NO_DEVICE") ? NO_DEVICE : SUCCESS; }
int fake_cuDeviceGetCount(int* count) {
    *count = 1;
    return SUCCESS;
}
int fake_cuDeviceGet(int* device, int ordinal) {
    *device = 7;
    return ordinal ? INVALID_VALUE : SUCCESS;
}
int fake_cuDeviceGetName(char* name, int length, int device) {
    snprintf(name, (size_t)length, "no device %d", device);
    return SUCCESS;
}
int fake_cuDeviceGetAttribute(int* value, int attribute, int device) {
    switch (attribute) {
        case COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
        case COMPUTE_CAPABILITY_MINOR: *value = 0; break;
        case MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = SHARED_OF_THIS; break;
        default: return INVALID_VALUE;
    }
    return device == 7 ? SUCCESS : INVALID_VALUE;
}
int fake_cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = &primary;
    return device == 7 ? SUCCESS : INVALID_VALUE;
}
int fake_cuCtxSetCurrent(void* context) {
    entered = context == &primary;
    return entered ? SUCCESS : INVALID_CONTEXT;
}
int fake_cuCtxSynchronize(void) { ENTERED; return SUCCESS; }
int fake_cuModuleLoadData(void** module, const void* image) {
    ENTERED;
    *module = dlopen(getenv("EMULATED_LIBRARY"), RTLD_NOW);
    return *module && memcmp(image, "\177ELF", 4) == 0 ? SUCCESS : INVALID_IMAGE;
}
int fake_cuModuleGetFunction(void** function, void* module, const char* name) {
    ENTERED;
    char launcher[256];
    snprintf(launcher, sizeof launcher, "launch_%s", name);
    *function = dlsym(module, launcher);
    return *function ? SUCCESS : NOT_FOUND;
}
static struct {
    void* function;
    int shared;
} prepared[1024]; /* what functions may ask for, where it is more than every one may */

int fake_cuFuncSetAttribute(void* function, int attribute, int value) {
    ENTERED;
    if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value > SHARED_OF_THIS) return INVALID_VALUE;
    for (size_t i = 0; i < sizeof prepared / sizeof *prepared; ++i)
        if (!prepared[i].function || prepared[i].function == function) {
            prepared[i].function = function;
            prepared[i].shared = value;
            return SUCCESS;
        }
    return OUT_OF_MEMORY;
}
int fake_cuMemGetInfo(size_t* free, size_t* total) {
    ENTERED;
    *total = (size_t)1 << 30;
    *free = getenv("FULL") ? 1000 : *total;
    return SUCCESS;
}
int fake_cuMemAlloc(uint64_t* address, size_t bytes) {
    ENTERED;
    void* memory;
    if (bytes == 0 || posix_memalign(&memory, 256, bytes)) return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
    *address = (uint64_t)memset(memory, 0xff, bytes);
    return SUCCESS;
}
int fake_cuMemFree(uint64_t address) { ENTERED; free((void*)address); return SUCCESS; }
int fake_cuMemcpyHtoD(uint64_t to, const void* from, size_t bytes) { ENTERED; memcpy((void*)to, from, bytes); return SUCCESS; }
int fake_cuMemcpyDtoH(void* to, uint64_t from, size_t bytes) { ENTERED; memcpy(to, (void*)from, bytes); return SUCCESS; }
int fake_cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                        unsigned shared, void* stream, void** arguments, void** extra) {
    ENTERED;
    unsigned most = SHARED_OF_ANY;
    for (size_t i = 0; i < sizeof prepared / sizeof *prepared && prepared[i].function; ++i)
        if (prepared[i].function == function) most = (unsigned)prepared[i].shared;
    if (x == 0 || y != 1 || z != 1 || threads_y != 1 || threads_z != 1 || shared > most || stream || extra) return INVALID_VALUE;
    ((void (*)(unsigned, unsigned, unsigned, bool, void**))function)(x, threads, shared, false, arguments);
    return SUCCESS;
}

/* A graph is a chain of launches with copies of their arguments: what is added must follow what was added last. */
enum { MOST_ARGUMENTS = 64 };
typedef struct Node {
    void* function;
    unsigned blocks, threads, shared, count;
    uint64_t cells[MOST_ARGUMENTS];
    struct Node* next;
} Node;
typedef struct {
    Node *first, *last;
} Graph;
typedef struct { /* CUDA_KERNEL_NODE_PARAMS */
    void* function;
    unsigned x, y, z, threads, threads_y, threads_z, shared;
    void **arguments, **extra;
} Parameters;

int fake_cuGraphCreate(void** graph, unsigned flags) {
    ENTERED;
    if (flags || getenv("NO_GRAPHS")) return INVALID_VALUE;
    *graph = calloc(1, sizeof(Graph));
    return SUCCESS;
}
int fake_cuGraphAddKernelNode(void** node, void* graph, void* const* after, size_t count, const Parameters* given) {
    ENTERED;
    Graph* own = graph;
    if (count != (own->last != NULL) || (count && after[0] != own->last)) return INVALID_VALUE;
    if (given->y != 1 || given->z != 1 || given->threads_y != 1 || given->threads_z != 1 || given->extra) return INVALID_VALUE;
    Dl_info symbol;
    char name[256];
    if (!dladdr(given->function, &symbol) || strncmp(symbol.dli_sname, "launch_", 7)) return INVALID_VALUE;
    snprintf(name, sizeof name, "arguments_%s", symbol.dli_sname + 7);
    void* library = dlopen(symbol.dli_fname, RTLD_NOW);
    unsigned (*arguments)(void) = (unsigned (*)(void))dlsym(library, name);
    Node* made = calloc(1, sizeof *made);
    made->function = given->function;
    made->blocks = given->x, made->threads = given->threads, made->shared = given->shared;
    made->count = arguments();
    if (made->count > MOST_ARGUMENTS) return INVALID_VALUE;
    for (unsigned i = 0; i < made->count; ++i) memcpy(&made->cells[i], given->arguments[i], sizeof(uint64_t));
    if (own->last) own->last->next = made;
    else own->first = made;
    own->last = made;
    *node = made;
    return SUCCESS;
}
int fake_cuGraphInstantiate(void** made, void* graph, unsigned long long flags) {
    ENTERED;
    Graph* copy = malloc(sizeof *copy);
    *copy = *(Graph*)graph;
    *made = copy;
    return flags ? INVALID_VALUE : SUCCESS;
}
int fake_cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long flags) { return fake_cuGraphInstantiate(made, graph, flags); }
int fake_cuGraphDestroy(void* graph) { ENTERED; free(graph); return SUCCESS; }
int fake_cuGraphExecDestroy(void* made) {
    ENTERED;
    for (Node *node = ((Graph*)made)->first, *next; node; node = next) {
        next = node->next;
        free(node);
    }
    free(made);
    return SUCCESS;
}
int fake_cuGraphLaunch(void* made, void* stream) {
    ENTERED;
    if (stream) return INVALID_VALUE;
    if (getenv("TELL_GRAPHS")) fprintf(stderr, "graph\n");
    for (Node* node = ((Graph*)made)->first; node; node = node->next) {
        void* arguments[MOST_ARGUMENTS];
        for (unsigned i = 0; i < node->count; ++i) arguments[i] = &node->cells[i];
        const int status = fake_cuLaunchKernel(node->function, node->blocks, 1, 1, node->threads, 1, 1, node->shared, NULL, arguments, NULL);
        if (status) return status;
    }
    return SUCCESS;
}

/* The bindings ask for every function by its name in the manual. */
int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* status) {
    (void)version, (void)flags;
    char own[256];
    snprintf(own, sizeof own, "fake_%s", name);
    Dl_info library;
    dladdr(&primary, &library);
    *function = strncmp(name, "cuGetProcAddress", 16) ? dlsym(dlopen(library.dli_fname, RTLD_NOW), own) : (void*)cuGetProcAddress_v2;
    if (status) *status = *function ? 0 : 1;
    return SUCCESS;
}
