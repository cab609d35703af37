/* A clock that is wrong: preloaded, it makes the time of day CLOCK_AHEAD_SECONDS later. Clocks that
 * measure durations stay as they are, as on a machine whose clock was set. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static int (*right)(clockid_t, struct timespec *);
	const char *ahead = getenv("CLOCK_AHEAD_SECONDS");
	int failed;

	if (right == NULL)
		*(void **)&right = dlsym(RTLD_NEXT, "clock_gettime");
	failed = right(clock, now);
	if (failed == 0 && ahead != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += atol(ahead);
	return failed;
}
