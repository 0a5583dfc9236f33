/* LD_PRELOAD for test_client_stands_still.py: a process that stands still at the nth look at the clock until it is told
 * to go on, and finds then that an hour has passed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

static int left, says, told, still;

void stand_still_at(int n, int says_fd, int told_fd)
{
    says = says_fd;
    told = told_fd;
    still = 0;
    left = n;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    char byte = 0;
    int result;
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    if (id == CLOCK_MONOTONIC && left && --left == 0) {
        if (write(says, &byte, 1) != 1 || read(told, &byte, 1) != 1)
            _exit(1);
        still = 3600;
    }
    result = real(id, now);
    if (id == CLOCK_MONOTONIC)
        now->tv_sec += still;
    return result;
}
