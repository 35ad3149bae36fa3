/* Fails one call of the program: number FAULT_N of the kind FAULT_CALL, with FAULT_ERRNO (-1: half of the bytes).
   Files count below FAULT_FOLDER; "system" are files below /proc and /sys; memory, threads, random numbers and io_uring count
   everywhere. FAULT_HIT is created when a call fails. Without FAULT_CALL, the calls are counted into FAULT_COUNTS. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define KINDS(x) x(open) x(read) x(write) x(sync) x(rename) x(unlink) x(mkdir) x(truncate) x(copy) x(stat) x(seek) x(lock) \
    x(list) x(link) x(mode) x(mmap) x(map) x(advise) x(alloc) x(thread) x(random) x(uring) x(system)
#define NAME(kind) K_##kind,
#define TEXT(kind) #kind,
enum { KINDS(NAME) N_KINDS };
static const char *const names[] = { KINDS(TEXT) };

static atomic_long calls[N_KINDS];
static const char *folder, *hit, *counts;
static int failing = -1, number, live;
static long failing_n;
static atomic_long reads, errors, interrupts, shorts, delays;
static const char *seed, *random_counts;

__attribute__((constructor)) static void start(void) {
    const char *call = getenv("FAULT_CALL"), *n = getenv("FAULT_N"), *error = getenv("FAULT_ERRNO");
    folder = getenv("FAULT_FOLDER"), hit = getenv("FAULT_HIT"), counts = getenv("FAULT_COUNTS");
    seed = getenv("FAULT_RANDOM"), random_counts = getenv("FAULT_RANDOM_COUNTS");
    for (int i = 0; call && i < N_KINDS; i++) if (!strcmp(call, names[i])) failing = i;
    failing_n = n ? atol(n) : 0, number = error ? atoi(error) : 0, live = 1;
}

__attribute__((destructor)) static void end(void) {
    live = 0;
    FILE *file = counts ? fopen(counts, "w") : 0;
    for (int i = 0; file && i < N_KINDS; i++) fprintf(file, "%s %ld\n", names[i], calls[i]);
    if (file) fclose(file);
    file = random_counts ? fopen(random_counts, "w") : 0;
    if (file) fprintf(file, "%ld %ld %ld %ld %ld\n", reads, errors, interrupts, shorts, delays), fclose(file);
}

/* The error to set; 0 to go on; -1 for half of the bytes. */
static int fault(int kind) {
    if (!live || kind < 0) return 0;
    /* The standard library maps and protects a stack for signals before `main`, and the process cannot start without. */
    static atomic_int before_main[N_KINDS];
    if ((kind == K_map || kind == K_advise) && !atomic_exchange(&before_main[kind], 1)) return 0;
    long n = atomic_fetch_add(&calls[kind], 1) + 1;
    if (kind != failing || n != failing_n) return 0;
    if (hit) syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, hit, O_CREAT | O_WRONLY, 0600));
    return number;
}

/* Some parameters are declared as never null, but the standard library asks with a null path whether `statx` exists. */
static __attribute__((noipa)) int path_kind(const char *path, int kind) {
    if (!live || !path) return -1;
    if (!strncmp(path, "/proc/", 6) || !strncmp(path, "/sys/", 5)) return K_system;
    return folder && (path[0] != '/' || !strncmp(path, folder, strlen(folder))) ? kind : -1;
}

static int fd_kind(int fd, int kind) {
    char link[64], path[4096];
    if (!live || fd < 3) return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int saved = errno;
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    errno = saved;
    if (n < 0) return -1;
    path[n] = 0;
    return path[0] == '/' ? path_kind(path, kind) : -1;
}

static __attribute__((noipa)) int at_kind(int at, const char *path) {
    return path && *path ? path_kind(path, K_stat) : path ? fd_kind(at, K_stat) : -1;
}

