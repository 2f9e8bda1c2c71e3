/* What the machine has. */
#ifndef BASE_MACHINE_H
#define BASE_MACHINE_H

#include <stdint.h>

uint64_t machine_free_bytes(void); /* memory that programs can still get, without swapping; 0: unknown */

#endif
