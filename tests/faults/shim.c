// What a machine does to a process, on demand: a clock that is wrong, a disk that is full. Preloaded (LD_PRELOAD).
//
//   LOCKSTEP_SHIM_SKEW  seconds that the wall clock is ahead (or behind)
//   LOCKSTEP_SHIM_FULL  a file; while it exists nothing can be added to any file
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(type, name, ...)                                  \
    static type (*real)(__VA_ARGS__);                          \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static long skew(void) {
    static long seconds;
    static int known;
    if (!known) {
        const char* said = getenv("LOCKSTEP_SHIM_SKEW");
        seconds = said ? strtol(said, NULL, 10) : 0;
        known = 1;
    }
    return seconds;
}

static int full(void) {
    const char* flag = getenv("LOCKSTEP_SHIM_FULL");
    return flag && access(flag, F_OK) == 0;
}

// Pipes and sockets have no disk behind them.
static int refused(int fd) {
    struct stat seen;
    return full() && fstat(fd, &seen) == 0 && S_ISREG(seen.st_mode);
}

#define FULL(fd)           \
    if (refused(fd)) {     \
        errno = ENOSPC;    \
        return -1;         \
    }

int clock_gettime(clockid_t clock, struct timespec* now) {
    REAL(int, "clock_gettime", clockid_t, struct timespec*);
    const int result = real(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew();
    return result;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
    REAL(int, "gettimeofday", struct timeval*, void*);
    const int result = real(now, zone);
    if (!result) now->tv_sec += skew();
    return result;
}

time_t time(time_t* to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}

ssize_t write(int fd, const void* data, size_t count) {
    REAL(ssize_t, "write", int, const void*, size_t);
    FULL(fd);
    return real(fd, data, count);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec*, int);
    FULL(fd);
    return real(fd, parts, count);
}

ssize_t pwrite(int fd, const void* data, size_t count, off_t at) {
    REAL(ssize_t, "pwrite", int, const void*, size_t, off_t);
    FULL(fd);
    return real(fd, data, count, at);
}

ssize_t pwrite64(int fd, const void* data, size_t count, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void*, size_t, off64_t);
    FULL(fd);
    return real(fd, data, count, at);
}

int posix_fallocate(int fd, off_t at, off_t count) {
    REAL(int, "posix_fallocate", int, off_t, off_t);
    return refused(fd) ? ENOSPC : real(fd, at, count);
}

// A new file needs an entry in its folder.
static int created(const char* path, int flags) { return (flags & O_CREAT) && full() && access(path, F_OK) != 0; }

#define OPENS(name)                                                    \
    int name(const char* path, int flags, ...) {                       \
        REAL(int, #name, const char*, int, ...);                       \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        const mode_t mode = (flags & O_CREAT) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                  \
        if (created(path, flags)) {                                    \
            errno = ENOSPC;                                            \
            return -1;                                                 \
        }                                                              \
        return real(path, flags, mode);                                \
    }

OPENS(open)
OPENS(open64)
