#include "serve/seed.h"

#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"

uint64_t serve_new_seed(void)
{
    static uint64_t count; /* two calls in the same microsecond differ */
    return random_word((uint64_t)time(NULL) ^ ((uint64_t)getpid() << 32), clock_now_us(), count++) & INT64_MAX;
}
