// Moves the wall clock of one process: an offset in seconds, from the file that SOAK_CLOCK names, is added to what the
// system says. The monotonic clock and the clock of the machine stay as they are.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;
static int (*system_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
  system_clock = dlsym(RTLD_NEXT, "clock_gettime");
  const char *path = getenv("SOAK_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *shared = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (shared != MAP_FAILED) offset = shared;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  if (!system_clock) system_clock = dlsym(RTLD_NEXT, "clock_gettime");
  int result = system_clock(clock, time);
  if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += *offset;
  return result;
}
