/* Preloaded into a driver (suspension.py). The C library reads CLOCK_BOOTTIME without the kernel, and
 * some libraries read /proc/uptime: here, both are the system call that the runner answers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096 };
static volatile char is_uptime[MOST]; /* of each file descriptor */

int clock_gettime(clockid_t clock, struct timespec *out) {
    return (int)syscall(SYS_clock_gettime, clock, out);
}

static int opened(const char *path, int flags, mode_t mode) {
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (file >= 0 && file < MOST) is_uptime[file] = strcmp(path, "/proc/uptime") == 0;
    return file;
}

#define OPEN(name, more) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return opened(path, flags | (more), mode); \
    }
OPEN(open, 0)
OPEN(open64, O_LARGEFILE)

static ssize_t uptime(void *out, size_t size) {
    struct timespec now;
    char text[64];
    clock_gettime(CLOCK_BOOTTIME, &now);
    int length = snprintf(text, sizeof text, "%lld.%02ld 0.00\n", (long long)now.tv_sec,
                          now.tv_nsec / 10000000);
    size_t most = (size_t)length < size ? (size_t)length : size;
    memcpy(out, text, most);
    return (ssize_t)most;
}

#define IS_UPTIME(file) ((file) >= 0 && (file) < MOST && is_uptime[file])

ssize_t read(int file, void *out, size_t size) {
    static ssize_t (*real)(int, void *, size_t);
    if (IS_UPTIME(file)) return uptime(out, size);
    if (!real) real = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    return real(file, out, size);
}

#define PREAD(name) \
    ssize_t name(int file, void *out, size_t size, off64_t at) { \
        static ssize_t (*real)(int, void *, size_t, off64_t); \
        if (IS_UPTIME(file)) return uptime(out, size); \
        if (!real) real = (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, #name); \
        return real(file, out, size, at); \
    }
PREAD(pread)
PREAD(pread64)

int close(int file) {
    static int (*real)(int);
    if (file >= 0 && file < MOST) is_uptime[file] = 0;
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "close");
    return real(file);
}