/* Random faults of reads past the page cache, which are those of weights on disk. */
static int chance(size_t *n) {
    static _Thread_local unsigned long long state;
    if (!seed) return 0;
    if (!state) state = 0x9e3779b97f4a7c15ull * (unsigned long long)(atoi(seed) + 1 + syscall(SYS_gettid));
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    unsigned dice = (state >> 20) % 100;
    atomic_fetch_add(&reads, 1);
    if (dice < 1) { atomic_fetch_add(&errors, 1); return EIO; }
    if (dice < 4) { atomic_fetch_add(&interrupts, 1); return EINTR; }
    if (dice < 7) { atomic_fetch_add(&shorts, 1); *n = (*n / 512 * ((state >> 32) % 100) / 100 + 1) * 512; return 0; }
    if (dice < 9) { atomic_fetch_add(&delays, 1); usleep((state >> 32) % 20000); }
    return 0;
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL(kind, result) int error = fault(kind); if (error > 0) { errno = error; return result; }
#define CALL(type, name, parameters, kind, result, ...) \
    type name parameters { NEXT(name); FAIL(kind, result) return next(__VA_ARGS__); }
/* As above; `n` bytes, or half of them. */
#define TRANSFER(name, parameters, kind, ...) ssize_t name parameters { NEXT(name); FAIL(kind, -1) \
    if (error < 0) n = n / 2 + n % 2; return next(__VA_ARGS__); }

TRANSFER(read, (int fd, void *to, size_t n), fd_kind(fd, K_read), fd, to, n)
TRANSFER(write, (int fd, const void *from, size_t n), fd_kind(fd, K_write), fd, from, n)
ssize_t pread64(int fd, void *to, size_t n, off64_t at) {
    NEXT(pread64);
    int random = seed && fcntl(fd, F_GETFL) & O_DIRECT ? chance(&n) : 0;
    if (random) { errno = random; return -1; }
    FAIL(fd_kind(fd, K_read), -1)
    return next(fd, to, error < 0 ? n / 2 + n % 2 : n, at);
}
TRANSFER(pwrite64, (int fd, const void *from, size_t n, off64_t at), fd_kind(fd, K_write), fd, from, n, at)
TRANSFER(readv, (int fd, const struct iovec *to, int n), fd_kind(fd, K_read), fd, to, n)
TRANSFER(writev, (int fd, const struct iovec *from, int n), fd_kind(fd, K_write), fd, from, n)
TRANSFER(copy_file_range, (int fd, off64_t *from, int to, off64_t *at, size_t n, unsigned flags), fd_kind(fd, K_copy), fd, from, to, at, n, flags)
TRANSFER(sendfile64, (int to, int fd, off64_t *from, size_t n), fd_kind(fd, K_copy), to, fd, from, n)
TRANSFER(getrandom, (void *to, size_t n, unsigned flags), K_random, to, n, flags)

