// Sets the wall clock of the processes that load this before all else: the seconds that stand in the file CLOCK_SHIFT,
// a 64-bit number, are added to it whenever it is asked. Clocks that nobody can set go on as ever.
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t shift() {
    static const volatile int64_t *seconds = [] {
        int file = open(getenv("CLOCK_SHIFT"), O_RDONLY | O_CLOEXEC);
        void *content = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (content == MAP_FAILED) abort();
        close(file);
        return static_cast<const volatile int64_t *>(content);
    }();
    return *seconds;
}

extern "C" {

int clock_gettime(clockid_t clock, struct timespec *now) noexcept {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return static_cast<int>(failed);
}

int gettimeofday(struct timeval *now, void *) noexcept {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) noexcept {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
}
