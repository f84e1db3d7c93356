/* Shifts the clocks of the process that preloads it. The file that CLOCK_SHIFT names holds two
 * shifts in microseconds, eight bytes each: of the wall clock, and of the clock that goes on while
 * the host is suspended (CLOCK_BOOTTIME). A test writes there and the server's clock steps at once.
 * CLOCK_MONOTONIC stays as it is, as it does when a host is suspended. Valkey loads modules with
 * RTLD_DEEPBIND, which would let them bypass this library, so that flag is removed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shifts;

__attribute__((constructor)) static void open_shifts(void) {
    const char *path = getenv("CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *map = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) shifts = map;
}

static int64_t shift_of(clockid_t clock) {
    if (!shifts) return 0;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) return shifts[0];
#ifdef CLOCK_BOOTTIME
    if (clock == CLOCK_BOOTTIME) return shifts[1];
#endif
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    if (syscall(SYS_clock_gettime, clock, out) != 0) return -1;
    int64_t micros = shift_of(clock);
    out->tv_sec += micros / 1000000;
    out->tv_nsec += micros % 1000000 * 1000;
    if (out->tv_nsec < 0) { out->tv_nsec += 1000000000; out->tv_sec -= 1; }
    if (out->tv_nsec >= 1000000000) { out->tv_nsec -= 1000000000; out->tv_sec += 1; }
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

#ifdef RTLD_DEEPBIND
void *dlopen(const char *path, int flags) {
    void *(*real)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return real(path, flags & ~RTLD_DEEPBIND);
}
#endif