int open64(const char *path, int flags, ...) {
    NEXT(open64);
    va_list list; va_start(list, flags); int mode = va_arg(list, int); va_end(list);
    FAIL(path_kind(path, K_open), -1)
    return next(path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
    NEXT(openat64);
    va_list list; va_start(list, flags); int mode = va_arg(list, int); va_end(list);
    FAIL(path_kind(path, K_open), -1)
    return next(at, path, flags, mode);
}
CALL(int, fsync, (int fd), fd_kind(fd, K_sync), -1, fd)
CALL(int, fdatasync, (int fd), fd_kind(fd, K_sync), -1, fd)
CALL(int, rename, (const char *a, const char *b), path_kind(a, K_rename), -1, a, b)
CALL(int, unlink, (const char *path), path_kind(path, K_unlink), -1, path)
CALL(int, unlinkat, (int at, const char *path, int flags), path_kind(path, K_unlink), -1, at, path, flags)
CALL(int, mkdir, (const char *path, mode_t mode), path_kind(path, K_mkdir), -1, path, mode)
CALL(int, ftruncate64, (int fd, off64_t n), fd_kind(fd, K_truncate), -1, fd, n)
CALL(int, statx, (int at, const char *restrict path, int flags, unsigned mask, struct statx *restrict to), \
    at_kind(at, path), -1, at, path, flags, mask, to)
CALL(int, stat64, (const char *restrict path, struct stat64 *restrict to), path_kind(path, K_stat), -1, path, to)
CALL(int, lstat64, (const char *restrict path, struct stat64 *restrict to), path_kind(path, K_stat), -1, path, to)
CALL(int, fstat64, (int fd, struct stat64 *to), fd_kind(fd, K_stat), -1, fd, to)
CALL(int, fstatat64, (int at, const char *restrict path, struct stat64 *restrict to, int flags), \
    at_kind(at, path), -1, at, path, to, flags)
CALL(off64_t, lseek64, (int fd, off64_t at, int from), fd_kind(fd, K_seek), -1, fd, at, from)
CALL(int, flock, (int fd, int how), fd_kind(fd, K_lock), -1, fd, how)
CALL(DIR *, opendir, (const char *path), path_kind(path, K_list), 0, path)
CALL(struct dirent64 *, readdir64, (DIR *folder), fd_kind(dirfd(folder), K_list), 0, folder)
CALL(ssize_t, readlink, (const char *restrict path, char *restrict to, size_t n), path_kind(path, K_link), -1, path, to, n)
CALL(int, symlink, (const char *to, const char *path), path_kind(path, K_link), -1, to, path)
CALL(int, linkat, (int from, const char *a, int at, const char *b, int flags), path_kind(b, K_link), -1, from, a, at, b, flags)
CALL(char *, realpath, (const char *restrict path, char *restrict to), path_kind(path, K_link), 0, path, to)
CALL(int, fchmod, (int fd, mode_t mode), fd_kind(fd, K_mode), -1, fd, mode)
CALL(int, futimens, (int fd, const struct timespec *times), fd_kind(fd, K_mode), -1, fd, times)

/* Stacks of the C library's threads are not the program's own maps. */
void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t offset) {
    NEXT(mmap64);
    FAIL(fd >= 0 ? fd_kind(fd, K_mmap) : K_map, MAP_FAILED)
    return next(at, n, prot, flags, fd, offset);
}
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) { return mmap64(at, n, prot, flags, fd, offset); }
CALL(int, madvise, (void *at, size_t n, int advice), K_advise, -1, at, n, advice)
CALL(int, mprotect, (void *at, size_t n, int prot), K_advise, -1, at, n, prot)

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
void *malloc(size_t n) { FAIL(K_alloc, 0) return __libc_malloc(n); }
void *calloc(size_t n, size_t size) { FAIL(K_alloc, 0) return __libc_calloc(n, size); }
void *realloc(void *old, size_t n) { FAIL(K_alloc, 0) return __libc_realloc(old, n); }
int posix_memalign(void **to, size_t align, size_t n) {
    int error = fault(K_alloc);
    if (error > 0) return error;
    return (*to = __libc_memalign(align, n)) ? 0 : ENOMEM;
}

int pthread_create(pthread_t *restrict to, const pthread_attr_t *restrict with, void *(*run)(void *), void *restrict argument) {
    NEXT(pthread_create);
    int error = fault(K_thread);
    return error > 0 ? error : next(to, with, run, argument);
}

/* Drivers of GPUs do not survive failed allocations of their own: Vulkan's loader keeps its lock, ROCm throws. */
void *dlopen(const char *file, int mode) {
    NEXT(dlopen);
    for (const char **name = (const char *[]){"libvulkan", "libamdhip64", "libhiprtc", "libcuda", "libnvrtc", 0}; *name; name++)
        if (file && strstr(file, *name)) return 0;
    return next(file, mode);
}

long syscall(long which, ...) {
    NEXT(syscall);
    long a[6];
    va_list list; va_start(list, which); for (int i = 0; i < 6; i++) a[i] = va_arg(list, long); va_end(list);
    if (which >= SYS_io_uring_setup && which <= SYS_io_uring_register) { FAIL(K_uring, -1) }
    return next(which, a[0], a[1], a[2], a[3], a[4], a[5]);
}
