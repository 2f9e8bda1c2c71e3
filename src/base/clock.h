/* Time. Everything above this layer asks here, so that a simulated device can run on a virtual clock. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_now_us(void); /* monotonic, microseconds */

#endif
