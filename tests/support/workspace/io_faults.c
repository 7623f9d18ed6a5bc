/* Loaded before libc (LD_PRELOAD): the calls that reach files below a folder are counted, and one of them fails.

   fault_arm(root, at, error, mode) counts from 0 again. The call number `at` (from 1) fails with `error`; with mode 1
   so do all calls after it that write; mode 2 kills the process before the call, 3 after half of what it writes,
   4 after the call. `at` 0 counts alone. fault_count() is how many calls there were, fault_name(i) what call i was. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define MOST 4096
enum { ONCE = 0, FROM_THERE = 1, KILL_BEFORE = 2, KILL_HALF = 3, KILL_AFTER = 4 };

static char root[PATH_MAX];
static long at, count;
static int error, mode, armed;
static const char *names[MOST];

void fault_arm(const char *below, long number, int with, int how) {
    snprintf(root, sizeof root, "%s", below);
    at = number, count = 0, error = with, mode = how, armed = 1;
}
void fault_disarm(void) { armed = 0; }
long fault_count(void) { return count; }
const char *fault_name(long number) { return number >= 1 && number <= MOST ? names[number - 1] : ""; }

static int below(const char *path) { return strncmp(path, root, strlen(root)) == 0; }

static int of_descriptor(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return below(path);
}

static int of_path(int folder, const char *path) {
    return path[0] == '/' ? below(path) : folder != AT_FDCWD && of_descriptor(folder);
}

static void end(void) { kill(getpid(), SIGKILL); pause(); }

/* What happens to this call: -1 it fails, with errno set; 0 it goes on; 1 it is killed in its middle; 2 after it. */
static int fate(const char *name, int writes) {
    if (count < MOST) names[count] = name;
    count++;
    if (at == 0 || count < at || (count > at && !(mode == FROM_THERE && writes))) return 0;
    if (mode == KILL_BEFORE) end();
    if (mode == KILL_HALF) return 1;
    if (mode == KILL_AFTER) return 2;
    errno = error;
    return -1;
}

#define REAL(type, name, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))
#define AROUND(name, concerns, writes, call) \
    do { \
        int way = armed && (concerns) ? fate(name, writes) : 0; \
        if (way < 0) return -1; \
        if (way == 1) end(); \
        __auto_type result = call; \
        if (way == 2) end(); \
        return result; \
    } while (0)

#define OPENED(flags) ((flags) & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC)) != 0
#define PERMISSIONS(flags) \
    mode_t bits = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); bits = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) {
    PERMISSIONS(flags)
    AROUND("open", of_path(AT_FDCWD, path), OPENED(flags), REAL(int, "open", const char *, int, mode_t)(path, flags, bits));
}
int open64(const char *path, int flags, ...) {
    PERMISSIONS(flags)
    AROUND("open", of_path(AT_FDCWD, path), OPENED(flags), REAL(int, "open64", const char *, int, mode_t)(path, flags, bits));
}
int openat(int folder, const char *path, int flags, ...) {
    PERMISSIONS(flags)
    AROUND("open", of_path(folder, path), OPENED(flags), REAL(int, "openat", int, const char *, int, mode_t)(folder, path, flags, bits));
}
int openat64(int folder, const char *path, int flags, ...) {
    PERMISSIONS(flags)
    AROUND("open", of_path(folder, path), OPENED(flags), REAL(int, "openat64", int, const char *, int, mode_t)(folder, path, flags, bits));
}

ssize_t read(int fd, void *data, size_t size) {
    AROUND("read", of_descriptor(fd), 0, REAL(ssize_t, "read", int, void *, size_t)(fd, data, size));
}
ssize_t pread(int fd, void *data, size_t size, off_t from) {
    AROUND("read", of_descriptor(fd), 0, REAL(ssize_t, "pread", int, void *, size_t, off_t)(fd, data, size, from));
}
ssize_t pread64(int fd, void *data, size_t size, off64_t from) {
    AROUND("read", of_descriptor(fd), 0, REAL(ssize_t, "pread64", int, void *, size_t, off64_t)(fd, data, size, from));
}

