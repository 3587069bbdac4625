/* driver.c - a stand-in for NVIDIA's libcuda.so.1, where there is no GPU.
 *
 * The memory of its GPU is a file, $MANAPY_TEST_GPU, which must have the name of a device. It is mapped where the real
 * library maps its devices: at addresses below all others, which it must get. Taking it into the process, and bringing
 * it back, are as in the real library: calls wait meanwhile, and afterwards the descriptor has another number.
 * $MANAPY_TEST_GPU.fail contains a word: what fails for lack of memory, `checkpoint` or `restore`; with `absent` there
 * is no GPU to bring it back to. With -DOLD it is of a driver that cannot do this.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, ILLEGAL_STATE = 401 };
enum { BYTES = 1 << 20, WINDOW = 6 << 20 };
static char *const window = (char *)0x200000000;
static char *memory, *taken; /* the GPU's; its copy */
static size_t used;
static int device = -1, locked;
static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;

static const char *path(void) { return getenv("MANAPY_TEST_GPU"); }

static int is_to_fail(const char *what) {
    char name[512], word[32] = "";
    snprintf(name, sizeof name, "%s.fail", path());
    FILE *file = fopen(name, "r");
    if (!file) return 0;
    int found = fscanf(file, "%31s", word) == 1 && !strcmp(word, what);
    fclose(file);
    return found;
}

static int open_device(void) {
    device = open(path(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (device < 0 || ftruncate(device, BYTES)) return INVALID;
    memory = mmap(window + WINDOW, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, device, 0);
    return memory == window + WINDOW ? OK : OUT_OF_MEMORY;
}

int cuInit(unsigned flags) {
    if (device >= 0) return OK;
    const size_t bytes = 4297064448;
    char *got = mmap(window, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got != window) {
        munmap(got, bytes);
        return OUT_OF_MEMORY;
    }
    return flags ? INVALID : open_device();
}

int cuGetErrorString(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : "another error";
    return OK;
}

int cuDeviceGetCount(int *count) { return *count = 1, device >= 0 || taken ? OK : NOT_INITIALIZED; }
int cuDeviceGet(int *out, int number) { return *out = number, number == 0 ? OK : INVALID; }
int cuDeviceGetUuid(unsigned char *uuid, int number) { return memset(uuid, 7, 16), number == 0 ? OK : INVALID; }
int cuDevicePrimaryCtxRetain(void **context, int number) { return *context = memory, number == 0 ? OK : INVALID; }
int cuCtxSetCurrent(void *context) { return context ? OK : INVALID; }

int cuMemAlloc_v2(unsigned long *out, size_t bytes) {
    if (used + bytes > BYTES) return OUT_OF_MEMORY;
    *out = (unsigned long)(memory + used);
    used += bytes;
    return OK;
}

static int copy(void *to, const void *from, size_t bytes) {
    pthread_mutex_lock(&calls); /* locked: waits */
    memcpy(to, from, bytes);
    pthread_mutex_unlock(&calls);
    return OK;
}
int cuMemcpyHtoD_v2(unsigned long to, const void *from, size_t bytes) { return copy((void *)to, from, bytes); }
int cuMemcpyDtoH_v2(void *to, unsigned long from, size_t bytes) { return copy(to, (void *)from, bytes); }

#ifdef OLD
#define SINCE_570 static __attribute__((unused))
#else
#define SINCE_570
#endif

SINCE_570 int cuCheckpointProcessLock(int pid, unsigned *options) {
    if (pid != getpid() || !options || !options[0] || locked) return ILLEGAL_STATE;
    pthread_mutex_lock(&calls);
    locked = 1;
    return OK;
}

SINCE_570 int cuCheckpointProcessCheckpoint(int pid, void *options) {
    if (pid != getpid() || options || !locked || taken) return ILLEGAL_STATE;
    if (is_to_fail("checkpoint")) return OUT_OF_MEMORY;
    taken = memcpy(malloc(BYTES), memory, BYTES);
    close(device);
    device = -1;
    return mmap(memory, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory ? OK : INVALID;
}

SINCE_570 int cuCheckpointProcessRestore(int pid, void *options) {
    if (pid != getpid() || options || !taken) return ILLEGAL_STATE;
    if (is_to_fail("restore")) return OUT_OF_MEMORY;
    if (is_to_fail("absent")) return NO_DEVICE;
    int other = dup(0), result = open_device();
    close(other);
    if (result) return result;
    memcpy(memory, taken, BYTES);
    free(taken);
    taken = NULL;
    return OK;
}

SINCE_570 int cuCheckpointProcessUnlock(int pid, void *options) {
    if (pid != getpid() || options || !locked || taken) return ILLEGAL_STATE;
    locked = 0;
    pthread_mutex_unlock(&calls);
    return OK;
}