/* Killed in its middle, a write leaves half of what it has. */
#define WRITTEN(all, half) \
    do { \
        int way = armed && of_descriptor(fd) ? fate("write", 1) : 0; \
        if (way < 0) return -1; \
        if (way == 1) { ssize_t part = half; (void)part; end(); } \
        ssize_t result = all; \
        if (way == 2) end(); \
        return result; \
    } while (0)
ssize_t write(int fd, const void *data, size_t size) {
    __auto_type real = REAL(ssize_t, "write", int, const void *, size_t);
    WRITTEN(real(fd, data, size), real(fd, data, size / 2));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t to) {
    __auto_type real = REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    WRITTEN(real(fd, data, size, to), real(fd, data, size / 2, to));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t to) {
    __auto_type real = REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    WRITTEN(real(fd, data, size, to), real(fd, data, size / 2, to));
}

int fsync(int fd) { AROUND("sync", of_descriptor(fd), 1, REAL(int, "fsync", int)(fd)); }
int fdatasync(int fd) { AROUND("sync", of_descriptor(fd), 1, REAL(int, "fdatasync", int)(fd)); }
int ftruncate(int fd, off_t size) { AROUND("truncate", of_descriptor(fd), 1, REAL(int, "ftruncate", int, off_t)(fd, size)); }
int ftruncate64(int fd, off64_t size) { AROUND("truncate", of_descriptor(fd), 1, REAL(int, "ftruncate64", int, off64_t)(fd, size)); }
int truncate(const char *path, off_t size) { AROUND("truncate", of_path(AT_FDCWD, path), 1, REAL(int, "truncate", const char *, off_t)(path, size)); }
int truncate64(const char *path, off64_t size) { AROUND("truncate", of_path(AT_FDCWD, path), 1, REAL(int, "truncate64", const char *, off64_t)(path, size)); }

static int allocated(int fd, int (*real)(int, off64_t, off64_t), off64_t from, off64_t size) {
    int way = armed && of_descriptor(fd) ? fate("allocate", 1) : 0;
    if (way < 0) return error; /* it tells the error as its result */
    if (way == 1) { real(fd, from, size / 2); end(); }
    int result = real(fd, from, size);
    if (way == 2) end();
    return result;
}
int posix_fallocate(int fd, off_t from, off_t size) { return allocated(fd, REAL(int, "posix_fallocate", int, off64_t, off64_t), from, size); }
int posix_fallocate64(int fd, off64_t from, off64_t size) { return allocated(fd, REAL(int, "posix_fallocate64", int, off64_t, off64_t), from, size); }

int rename(const char *from, const char *to) { AROUND("rename", of_path(AT_FDCWD, to), 1, REAL(int, "rename", const char *, const char *)(from, to)); }
int renameat(int one, const char *from, int other, const char *to) { AROUND("rename", of_path(other, to), 1, REAL(int, "renameat", int, const char *, int, const char *)(one, from, other, to)); }
int link(const char *from, const char *to) { AROUND("link", of_path(AT_FDCWD, to), 1, REAL(int, "link", const char *, const char *)(from, to)); }
int unlink(const char *path) { AROUND("unlink", of_path(AT_FDCWD, path), 1, REAL(int, "unlink", const char *)(path)); }
int unlinkat(int folder, const char *path, int flags) { AROUND("unlink", of_path(folder, path), 1, REAL(int, "unlinkat", int, const char *, int)(folder, path, flags)); }
int rmdir(const char *path) { AROUND("rmdir", of_path(AT_FDCWD, path), 1, REAL(int, "rmdir", const char *)(path)); }
int mkdir(const char *path, mode_t bits) { AROUND("mkdir", of_path(AT_FDCWD, path), 1, REAL(int, "mkdir", const char *, mode_t)(path, bits)); }
int mkdirat(int folder, const char *path, mode_t bits) { AROUND("mkdir", of_path(folder, path), 1, REAL(int, "mkdirat", int, const char *, mode_t)(folder, path, bits)); }
int flock(int fd, int how) { AROUND("lock", of_descriptor(fd), 0, REAL(int, "flock", int, int)(fd, how)); }
int fcntl64(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *value = va_arg(rest, void *);
    va_end(rest);
    int locks = command == F_SETLK || command == F_SETLKW;
    AROUND("lock", locks && of_descriptor(fd), 0, REAL(int, "fcntl64", int, int, void *)(fd, command, value));
}
